// The rows of one step on their way to the device: filled on the host, uploaded, then read as StepRows.
#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"
#include "base/ids.h"
#include "ops/step_rows.h"

namespace fathom {

// Rows [start, start + tokens.size()) of one sequence.
struct SequenceRows {
  std::span<const TokenId> tokens;
  std::int64_t start = 0;
  std::span<const std::int32_t> context_table;  // context block of each logical block, as far as needed
  std::span<const std::int32_t> window_table;   // window blocks of logical blocks window_first, ...
  std::int32_t window_first = 0;
  std::int32_t state_slot = 0;
  // A draft block without a causal mask (spec 2.10): all rows see keys [max(0, start - 128), end of the rows).
  bool block_visible = false;
  // Rows of window-only layers (draft blocks): no context table is read, none need be given.
  bool window_only = false;
  // No window key before this position is seen: draft blocks that were not fed from the start.
  std::int64_t window_floor = 0;
};

struct StepInputLimits {
  std::int64_t max_tokens = 0;
  std::int64_t max_sequences = 0;
  std::int64_t max_logit_rows = 0;
  std::int64_t max_context_entries = 0;  // context table entries, all sequences together
  std::int64_t max_window_entries = 0;
};

// Device arrays keep their addresses from step to step.
class StepInput {
 public:
  static Result<StepInput> make(Backend& backend, const StepInputLimits& limits);

  void clear();
  void add(const SequenceRows& sequence);
  // Logits are wanted for this row of the step.
  void add_logit_row(std::int32_t row);
  // What the caller knows of this step and of all that will be replayed as it (StepRows::short_sequences).
  void set_short_sequences(bool are_short) { rows_.short_sequences = are_short; }
  // Makes rows() and logit_rows() describe what was added.
  Status upload();
  // After upload(): the rows' token ids lie here instead, [tokens] i32 on the device.
  void use_token_ids(const View& ids);

  std::int32_t num_tokens() const { return num_tokens_; }
  std::int32_t num_logit_rows() const { return num_logit_rows_; }
  const StepRows& rows() const { return rows_; }
  View logit_rows() const { return logit_rows_; }  // [logit rows] i32
  std::span<const std::int32_t> positions() const { return {host_positions(), static_cast<std::size_t>(num_tokens_)}; }

 private:
  // One array of the step: the same offset in the host block and on the device.
  struct Array {
    std::int64_t offset_bytes = 0;
    DType dtype = DType::kI32;
    std::int64_t capacity = 0;
  };
  enum ArrayIndex {
    kTokenIds,
    kPositions,
    kSequenceOf,
    kSequenceBegin,
    kWindowBegin,
    kWindowEnd,
    kContextOffset,
    kWindowTable,
    kWindowOffset,
    kWindowFirst,
    kStateSlot,
    kLogitRows,
    kContextTable,  // last: by far the largest
    kNumArrays
  };

  template <typename T>
  T* host(ArrayIndex array) const {
    return reinterpret_cast<T*>(host_ + arrays_[array].offset_bytes);
  }
  const std::int32_t* host_positions() const { return host<std::int32_t>(kPositions); }
  Status send(ArrayIndex array, std::int64_t count, View& view, bool sent);

  Backend* backend_ = nullptr;
  Array arrays_[kNumArrays];
  DeviceMemory device_;
  std::vector<std::byte> staging_;  // unused where device memory is host memory
  std::byte* host_ = nullptr;
  std::int32_t num_tokens_ = 0;
  std::int32_t num_sequences_ = 0;
  std::int32_t num_logit_rows_ = 0;
  std::int64_t num_context_entries_ = 0;
  std::int64_t num_window_entries_ = 0;
  StepRows rows_;
  View logit_rows_;
};

}  // namespace fathom
