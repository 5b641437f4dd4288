// The engine's public face: submit requests, read streams, ask how it is (contract: README.md in this folder).
//
// One engine thread owns all scheduler state. Everything declared here may be called from any thread and never
// waits for a step, shutdown(), drain() and Stream::wait() apart.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/clock.h"
#include "engine/events.h"
#include "engine/executor.h"
#include "engine/request.h"
#include "ops/cache_view.h"
#include "telemetry/step_trace.h"
#include "text/tokenizer.h"

namespace fathom {

struct EngineOptions {
  // Prefill rows of a step: while other requests decode (bounds what a prompt adds to their inter-token latency), while
  // several prompts and nothing else are computed, and while one is.
  std::int32_t prefill_chunk_tokens = 96;
  std::int32_t prefill_chunk_shared_tokens = 256;
  std::int32_t prefill_chunk_alone_tokens = 512;
  std::int32_t max_running = 64;             // sequences with cache state; at most the executor's state slots
  std::int32_t max_queued_requests = 256;    // waiting for a state slot; beyond: kResourceExhausted
  std::int64_t max_queued_tokens = 1 << 20;  // their prompt tokens, together
  std::int32_t ageing_steps = 64;            // a request that waits so many steps rises by one priority
  std::int32_t max_pending_deltas = 64;      // a stream with so many untaken deltas pauses its request
  std::int32_t max_choices = 128;
  std::int32_t max_logprobs = 20;
  std::int32_t num_drafts = 0;  // drafts asked of the executor, a decode step; at most its limit
  // num_drafts is the most; each step's number follows from measured step times and acceptance (speculation.h).
  bool adaptive_drafts = false;
  // Of masks of constraints that a step waits for, and that are made on the engine's thread. What takes longer is made
  // beside it; its choice sits steps out meanwhile. < 0: all on the engine's thread.
  std::int64_t mask_budget_us = 2000;
  TokenId eos_id = -1;  // -1: the tokenizer's; without a tokenizer, none
  bool prefix_cache = true;
  bool reuse_decoded = false;  // decoded blocks enter the prefix cache though the executor's classes differ
  // Each request that hit the prefix cache is computed a second time without it and compared, log probabilities
  // bit by bit (EngineStats::prefix_checks_failed).
  bool check_prefix_cache = false;
  std::int64_t step_timeout_us = 0;   // health fails while a step takes longer; 0: never
  std::int32_t num_events = 1 << 16;  // the ring's size
  std::uint64_t seed = 0;             // of the seeds drawn for requests without one; 0: from the machine's entropy
  const Clock* clock = nullptr;       // must outlive the engine; null: the machine's
  // Every call of the scheduler, line by line, token ids included: replay_scheduler_log() plays them again.
  std::function<void(std::string_view)> scheduler_log;
  std::function<void(const StepTrace&)> on_step;  // called by the engine thread after each step; must be quick
};

// Counters since start and gauges of the last commit.
struct EngineStats {
  // Gauges.
  std::int32_t num_running = 0;  // sequences with cache state
  std::int32_t num_waiting = 0;  // sequences without
  std::int32_t num_paused = 0;   // of the running, those whose reader is slow
  std::int64_t queued_tokens = 0;
  std::int32_t context_blocks = 0, context_blocks_used = 0, context_blocks_cached = 0;  // cached: free when needed
  std::int32_t window_blocks = 0, window_blocks_used = 0, window_blocks_cached = 0;
  std::int32_t resume_points = 0;
  double last_step_us = 0;
  std::int32_t last_step_rows = 0;
  // Counters.
  std::int64_t num_steps = 0;
  std::int64_t first_use_steps = 0;  // of those, with a first forward or first drafts (StepResult)
  std::int64_t requests_submitted = 0, requests_refused = 0;
  std::array<std::int64_t, 8> choices_finished{};  // by FinishReason
  std::int64_t prompt_tokens = 0;                  // of admitted sequences, cached ones included
  std::int64_t cached_tokens = 0;
  std::int64_t prefill_tokens = 0;     // rows computed for prompts, those of rebuilt sequences included
  std::int64_t generation_tokens = 0;  // committed
  std::int64_t prefix_queries = 0, prefix_hits = 0;
  std::int64_t evicted_blocks = 0, evicted_resume_points = 0;
  std::int64_t preemptions = 0;
  std::int64_t prefix_checks = 0, prefix_checks_failed = 0;
  std::int64_t draft_steps = 0, drafted_tokens = 0, accepted_tokens = 0;
  // Of drafts that followed right ones: lately, and as it used to be. The alarm: lately is far below that.
  double draft_acceptance = 0, draft_acceptance_history = 0;
  bool draft_alarm = false;
  std::int64_t draft_alarms = 0;
  std::int32_t draft_depth = 0;  // asked for in the last step
  std::array<std::int64_t, kMaxDraft> accepted_per_position{};
  std::int64_t masks_beside = 0;  // steps' masks of a choice, made beside the engine's thread
  double busy_us = 0;             // time inside steps
  // The same by what the host did (StepTrace), planning and answering included.
  double turn_us = 0, schedule_us = 0, prepare_us = 0, forward_us = 0, sample_us = 0, draft_us = 0, commit_us = 0,
         detokenise_us = 0;
  OpTimes op_times;            // of the executor; zero where it does not know them
  SegmentTimes segment_times;  // likewise
};

inline constexpr std::int32_t kMaxCapturedSteps = 10'000;

struct EngineHealth {
  bool ok = true;
  std::string reason;                // where not ok
  std::int64_t step_running_us = 0;  // age of the step in flight; 0: none
};

namespace engine_detail {
class StreamState;
class EngineThread;
}  // namespace engine_detail

// The reader's end of one request. Dropping it cancels the request.
class Stream {
 public:
  explicit Stream(std::shared_ptr<engine_detail::StreamState> state);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  RequestId id() const;
  // What has arrived, in order; empty if nothing has. Never waits.
  std::vector<Delta> take();
  // The same, but waits for something to arrive, at most `timeout`.
  std::vector<Delta> wait(std::chrono::milliseconds timeout);
  // Every choice's Finish has been taken.
  bool finished() const;
  // The request leaves the batch before the next step is planned; its choices end as kCancelled.
  void cancel();

 private:
  std::shared_ptr<engine_detail::StreamState> state_;
};

class Engine {
 public:
  // Starts the engine thread. `tokenizer` may be null: then deltas carry no text and stop strings are refused.
  static Result<std::unique_ptr<Engine>> make(const EngineOptions& options, std::unique_ptr<Executor> executor,
                                              std::shared_ptr<const Tokenizer> tokenizer);
  // shutdown(), then joins.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Failures: kInvalidArgument (the message begins with the Request field's name and ": "), kResourceExhausted (the
  // queue is full, or the request could never fit the cache), kUnavailable (draining, shut down, device fault).
  Result<std::unique_ptr<Stream>> submit(Request request);

  EngineStats stats() const;
  EngineHealth health() const;
  const ExecutorLimits& limits() const;
  const EngineOptions& options() const;
  // On the clock of RequestTimes and events.
  std::int64_t now_us() const;
  // Events still in the ring with number >= *next; sets *next behind the last one returned.
  std::vector<EngineEvent> events(std::int64_t* next) const;

  // Keeps the traces of the next `num_steps` steps, samples included. Failure: out of 1 to kMaxCapturedSteps, or a
  // capture that is not over.
  Status start_capture(std::int32_t num_steps);
  // Ends it and takes what it has; empty where nothing ran.
  std::vector<TracedStep> stop_capture();
  // Steps that the running capture waits for; 0: none runs.
  std::int32_t num_steps_to_capture() const;

  // Drops every cached block that no sequence uses.
  void flush_prefix_cache();
  // Refuses new requests and waits until all have ended, at most `timeout`. True: all have, and statistics and events
  // say so.
  bool drain(std::chrono::milliseconds timeout);
  // Refuses new requests and ends all streams with kShutdown.
  void shutdown();

 private:
  explicit Engine(std::unique_ptr<engine_detail::EngineThread> thread);
  std::unique_ptr<engine_detail::EngineThread> thread_;
};

}  // namespace fathom
