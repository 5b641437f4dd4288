#include "model/step_input.h"

#include <algorithm>

#include "ops/cache_view.h"

namespace fathom {
namespace {

constexpr std::int64_t kOneCopyBytes = 256 << 10;

}  // namespace

Result<StepInput> StepInput::make(Backend& backend, const StepInputLimits& limits) {
  StepInput input;
  input.backend_ = &backend;
  const std::int64_t capacities[kNumArrays] = {
      limits.max_tokens,         limits.max_tokens,    limits.max_tokens,    limits.max_sequences + 1,
      limits.max_tokens,         limits.max_tokens,    limits.max_sequences, limits.max_window_entries,
      limits.max_sequences,      limits.max_sequences, limits.max_sequences, limits.max_logit_rows,
      limits.max_context_entries};
  std::int64_t total = 0;
  for (int i = 0; i < kNumArrays; ++i) {
    const DType dtype = i == kContextOffset || i == kWindowOffset ? DType::kI64 : DType::kI32;
    input.arrays_[i] = {total, dtype, capacities[i]};
    total = round_up(total + capacities[i] * dtype_bytes(dtype), 256);
  }
  FATHOM_ASSIGN_OR_RETURN(input.device_, backend.allocate(total, "the rows of a step"));
  if (backend.is_host_memory()) {
    input.host_ = input.device_.data;
  } else {
    input.staging_.resize(static_cast<std::size_t>(total));
    input.host_ = input.staging_.data();
  }
  return input;
}

void StepInput::clear() {
  num_tokens_ = num_sequences_ = num_logit_rows_ = 0;
  rows_.short_sequences = false;
  num_context_entries_ = num_window_entries_ = 0;
}

void StepInput::add(const SequenceRows& sequence) {
  const auto count = static_cast<std::int32_t>(sequence.tokens.size());
  const auto num_context = static_cast<std::int64_t>(sequence.context_table.size());
  const auto num_window = static_cast<std::int64_t>(sequence.window_table.size());
  FATHOM_CHECK(num_tokens_ + count <= arrays_[kTokenIds].capacity, "rows of a step within its limit");
  FATHOM_CHECK(num_sequences_ < arrays_[kStateSlot].capacity, "sequences of a step within its limit");
  FATHOM_CHECK(num_context_entries_ + num_context <= arrays_[kContextTable].capacity, "context tables fit");
  FATHOM_CHECK(num_window_entries_ + num_window <= arrays_[kWindowTable].capacity, "window tables fit");
  const std::int64_t end = sequence.start + count;
  FATHOM_CHECK(count > 0 && (sequence.window_only || num_context * kBlockTokens >= end / 4 * 4),
               "context blocks cover the rows");
  FATHOM_CHECK((sequence.window_first + num_window) * kBlockTokens >= end, "window blocks cover the rows");
  const std::int64_t window_begin = sequence.start + (sequence.block_visible ? 0 : 1) - kBlockTokens;
  FATHOM_CHECK(std::int64_t{sequence.window_first} * kBlockTokens <=
                   std::max<std::int64_t>({0, sequence.window_floor, window_begin}),
               "window blocks cover what the first row sees of its window");

  host<std::int32_t>(kSequenceBegin)[num_sequences_] = num_tokens_;
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t row = num_tokens_ + i;
    const std::int64_t position = sequence.start + i;
    host<std::int32_t>(kTokenIds)[row] = sequence.tokens[static_cast<std::size_t>(i)];
    host<std::int32_t>(kPositions)[row] = static_cast<std::int32_t>(position);
    host<std::int32_t>(kSequenceOf)[row] = num_sequences_;
    const std::int64_t first_seen = sequence.block_visible ? sequence.start : position + 1;
    host<std::int32_t>(kWindowBegin)[row] =
        static_cast<std::int32_t>(std::max(sequence.window_floor, first_seen - kBlockTokens));
    host<std::int32_t>(kWindowEnd)[row] = static_cast<std::int32_t>(sequence.block_visible ? end : position + 1);
  }
  std::copy_n(sequence.context_table.data(), num_context, host<std::int32_t>(kContextTable) + num_context_entries_);
  std::copy_n(sequence.window_table.data(), num_window, host<std::int32_t>(kWindowTable) + num_window_entries_);
  host<std::int64_t>(kContextOffset)[num_sequences_] = num_context_entries_;
  host<std::int64_t>(kWindowOffset)[num_sequences_] = num_window_entries_;
  host<std::int32_t>(kWindowFirst)[num_sequences_] = sequence.window_first;
  host<std::int32_t>(kStateSlot)[num_sequences_] = sequence.state_slot;
  num_context_entries_ += num_context;
  num_window_entries_ += num_window;
  num_tokens_ += count;
  ++num_sequences_;
  host<std::int32_t>(kSequenceBegin)[num_sequences_] = num_tokens_;
}

void StepInput::add_logit_row(std::int32_t row) {
  FATHOM_CHECK(0 <= row && row < num_tokens_, "logits of a row of the step");
  FATHOM_CHECK(num_logit_rows_ < arrays_[kLogitRows].capacity, "logit rows of a step within the limit");
  host<std::int32_t>(kLogitRows)[num_logit_rows_++] = row;
}

Status StepInput::send(ArrayIndex array, std::int64_t count, View& view, bool sent) {
  const Array& place = arrays_[array];
  view = make_view(device_.data + place.offset_bytes, place.dtype, {count});
  return sent ? Status() : backend_->upload(view.data, host_ + place.offset_bytes, view.num_bytes());
}

void StepInput::use_token_ids(const View& ids) {
  FATHOM_CHECK(ids.shape.num_elements() == num_tokens_, "an id of every row");
  rows_.token_ids = ids;
}

Status StepInput::upload() {
  rows_.num_tokens = num_tokens_;
  rows_.num_sequences = num_sequences_;
  // One copy of all arrays costs less than one of each, as long as there is little between them.
  const std::int64_t used_bytes = arrays_[kContextTable].offset_bytes + 4 * num_context_entries_;
  const bool at_once = !backend_->is_host_memory() && used_bytes <= kOneCopyBytes;
  if (at_once) FATHOM_RETURN_IF_ERROR(backend_->upload(device_.data, host_, used_bytes));
  const auto place = [&](ArrayIndex array, std::int64_t count, View& view) {
    return send(array, count, view, at_once);
  };
  FATHOM_RETURN_IF_ERROR(place(kTokenIds, num_tokens_, rows_.token_ids));
  FATHOM_RETURN_IF_ERROR(place(kPositions, num_tokens_, rows_.positions));
  FATHOM_RETURN_IF_ERROR(place(kSequenceOf, num_tokens_, rows_.sequence_of));
  FATHOM_RETURN_IF_ERROR(place(kSequenceBegin, num_sequences_ + 1, rows_.sequence_begin));
  FATHOM_RETURN_IF_ERROR(place(kWindowBegin, num_tokens_, rows_.window_begin));
  FATHOM_RETURN_IF_ERROR(place(kWindowEnd, num_tokens_, rows_.window_end));
  FATHOM_RETURN_IF_ERROR(place(kContextTable, num_context_entries_, rows_.context_table));
  FATHOM_RETURN_IF_ERROR(place(kContextOffset, num_sequences_, rows_.context_offset));
  FATHOM_RETURN_IF_ERROR(place(kWindowTable, num_window_entries_, rows_.window_table));
  FATHOM_RETURN_IF_ERROR(place(kWindowOffset, num_sequences_, rows_.window_offset));
  FATHOM_RETURN_IF_ERROR(place(kWindowFirst, num_sequences_, rows_.window_first));
  FATHOM_RETURN_IF_ERROR(place(kStateSlot, num_sequences_, rows_.state_slot));
  FATHOM_RETURN_IF_ERROR(place(kLogitRows, num_logit_rows_, logit_rows_));
  // A captured step is replayed with longer tables.
  rows_.context_table.shape = {arrays_[kContextTable].capacity};
  return Status();
}

}  // namespace fathom
