// A scheduler's life as text, and played again: one line a call, a digest of every plan. For finding out what
// happened; holds the token ids of prompts and answers.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/scheduler.h"

namespace fathom {

// Sinks get whole lines, with their end.
using SchedulerLogSink = std::function<void(std::string_view line)>;

class SchedulerLog {
 public:
  SchedulerLog() = default;
  SchedulerLog(SchedulerLogSink sink, const SchedulerOptions& options, const ExecutorLimits& limits);

  explicit operator bool() const { return static_cast<bool>(sink_); }
  void add(const SequenceSpec& spec) const;
  void finish(SequenceId id, bool cancelled) const;
  void paused(SequenceId id, bool paused) const;
  void held(SequenceId id, bool held) const;
  void drafts(SequenceId id, std::span<const TokenId> drafts) const;
  void plan(const StepPlan& plan) const;
  void commit(SequenceId id, std::span<const TokenId> new_tokens) const;
  void flush() const;

 private:
  SchedulerLogSink sink_;
};

// Every field of a plan, samples apart.
std::uint64_t plan_digest(const StepPlan& plan);

// What a recorded life came to.
struct ReplayReport {
  std::int64_t num_lines = 0, num_steps = 0;
  std::int64_t cut_line = 0;  // the number of a last line without its end, which is not played; 0: there is none
  std::int64_t num_sequences = 0, num_cancelled = 0;
  std::int64_t prefill_rows = 0, decode_rows = 0, drawn_tokens = 0;
  std::int64_t most_prefill_rows = 0;  // of a step in which others decoded
  std::int64_t preemptions = 0, prefix_hits = 0, cached_tokens = 0, evicted_blocks = 0;
  std::int64_t longest_wait_steps = 0;  // from submission to admission
  std::int32_t most_running = 0, most_context_blocks = 0;
};

// Makes the recorded calls on a scheduler of its own and judges the life: each plan is the recorded one; after each
// call blocks and state slots add up; plans keep the limits, hold a sequence once and begin where its cache ends;
// prefill keeps its share beside decodes; when no sequence is left no block is held. A log may end in the middle of a
// line (its server was killed, or still runs): what stands before it is judged. Failure: the line, and what is wrong
// there. `on_event` (may be empty) hears of every event, without times.
Result<ReplayReport> replay_scheduler_log(std::string_view text,
                                          const std::function<void(const EngineEvent&)>& on_event = {});

}  // namespace fathom
