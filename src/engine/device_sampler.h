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

  // Makes rows() describe the plan's logits rows, and sends them. False: a row asks for more than fits (alternatives,
  // biases, penalised ids); the step is then drawn on the host.
  Result<bool> fill(const StepPlan& plan);
  // Launches only; may stand in a captured step.
  void launch(ExecutionContext& context, const View& logits);
  // What the launched rows drew; waits for them.
  Result<std::span<const SampledRow>> take();

 private:
  DeviceSampler() = default;
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
  DeviceMemory values_;
  std::int32_t num_value_rows_ = 0;
  std::int32_t max_value_rows_ = 0;
  std::vector<std::int32_t> counts_;  // [vocab], zero between rows; of the output, one more where in the prompt
  std::vector<TokenId> seen_;
};

}  // namespace fathom
