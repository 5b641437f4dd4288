// One layer of a model alone, fed streams of the caller's: a fresh sequence each time.
#pragma once

#include <numeric>

#include "golden_support.h"
#include "model/step_input.h"
#include "tensor/scalar_formats.h"

namespace fathom::testing {

class LayerRig {
 public:
  LayerRig(Model& model, std::int64_t num_tokens) : model_(model), context_(model.make_context()) {
    Backend& backend = model.backend();
    const CacheLayout& layout = model.cache_layout();
    const std::int64_t blocks = num_context_blocks(num_tokens);
    context_pool_ = backend.allocate(blocks * layout.context_block_bytes, "test").value();
    window_pool_ = backend.allocate(blocks * layout.window_block_bytes, "test").value();
    state_pool_ = backend.allocate(layout.state_slot_bytes, "test").value();
    pools_ = {context_pool_.data,        layout.context_block_bytes, window_pool_.data,
              layout.window_block_bytes, state_pool_.data,           layout.state_slot_bytes};
    table_.resize(static_cast<std::size_t>(blocks));
    std::iota(table_.begin(), table_.end(), 0);
    input_ = StepInput::make(backend, {num_tokens, 1, 1, blocks, blocks}).value();
  }

  // Rows 0 .. ids.size(): streams [tokens, hc, hidden] in, streams out.
  std::vector<float> run(std::int32_t layer, std::span<const TokenId> ids, std::span<const float> streams) {
    input_.clear();
    input_.add({ids, 0, table_, table_, 0, 0});
    EXPECT_TRUE(input_.upload().ok());
    std::vector<float> out(streams.size());
    const Status status = model_.run_layer_alone(context_, layer, input_, streams, out, pools_);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }

 private:
  Model& model_;
  ExecutionContext context_;
  DeviceMemory context_pool_, window_pool_, state_pool_;
  CachePools pools_;
  std::vector<std::int32_t> table_;
  StepInput input_;
};

// Streams before layer 0: copies of the embedding (spec 2.2).
inline std::vector<float> embedded_streams(const Goldens& weights, const ModelConfig& config,
                                           std::span<const TokenId> ids) {
  const std::vector<std::uint16_t> embed = weights.bf16("embed.weight");
  const auto hidden = static_cast<std::size_t>(config.hidden_size);
  std::vector<float> streams;
  for (const TokenId id : ids) {
    for (std::int32_t j = 0; j < config.hc_mult; ++j) {
      for (std::size_t i = 0; i < hidden; ++i) {
        streams.push_back(bf16_to_float(embed[static_cast<std::size_t>(id) * hidden + i]));
      }
    }
  }
  return streams;
}

}  // namespace fathom::testing
