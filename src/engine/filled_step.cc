#include "engine/filled_step.h"

#include <algorithm>
#include <random>

namespace fathom {
namespace {

constexpr int kFill = 0x38;                         // a small finite number in every format of the caches
constexpr std::int32_t kShortRows = kMaxDraft + 1;  // StepRows::short_sequences

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
  // The last position of a context of whole blocks closes a group of every kind; the one before it none.
  return make_rows(model, batch, 1, context_tokens - (closes_groups ? 1 : 2), context_tokens);
}

Result<std::unique_ptr<FilledStep>> FilledStep::make_chunk(Model& model, std::int32_t rows,
                                                           std::int64_t context_tokens) {
  return make_rows(model, 1, rows, context_tokens - rows, context_tokens);
}

Result<std::unique_ptr<FilledStep>> FilledStep::make_rows(Model& model, std::int32_t sequences, std::int32_t rows,
                                                          std::int64_t begin, std::int64_t context_tokens) {
  const ModelOptions& limits = model.options();
  const std::int64_t all = std::int64_t{sequences} * rows;
  if (sequences < 1 || rows < 1 || all > limits.max_tokens || sequences > limits.max_logit_rows) {
    return invalid_argument("a step of " + std::to_string(all) + " rows: the model was loaded for " +
                            std::to_string(limits.max_tokens) + ", " + std::to_string(limits.max_logit_rows) +
                            " of them with logits");
  }
  if (begin < 0 || context_tokens % kBlockTokens != 0 || context_tokens > model.config().max_position_embeddings) {
    return invalid_argument("a context of " + std::to_string(context_tokens) + " tokens: expected whole blocks of " +
                            std::to_string(kBlockTokens) + ", at most " +
                            std::to_string(model.config().max_position_embeddings) + " and not under a step's rows");
  }
  Backend& backend = model.backend();
  const CacheLayout& layout = model.cache_layout();
  const std::int64_t blocks = num_context_blocks(context_tokens);
  const std::int64_t first_window_block = std::max<std::int64_t>(0, begin + 1 - kBlockTokens) / kBlockTokens;
  const std::int64_t window_blocks = (begin + rows - 1) / kBlockTokens - first_window_block + 1;
  std::unique_ptr<FilledStep> made(new FilledStep(model, sequences, rows));
  FATHOM_ASSIGN_OR_RETURN(made->context_blocks_,
                          filled_memory(backend, blocks * sequences * layout.context_block_bytes, "context blocks"));
  FATHOM_ASSIGN_OR_RETURN(
      made->window_blocks_,
      filled_memory(backend, window_blocks * sequences * layout.window_block_bytes, "window blocks"));
  FATHOM_ASSIGN_OR_RETURN(made->states_, filled_memory(backend, sequences * layout.state_slot_bytes, "states"));
  FATHOM_RETURN_IF_ERROR(backend.finish());
  made->pools_ = {made->context_blocks_.data, layout.context_block_bytes, made->window_blocks_.data,
                  layout.window_block_bytes,  made->states_.data,         layout.state_slot_bytes};
  FATHOM_ASSIGN_OR_RETURN(made->step_, StepInput::make(backend, {static_cast<std::int32_t>(all), sequences, sequences,
                                                                 blocks * sequences, window_blocks * sequences}));
  StepInput& step = made->step_;
  step.clear();
  std::mt19937 random(7);
  std::vector<std::int32_t> context_table(static_cast<std::size_t>(blocks)),
      window_table(static_cast<std::size_t>(window_blocks));
  std::vector<TokenId> tokens(static_cast<std::size_t>(rows));
  for (std::int32_t s = 0; s < sequences; ++s) {
    for (std::size_t i = 0; i < context_table.size(); ++i)
      context_table[i] = static_cast<std::int32_t>(s * blocks + static_cast<std::int64_t>(i));
    for (std::size_t i = 0; i < window_table.size(); ++i)
      window_table[i] = static_cast<std::int32_t>(s * window_blocks + static_cast<std::int64_t>(i));
    for (TokenId& token : tokens)
      token = static_cast<TokenId>(random() % static_cast<unsigned>(model.config().vocab_size));
    SequenceRows of_sequence;
    of_sequence.tokens = tokens;
    of_sequence.start = begin;
    of_sequence.context_table = context_table;
    of_sequence.window_first = static_cast<std::int32_t>(first_window_block);
    of_sequence.window_table = window_table;
    of_sequence.state_slot = s;
    step.add(of_sequence);
    step.add_logit_row((s + 1) * rows - 1);
  }
  step.set_short_sequences(rows <= kShortRows);
  FATHOM_RETURN_IF_ERROR(step.upload());
  return made;
}

Status FilledStep::run(std::int64_t max_context_tokens, int count, SegmentTiming segments) {
  context_.capture_max_position = max_context_tokens - 1;
  context_.segments = segments;
  // An owner for each maximum: steps of one key must be served by one graph. Not an executor's, which are not negative.
  const CaptureKey key{static_cast<std::int32_t>(-max_context_tokens),
                       sequences_ * rows_,
                       sequences_,
                       sequences_,
                       false,
                       rows_ <= kShortRows};
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
