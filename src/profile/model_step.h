// One decode step of a batch over a model, run again and again from the same state: caches are positional, so a
// committed length taken back gives the same bits (architecture: Pinned 3 and 6).
#pragma once

#include <memory>
#include <vector>

#include "engine/model_executor.h"
#include "profile/exposed.h"

namespace fathom {

struct ModelStepOptions {
  std::int32_t batch = 1;
  std::int64_t context_tokens = 256;  // of each sequence, before the step
  std::int64_t chunk_tokens = 512;    // prefill rows of a step; at most the model's
};

// What a run of the step takes along, besides its work.
enum class Taking : std::uint8_t {
  kNothing,  // no clock is read inside the forward pass
  kTimes,    // sums per operation: always on in the server
  kTrace,    // every call: a capture
};

// Host parts of a step's launch (StepTrace).
struct StepParts {
  double prepare_us = 0, forward_us = 0, sample_us = 0, draft_us = 0;
  double cpu_us = 0;  // of all threads: what other load on the machine does not stretch
};

class ModelStep final : public RepeatableStep {
 public:
  // Prefills `batch` sequences of random tokens. The model must outlive the step and run nothing else meanwhile.
  static Result<std::unique_ptr<ModelStep>> make(Model& model, const ModelStepOptions& options);

  Result<Run> run(std::span<const std::string> operations, std::int32_t num_repeats) override;
  Result<Run> run_taking(Taking taking);
  // The step once more, launched and not replayed: distinct routed experts that its rows hit, a mean over the trunk's
  // layers. The same in every run.
  Result<double> count_experts();
  // Of the last run_taking(kTrace).
  const StepTrace& trace() const { return trace_; }
  ModelExecutor& executor() { return *executor_; }
  const StepParts& parts() const { return parts_; }  // of the last run
  std::int32_t num_rows() const { return options_.batch; }

 private:
  ModelStep(Model& model, const ModelStepOptions& options) : model_(model), options_(options) {}
  Status prefill();
  void append_rows(std::int32_t sequence, std::int64_t start, std::int64_t count, std::int32_t num_logits);
  TokenId token_at(std::int32_t sequence, std::int64_t position) const;
  Result<Run> run_once();

  Model& model_;
  ModelStepOptions options_;
  std::unique_ptr<ModelExecutor> executor_;
  std::int32_t window_blocks_each_ = 0, context_blocks_each_ = 0;
  std::vector<std::int64_t> num_context_, window_begin_, window_end_;  // of each sequence's tables
  std::vector<SampleSpec> specs_;
  StepPlan plan_;
  StepResult result_;
  StepTrace trace_;
  StepParts parts_;
};

// What taking costs, from interleaved steps: medians with the sign test's interval, relative to the plain step.
struct TakingCost {
  double base_us = 0, base_cpu_us = 0;
  ExposedTime times, trace;          // extra time per step
  ExposedTime times_cpu, trace_cpu;  // extra CPU time per step
};
Result<TakingCost> measure_taking(ModelStep& step, std::int32_t num_rounds);

// What the always-on event times cost a step where a device replays graphs: interleaved blocks of as many steps as one
// of which is timed, with and without.
struct SegmentCost {
  double base_us = 0;     // median of the blocks without, per step
  ExposedTime extra;      // per step
  double first_us = 0;    // once for each shape of a step: the step that captures the timed graph, beyond a plain one
  SegmentTimes segments;  // what was noted meanwhile
};
Result<SegmentCost> measure_segment_times(ModelStep& step, std::int32_t num_rounds);

}  // namespace fathom
