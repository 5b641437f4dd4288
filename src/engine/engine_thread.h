// The engine thread: owns the scheduler, the executor and every request under way.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "engine/event_ring.h"
#include "engine/mask_workers.h"
#include "engine/output_processor.h"
#include "engine/scheduler.h"
#include "engine/scheduler_log.h"
#include "engine/speculation.h"
#include "engine/stream_state.h"

namespace fathom::engine_detail {

class EngineThread {
 public:
  EngineThread(const EngineOptions& options, std::unique_ptr<Executor> executor,
               std::shared_ptr<const Tokenizer> tokenizer);
  ~EngineThread();

  // Any thread.
  Result<std::unique_ptr<Stream>> submit(Request request);
  EngineStats stats() const;
  EngineHealth health() const;
  std::int64_t now_us() const { return clock_->now_us(); }
  const ExecutorLimits& limits() const { return limits_; }
  const EngineOptions& options() const { return options_; }
  std::vector<EngineEvent> events(std::int64_t* next) const { return ring_.read(next); }
  void flush_prefix_cache();
  bool drain(std::chrono::milliseconds timeout);
  void shutdown();
  Status start_capture(std::int32_t num_steps);
  std::vector<TracedStep> stop_capture();
  std::int32_t num_steps_to_capture() const { return capture_steps_.load(); }

 private:
  struct ActiveRequest;
  // A token and the bits of its log probability, for the check of the prefix cache.
  struct Drawn {
    TokenId token;
    float logprob;
  };
  struct Choice {
    ActiveRequest* request = nullptr;
    std::int32_t index = 0;
    SequenceId sequence;
    OutputProcessor output;
    bool is_constrained = false;
    std::unique_ptr<TokenConstraint> constraint;  // null while its masks are made beside this thread
    std::shared_ptr<MaskJob> mask_job;
    bool masks_made = false;  // those of the next step lie in mask_job
    double mask_us = -1;      // that its masks of one step are expected to take; < 0: not known
    SampleSpec spec;
    std::vector<std::uint32_t> mask;  // [logits rows, words]
    std::vector<TokenId> forced;      // [logits rows]
    std::vector<SampledToken> prompt_logprobs;
    std::vector<Drawn> drawn;  // check_prefix_cache only
    Usage usage;
    Acceptance acceptance{DepthPolicy::kRequestTrials};
    RequestTimes times;
    std::map<RequestId, std::int64_t> stalls_us;  // by the request whose prefill caused them
    bool finished = false;

    Choice(const Request& asked, const Tokenizer* tokenizer, TokenId eos_id) : output(asked, tokenizer, eos_id) {}
  };
  struct ActiveRequest {
    RequestId id;
    Request request;
    std::shared_ptr<StreamState> stream;  // null: a second computation for check_prefix_cache
    std::vector<std::unique_ptr<Choice>> choices;
    std::size_t num_open = 0;
    bool queued = true;  // counts for the mailbox's bounds
    std::int64_t deadline_us = 0;
    std::vector<Drawn> expected;  // of a second computation
  };

  void loop();
  void handle(Command& command);
  void start(Command& command);
  void start_request(std::unique_ptr<ActiveRequest> active, std::uint64_t seed, std::int32_t first_choice,
                     std::int64_t submitted_us);
  void end_request(ActiveRequest& active, FinishReason reason, const Status& error);
  void end_all(FinishReason reason, const Status& error);
  void check_deadlines();
  bool run_step();
  void begin_trace();
  void end_trace();
  void note_admissions();
  void fill_samples(StepPlan& plan);
  std::int32_t plan_depth(StepPlan& plan);
  void account_drafts(Choice& choice, const SequenceStep& step, const SequenceResult& got);
  void begin_step_time(const StepPlan& plan, const StepResult& result, std::int64_t begin_us);
  void end_step_time(std::int64_t next_begin_us);
  static bool is_constrained(const Choice& choice, std::span<const TokenId> drafts);
  void begin_masks(Choice& choice);
  void take_masks();
  void drop_masks(Choice& choice);
  void fill_masks(Choice& choice, const SequenceState& state, std::int32_t num_rows, std::int32_t num_drafts);
  void fail(const Status& error);
  void commit_step(const StepPlan& plan, const StepResult& result, std::int64_t begin_us);
  void account_stalls(const StepPlan& plan, std::int64_t step_us);
  void keep_prompt_logprobs(Choice& choice, const SequenceStep& step, const SequenceResult& result);
  void give_output(Choice& choice, std::span<const SampledToken> tokens);
  void give_outputs();
  void finish_choice(Choice& choice, Delta delta, FinishReason reason, const OutputProcessor::Stop* stop,
                     const Status& error);
  void start_check(const Choice& choice);
  void finish_check(const Choice& choice);
  void count_open_requests(std::int64_t change);
  void send(ActiveRequest& active, Delta delta);
  // Takes what the scheduler remembers, as having happened at time_us.
  void collect_events(std::int64_t time_us);
  void publish_events();
  void publish_stats();

  EngineOptions options_;
  std::unique_ptr<Executor> executor_;
  const ExecutorLimits limits_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  SteadyClock steady_clock_;
  const Clock* clock_;
  TokenId eos_id_ = -1;
  std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  std::atomic<std::int64_t> next_request_{1};
  EventRing ring_;

  // Engine thread only.
  Scheduler scheduler_;
  SchedulerLog scheduler_log_;
  std::unordered_map<RequestId, std::unique_ptr<ActiveRequest>> requests_;
  std::unordered_map<SequenceId, Choice*> choices_;
  std::vector<std::unique_ptr<ActiveRequest>> ended_;  // kept until the loop's turn is over
  std::int64_t next_sequence_ = 1;
  std::int64_t num_ended_ = 0;       // requests, in this turn
  std::vector<EngineEvent> events_;  // of this turn
  EngineStats counts_;
  struct Output {
    Choice* choice;
    std::span<const SampledToken> tokens;
    std::int32_t num_drafts;
  };
  std::vector<Output> outputs_;                // of the step
  std::unique_ptr<MaskWorkers> mask_workers_;  // from the first constrained choice on
  std::vector<Choice*> masking_;               // whose masks are made there
  double step_masks_us_ = 0;                   // expected of masks made on this thread before the next step
  std::vector<TokenId> ids_;                   // of one of its sequences
  TracedStep trace_;
  bool tracing_ = false;                // this step goes into the capture
  std::int64_t last_step_end_us_ = -1;  // -1: the engine has slept since
  DepthPolicy depth_policy_;
  std::optional<DraftedStep> last_step_;  // until the next one begins: only then its time is known
  std::int64_t last_step_begin_us_ = 0;
  AcceptanceAlarm acceptance_alarm_;
  std::vector<const Acceptance*> acceptances_;  // of the step's decoding requests
  Status fault_;                                // of the device; final
  bool stopping_ = false;

  // Shared.
  mutable std::mutex mutex_;
  mutable std::condition_variable idle_;
  EngineStats stats_;
  std::vector<TracedStep> captured_;            // guarded by mutex_
  std::atomic<std::int32_t> capture_steps_{0};  // still to be captured; written under mutex_
  Status failure_;                              // fault_, for the others
  std::int64_t num_open_requests_ = 0;          // submitted and not ended
  std::atomic<std::int64_t> step_started_us_{-1};
  std::atomic<std::int64_t> step_running_{0};
  std::atomic<std::int64_t> num_refused_{0}, num_submitted_{0};
  std::atomic<bool> loop_ended_{false};
  std::thread thread_;
};

// The request against the model's limits; messages begin with the field's name.
Status check_request(const Request& request, const EngineOptions& options, const ExecutorLimits& limits,
                     std::int64_t max_sequence_tokens, bool has_tokenizer);

}  // namespace fathom::engine_detail
