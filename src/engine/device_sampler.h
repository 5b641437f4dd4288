// Draws a step's tokens where its logits lie, in device memory: what the rows ask for goes there with the step, the
// drawn tokens come back in one copy.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "engine/step.h"
#include "ops/sample/sample_rows.h"

namespace fathom {

class DeviceSampler {
 public:
  // For steps of at most `max_rows` logits rows and `max_sequences` sequences.
  static Result<DeviceSampler> make(Backend& backend, std::int64_t vocab, std::int32_t max_rows,
                                    std::int32_t max_sequences);
  // For blocks of at most `max_drafts` drafts of each of `max_sequences` sequences.
  static Result<DeviceSampler> make_for_drafts(Backend& backend, std::int64_t vocab, std::int32_t max_drafts,
                                               std::int32_t max_sequences);

  // Makes rows() describe the plan's logits rows and `num_empty` of nobody behind them, and sends them. False: a row
  // asks for more than fits (alternatives, biases, penalised ids); the step is then drawn on the host.
  Result<bool> fill(const StepPlan& plan, std::int32_t num_empty = 0);
  // Of a row whose token nobody reads.
  static const SampleSpec& nobody();
  // Drafts: row d * sequences.size() + s is draft d of sequence s, drawn as the verifying step will (draft_sampler.h).
  // False also where a sequence's penalties depend on the drafts before.
  struct DraftedRows {
    const SampleSpec* spec = nullptr;
    std::int64_t position = 0;  // of the first draft
  };
  Result<bool> fill_drafts(std::span<const DraftedRows> sequences, std::int32_t num_drafts);
  // Launches only; may stand in a captured step. `logits` are of rows first_row, first_row + 1, ...
  void launch(ExecutionContext& context, const View& logits, std::int64_t first_row = 0);
  // The launched rows' tokens as the device has them: [count] i32, 0 where none could be drawn.
  View ids(std::int64_t first_row, std::int64_t count) const;
  // Those of all rows; waits for them.
  Result<std::span<const std::int32_t>> take_ids();
  // What the launched rows drew; waits for them.
  Result<std::span<const SampledRow>> take();

 private:
  DeviceSampler() = default;
  static Result<DeviceSampler> make_for_rows(Backend& backend, std::int64_t vocab, std::int32_t max_rows,
                                             std::int32_t max_value_rows);
  void clear();
  Status send_rows();
  bool add_row(const SampleSpec& spec, std::int64_t position, std::int32_t bias_begin);
  void add_history(const SampleSpec& spec, SampleRow& row);

  template <typename T>
  struct Array {
    DeviceMemory memory;
    std::vector<T> host;
    std::int64_t capacity = 0;

    T* device() const { return reinterpret_cast<T*>(memory.data); }
    bool has_room(std::size_t more) const { return static_cast<std::int64_t>(host.size() + more) <= capacity; }
  };
  template <typename T>
  Status make_array(std::int64_t capacity, const char* purpose, Array<T>& array);
  template <typename T>
  Status send(Array<T>& array);

  Backend* backend_ = nullptr;
  SampleRowsPlan plan_;
  Array<SampleRow> rows_;
  Array<std::uint32_t> masks_;
  Array<SampleBias> biases_;
  Array<SampleHistory> histories_;
  Array<SampledRow> sampled_;
  Array<std::int32_t> ids_;
  DeviceMemory values_;
  DeviceMemory exchange_;
  std::int32_t num_value_rows_ = 0;
  std::int32_t max_value_rows_ = 0;
  std::vector<std::int32_t> counts_;  // [vocab], zero between rows; of the output, one more where in the prompt
  std::vector<TokenId> seen_;
};

}  // namespace fathom
