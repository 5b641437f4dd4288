// A model with caches of its own, driven row by row: what goldens of draft blocks are checked with.
#pragma once

#include <numeric>

#include "golden_support.h"

namespace fathom::testing {

// One sequence that owns every block.
class DraftRig {
 public:
  DraftRig(const std::string& model_path, const Numerics& numerics, const Overrides& variants,
           std::int64_t max_rows = 512)
      : loaded_(load(model_path, numerics, variants, max_rows)), context_(loaded_.model->make_context()) {
    Backend& backend = loaded_.model->backend();
    const CacheLayout& layout = loaded_.model->cache_layout();
    StepInputLimits limits;
    limits.max_tokens = limits.max_logit_rows = max_rows;
    limits.max_sequences = 1;
    limits.max_context_entries = limits.max_window_entries = kBlocks;
    input_ = std::move(StepInput::make(backend, limits)).value();
    table_.resize(kBlocks);
    std::iota(table_.begin(), table_.end(), 0);
    pools_.context_block_bytes = layout.context_block_bytes;
    pools_.window_block_bytes = layout.window_block_bytes;
    pools_.state_slot_bytes = layout.state_slot_bytes;
    const auto allocate = [&](std::int64_t bytes) {
      memory_.push_back(std::move(backend.allocate(bytes, "test caches")).value());
      return memory_.back().data;
    };
    pools_.context = allocate(kBlocks * layout.context_block_bytes);
    pools_.window = allocate(kBlocks * layout.window_block_bytes);
    pools_.state = allocate(layout.state_slot_bytes);
  }

  Model& model() { return *loaded_.model; }
  ExecutionContext& context() { return context_; }
  const CachePools& pools() const { return pools_; }
  std::int64_t vocab_size() { return model().config().vocab_size; }

  // The trunk over rows [start, start + tokens.size()); logits of the last row.
  std::vector<float> forward(std::span<const TokenId> tokens, std::int64_t start) {
    fill(tokens, start, false, 0);
    input_.add_logit_row(static_cast<std::int32_t>(tokens.size()) - 1);
    EXPECT_TRUE(input_.upload().ok());
    return to_host(model().forward(context_, input_, pools_));
  }

  // The MTP block over rows [start, ...), logits of all of them. `streams` [rows, hc * hidden] are those of the
  // positions before.
  std::vector<float> draft_mtp(std::span<const TokenId> tokens, std::int64_t start, std::span<const float> streams) {
    fill(tokens, start, false, 1);
    for (std::size_t i = 0; i < tokens.size(); ++i) input_.add_logit_row(static_cast<std::int32_t>(i));
    EXPECT_TRUE(input_.upload().ok());
    const View in = model().draft_input_streams(static_cast<std::int64_t>(tokens.size()));
    FATHOM_CHECK(static_cast<std::size_t>(in.shape.num_elements()) == streams.size(), "streams of every row");
    std::copy(streams.begin(), streams.end(), in.as<float>());
    return to_host(model().draft_mtp(context_, input_, in, pools_));
  }

  // A DSpark block at [start, start + block size) behind the token just drawn: logits without the Markov bias.
  std::vector<float> draft_block(TokenId token, std::int64_t start) { return draft_rows(token, start, true); }
  // Wrong on purpose: rows see the rows up to their own only.
  std::vector<float> draft_block_causal(TokenId token, std::int64_t start) { return draft_rows(token, start, false); }
  // Logits and confidence of row `row` of that block, given the token before.
  std::pair<std::vector<float>, float> draft_markov(TokenId previous, std::int32_t row) {
    const auto i32 = [](std::int32_t* value) {
      return make_view(reinterpret_cast<std::byte*>(value), DType::kI32, {1});
    };
    const Model::MarkovDrafts drafts = model().draft_markov(context_, i32(&previous), i32(&row));
    return {to_host(drafts.logits), drafts.confidence.as<float>()[0]};
  }
  void draft_context(std::span<const TokenId> tokens, std::int64_t start) {
    fill(tokens, start, false, 0);
    EXPECT_TRUE(input_.upload().ok());
    model().draft_context(context_, input_, pools_);
  }

  StepInput& fill(std::span<const TokenId> tokens, std::int64_t start, bool block_visible, std::int64_t window_floor) {
    input_.clear();
    SequenceRows rows;
    rows.tokens = tokens;
    rows.start = start;
    rows.context_table = rows.window_table = table_;
    rows.block_visible = block_visible;
    rows.window_floor = window_floor;
    input_.add(rows);
    return input_;
  }

  static std::vector<float> to_host(const View& view) {
    return {view.as<float>(), view.as<float>() + view.shape.num_elements()};
  }

 private:
  static constexpr std::int64_t kBlocks = 8;

  std::vector<float> draft_rows(TokenId token, std::int64_t start, bool block_visible) {
    const ModelConfig& config = model().config();
    std::vector<TokenId> ids(static_cast<std::size_t>(config.dspark_block_size), config.dspark_noise_token_id);
    ids[0] = token;
    fill(ids, start, block_visible, 0);
    for (std::size_t i = 0; i < ids.size(); ++i) input_.add_logit_row(static_cast<std::int32_t>(i));
    EXPECT_TRUE(input_.upload().ok());
    return to_host(model().draft_block(context_, input_, pools_));
  }

  static LoadedModel load(const std::string& path, const Numerics& numerics, const Overrides& variants,
                          std::int64_t max_rows) {
    LoadOptions options;
    options.numerics = numerics;
    options.variants = variants;
    options.num_threads = 2;
    options.max_step_tokens = options.max_logit_rows = max_rows;
    Result<LoadedModel> loaded = load_model(path, options);
    FATHOM_CHECK(loaded.ok(), loaded.status().message().c_str());
    return std::move(loaded).value();
  }

  LoadedModel loaded_;
  ExecutionContext context_;
  StepInput input_;
  std::vector<std::int32_t> table_;
  std::vector<DeviceMemory> memory_;
  CachePools pools_;
};

}  // namespace fathom::testing
