#include "engine/filled_step.h"

#include <algorithm>
#include <random>

namespace fathom {
namespace {

constexpr int kFill = 0x38;  // a small finite number in every format of the caches
constexpr std::int64_t kWindowBlocks = 2;

Result<DeviceMemory> filled_memory(Backend& backend, std::int64_t num_bytes, const char* purpose) {
  FATHOM_ASSIGN_OR_RETURN(DeviceMemory memory, backend.allocate(std::max<std::int64_t>(num_bytes, 256), purpose));
  const std::vector<std::byte> fill(static_cast<std::size_t>(std::min<std::int64_t>(num_bytes, 1 << 20)),
                                    std::byte{kFill});
  auto done = static_cast<std::int64_t>(fill.size());
  FATHOM_RETURN_IF_ERROR(backend.upload(memory.data, fill.data(), done));
  while (done < num_bytes) {
    const std::int64_t more = std::min(done, num_bytes - done);
    FATHOM_RETURN_IF_ERROR(backend.copy(memory.data + done, memory.data, more));
    done += more;
  }
  return memory;
}

}  // namespace

Result<std::unique_ptr<FilledStep>> FilledStep::make(Model& model, std::int32_t batch, std::int64_t context_tokens,
                                                     bool closes_groups) {
  const ModelOptions& limits = model.options();
  if (batch < 1 || batch > limits.max_tokens || batch > limits.max_logit_rows) {
    return invalid_argument("a step of " + std::to_string(batch) + " rows: the model was loaded for " +
                            std::to_string(std::min(limits.max_tokens, limits.max_logit_rows)));
  }
  // The last position of a context of whole blocks closes a group of every kind; the one before it none.
  const std::int64_t position = context_tokens - (closes_groups ? 1 : 2);
  if (position < 0 || context_tokens % kBlockTokens != 0 || context_tokens > model.config().max_position_embeddings) {
    return invalid_argument("a context of " + std::to_string(context_tokens) + " tokens: expected whole blocks of " +
                            std::to_string(kBlockTokens) + ", at most " +
                            std::to_string(model.config().max_position_embeddings));
  }
  Backend& backend = model.backend();
  const CacheLayout& layout = model.cache_layout();
  const std::int64_t blocks = num_context_blocks(context_tokens);
  std::unique_ptr<FilledStep> made(new FilledStep(model, batch));
  FATHOM_ASSIGN_OR_RETURN(made->context_blocks_,
                          filled_memory(backend, blocks * batch * layout.context_block_bytes, "context blocks"));
  FATHOM_ASSIGN_OR_RETURN(made->window_blocks_,
                          filled_memory(backend, kWindowBlocks * batch * layout.window_block_bytes, "window blocks"));
  FATHOM_ASSIGN_OR_RETURN(made->states_, filled_memory(backend, batch * layout.state_slot_bytes, "states"));
  FATHOM_RETURN_IF_ERROR(backend.finish());
  made->pools_ = {made->context_blocks_.data, layout.context_block_bytes, made->window_blocks_.data,
                  layout.window_block_bytes,  made->states_.data,         layout.state_slot_bytes};
  FATHOM_ASSIGN_OR_RETURN(made->step_,
                          StepInput::make(backend, {batch, batch, batch, blocks * batch, kWindowBlocks * batch}));
  StepInput& step = made->step_;
  step.clear();
  std::mt19937 random(7);
  std::vector<std::int32_t> context_table(static_cast<std::size_t>(blocks)), window_table(kWindowBlocks);
  for (std::int32_t s = 0; s < batch; ++s) {
    for (std::size_t i = 0; i < context_table.size(); ++i)
      context_table[i] = static_cast<std::int32_t>(s * blocks + static_cast<std::int64_t>(i));
    for (std::size_t i = 0; i < window_table.size(); ++i)
      window_table[i] = static_cast<std::int32_t>(s * kWindowBlocks + static_cast<std::int64_t>(i));
    const auto token = static_cast<TokenId>(random() % static_cast<unsigned>(model.config().vocab_size));
    SequenceRows rows;
    rows.tokens = {&token, 1};
    rows.start = position;
    rows.context_table = context_table;
    rows.window_first =
        static_cast<std::int32_t>(std::max<std::int64_t>(0, position + 1 - kBlockTokens) / kBlockTokens);
    rows.window_table = window_table;
    rows.state_slot = s;
    step.add(rows);
    step.add_logit_row(s);
  }
  step.set_short_sequences(true);
  FATHOM_RETURN_IF_ERROR(step.upload());
  return made;
}

Status FilledStep::run(std::int64_t max_context_tokens, int count, SegmentTiming segments) {
  context_.capture_max_position = max_context_tokens - 1;
  context_.segments = segments;
  // An owner for each maximum: steps of one key must be served by one graph. Not an executor's, which are not negative.
  const CaptureKey key{static_cast<std::int32_t>(-max_context_tokens), batch_, batch_, batch_, false, true};
  for (int i = 0; i < count; ++i) {
    FATHOM_RETURN_IF_ERROR(model_.backend().launch_captured(key, context_, [this](ExecutionContext& context) {
      static_cast<void>(model_.forward(context, step_, pools_));
    }));
  }
  return model_.backend().finish();
}

std::vector<int> launches_of_layers(const CapturedStep& step, std::int32_t num_layers) {
  std::vector<int> launches(static_cast<std::size_t>(num_layers));
  for (const CapturedNode& node : step.nodes) {
    if (node.kind != NodeKind::kKernel || node.call < 0) continue;
    const std::int32_t layer = step.calls[static_cast<std::size_t>(node.call)].scope.layer;
    if (layer >= 0 && layer < num_layers) ++launches[static_cast<std::size_t>(layer)];
  }
  return launches;
}

}  // namespace fathom
