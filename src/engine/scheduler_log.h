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
  void drafts(SequenceId id, std::span<const TokenId> drafts) const;
  void plan(const StepPlan& plan) const;
  void commit(SequenceId id, std::span<const TokenId> new_tokens) const;
  void flush() const;

 private:
  SchedulerLogSink sink_;
};

// Every field of a plan, samples apart.
std::uint64_t plan_digest(const StepPlan& plan);

// Makes the recorded calls on a scheduler of its own. The number of steps, or where the log is not one, or where a plan
// comes out otherwise than it was recorded.
Result<std::int64_t> replay_scheduler_log(std::string_view text);

}  // namespace fathom
