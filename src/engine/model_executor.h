// The executor over a model: block tables, steps, sampling, draft verification (executor.h has the contract).
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/device_sampler.h"
#include "engine/device_tracer.h"
#include "engine/drafter.h"
#include "engine/executor.h"
#include "model/model.h"

namespace fathom {

struct ModelExecutorOptions {
  std::int64_t max_length_tokens = 0;  // 0: what the config says
  std::int32_t max_sequences = 1;      // of one step
  std::int32_t num_context_blocks = 0;
  std::int32_t num_window_blocks = 0;
  std::int32_t num_state_slots = 1;
  std::int32_t num_resume_slots = 0;
  std::int32_t max_proposals = 0;  // drafts a step may ask for; 0: the draft blocks stay idle
  std::uint64_t weights_fingerprint = 0;
  bool capture = true;  // replay decode steps where the device has graphs
};

class ModelExecutor final : public Executor {
 public:
  // Allocates the pools. The model must outlive the executor and run nothing else meanwhile.
  static Result<std::unique_ptr<ModelExecutor>> make(Model& model, const ModelExecutorOptions& options);

  const ExecutorLimits& limits() const override { return limits_; }
  Status launch(const StepPlan& plan) override;
  Result<StepResult> wait() override;
  void commit(SequenceId id, std::int64_t length) override;
  // With a device tracer steps are traced as they are replayed; without one they are launched, operation by operation.
  void set_trace(StepTrace* trace) override;
  void add_device_samples(TracedStep& step) override;
  void set_device_tracer(std::unique_ptr<DeviceTracer> tracer) { tracer_ = std::move(tracer); }
  const OpTimes* op_times() const override { return context_.op_times; }
  const SegmentTimes* segment_times() const override { return capture_ ? &segments_.times() : nullptr; }
  // For measuring what the always-on times cost.
  SegmentClock& segment_clock() { return segments_; }

  // Gives a result's memory back, so that the next step allocates nothing.
  void reuse(StepResult result) { spare_ = std::move(result); }
  // Taps, trace and repeats of the steps to come are set here.
  ExecutionContext& context() { return context_; }
  // Logits of the last step, row by row in plan order: [logits rows, vocab]. Gone where the step drafted. Fetched when
  // first asked for where the tokens were drawn on the device.
  std::span<const float> logits(std::int32_t row);
  const CachePools& pools() const { return pools_; }
  // Forward passes so far: of the trunk, and of draft blocks.
  std::int64_t num_forwards() const { return num_forwards_; }
  std::int64_t num_draft_forwards() const { return drafter_ == nullptr ? 0 : drafter_->num_forwards(); }
  std::int64_t num_draft_rows() const { return drafter_ == nullptr ? 0 : drafter_->num_rows(); }
  // Null where nothing is drafted.
  const Drafter* drafter() const { return drafter_.get(); }

 private:
  struct SequenceTables {
    std::int32_t state_slot = 0;
    std::vector<std::int32_t> context;
    std::vector<std::int32_t> window;  // logical blocks first_window, first_window + 1, ...
    std::int32_t first_window = 0;
    std::int64_t length = 0;
  };

  ModelExecutor(Model& model, const ModelExecutorOptions& options);
  Status allocate_pools(std::int32_t max_proposals);
  Status copy_resume_rows(const ResumeCopy& copy, bool save);
  void apply(const BlockTableDelta& delta);
  Status fill_step(const StepPlan& plan);
  std::int32_t num_empty_sequences(const StepPlan& plan) const;
  void add_empty_sequence(std::int32_t num_rows);
  // `draw`: with the drawing of tokens behind it.
  Result<View> forward(const StepPlan& plan, bool draw);
  Status fetch_logits();
  Status run_step(const StepPlan& plan, StepResult& result);
  Status draft(const StepPlan& plan, StepResult& result);
  void sample_sequence(const SequenceStep& step, const SampleSpec& spec, std::span<const TokenId> tokens,
                       std::int32_t first_logit_row, std::span<const SampledRow> drawn, SequenceResult& result);

  Model& model_;
  bool capture_ = false;
  bool fills_up_ = false;       // there is a block of each pool, and a state, that no sequence has
  std::int32_t num_empty_ = 0;  // of the step's sequences, those of nobody
  std::int32_t capture_owner_ = 0;
  ExecutorLimits limits_;
  ExecutionContext context_;
  DeviceMemory context_pool_, window_pool_, state_pool_, resume_pool_;
  CachePools pools_;
  OpTimes op_times_;
  SegmentClock segments_;
  std::unique_ptr<DeviceTracer> tracer_;
  bool is_device_traced_ = false;  // the tracer runs
  bool has_dropped_ = false;       // in this capture: captured steps whose records did not fit
  std::vector<std::shared_ptr<const CapturedStep>> replayed_;  // in this step
  StepInput input_;
  std::unordered_map<SequenceId, SequenceTables> sequences_;
  std::vector<TokenId> tokens_;           // of the step's rows
  std::vector<TokenId> previous_tokens_;  // of the step before, one per logits row
  std::optional<DeviceSampler> sampler_;  // where device memory is not host memory
  View device_logits_;                    // of the last step
  std::vector<float> host_logits_;        // where device memory is not host memory and logits are asked for
  const float* logits_ = nullptr;         // [logits rows, vocab], null until fetched
  SampleWorkspace workspace_;
  std::unique_ptr<Drafter> drafter_;
  std::vector<DraftedSequence> drafted_;  // of the step, reused
  std::int64_t num_forwards_ = 0;
  // Steps run inside launch(); at most two results wait.
  StepResult results_[2];
  int num_results_ = 0;
  StepResult spare_;
};

}  // namespace fathom
