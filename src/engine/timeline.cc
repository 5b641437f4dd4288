#include "engine/timeline.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>

namespace fathom {
namespace {

struct StepShare {
  std::int64_t begin_us = 0, end_us = 0;
  std::int64_t num_rows = 0;
  std::map<RequestId, std::int64_t> prefill_rows;  // by whose
};

std::unordered_map<std::int64_t, StepShare> steps_of(std::span<const EngineEvent> events) {
  std::unordered_map<std::int64_t, StepShare> steps;
  for (const EngineEvent& event : events) {
    if (event.kind == EventKind::kPlan) {
      StepShare& step = steps[event.step];
      step.begin_us = step.end_us = event.time_us;
      step.num_rows += event.num_tokens;
      if (event.prefill) step.prefill_rows[event.request] += event.num_tokens;
    } else if (event.kind == EventKind::kCommit) {
      StepShare& step = steps[event.step];
      step.end_us = std::max(step.end_us, event.time_us);
    }
  }
  return steps;
}

void add_causes(std::vector<SpanCause>& causes, const StepShare& step, RequestId own) {
  for (const auto& [request, rows] : step.prefill_rows) {
    if (request == own) continue;
    auto at = std::find_if(causes.begin(), causes.end(), [&](const SpanCause& c) { return c.request == request; });
    if (at == causes.end()) at = causes.insert(causes.end(), {request, 0, 0});
    at->num_rows += rows;
    at->us += (step.end_us - step.begin_us) * rows / std::max<std::int64_t>(1, step.num_rows);
  }
}

bool same_causes(const std::vector<SpanCause>& a, const std::vector<SpanCause>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const SpanCause& x, const SpanCause& y) { return x.request == y.request; });
}

// Follows one sequence through the events.
class Builder {
 public:
  Builder(const std::unordered_map<std::int64_t, StepShare>& steps, RequestId request)
      : steps_(steps), request_(request) {}

  void take(const EngineEvent& event) {
    line_.sequence = event.sequence;
    if (at_us_ < 0 && event.kind != EventKind::kSubmit) {
      line_.complete = false;
      at_us_ = event.time_us;
      outside_ = event.kind == EventKind::kAdmit || event.kind == EventKind::kResume;
    }
    switch (event.kind) {
      case EventKind::kSubmit:
        at_us_ = event.time_us;
        outside_ = true;
        break;
      case EventKind::kAdmit: line_.cached_tokens = event.num_tokens; [[fallthrough]];
      case EventKind::kResume:
        wait_until(event.time_us, event.step);
        outside_ = false;
        break;
      case EventKind::kPlan: begin_step(event); break;
      case EventKind::kCommit: end_step(event); break;
      case EventKind::kPreempt:
        wait_until(event.time_us, event.step);
        ++line_.num_preemptions;
        outside_ = true;
        break;
      case EventKind::kFinish:
        wait_until(event.time_us, event.step + 1);
        line_.finished = true;
        break;
      case EventKind::kCancel:
      case EventKind::kEvict: break;
    }
  }
  ChoiceTimeline&& line() { return std::move(line_); }

 private:
  // The time since the last span, in which no step had rows of this sequence.
  void wait_until(std::int64_t time_us, std::int64_t before_step) {
    if (time_us <= at_us_) return;
    TimelineSpan span;
    span.kind = outside_ ? SpanKind::kQueued : SpanKind::kPaused;
    span.begin_us = at_us_;
    span.end_us = time_us;
    if (!outside_ && last_step_ >= 0) {
      for (std::int64_t step = last_step_ + 1; step < before_step; ++step) {
        if (const auto found = steps_.find(step); found != steps_.end())
          add_causes(span.causes, found->second, request_);
      }
      if (!span.causes.empty()) span.kind = SpanKind::kStall;
      // The engine's own work between two steps that follow each other belongs to the span before.
      const bool between = span.causes.empty() && before_step <= last_step_ + 1;
      if (between && !line_.spans.empty()) {
        line_.spans.back().end_us = time_us;
        at_us_ = time_us;
        return;
      }
    }
    append(std::move(span));
  }

  void begin_step(const EngineEvent& event) {
    wait_until(event.time_us, event.step);
    const StepShare& step = steps_.at(event.step);
    TimelineSpan span;
    span.begin_us = at_us_;
    span.end_us = step.end_us;
    span.num_steps = 1;
    span.position = event.length;
    span.num_rows = event.num_tokens;
    add_causes(span.causes, step, request_);
    span.kind = event.prefill ? SpanKind::kPrefill : span.causes.empty() ? SpanKind::kDecode : SpanKind::kStall;
    append(std::move(span));
    last_step_ = event.step;
  }

  void end_step(const EngineEvent& event) {
    if (!line_.spans.empty()) line_.spans.back().num_tokens += event.num_tokens;
  }

  void append(TimelineSpan span) {
    at_us_ = std::max(at_us_, span.end_us);
    if (!line_.spans.empty() && span.kind != SpanKind::kPrefill) {
      TimelineSpan& last = line_.spans.back();
      if (last.kind == span.kind && same_causes(last.causes, span.causes)) {
        last.end_us = span.end_us;
        last.num_steps += span.num_steps;
        last.num_rows += span.num_rows;
        for (std::size_t i = 0; i < last.causes.size(); ++i) {
          last.causes[i].num_rows += span.causes[i].num_rows;
          last.causes[i].us += span.causes[i].us;
        }
        return;
      }
    }
    line_.spans.push_back(std::move(span));
  }

  const std::unordered_map<std::int64_t, StepShare>& steps_;
  RequestId request_;
  ChoiceTimeline line_;
  std::int64_t at_us_ = -1;  // the spans reach up to here
  std::int64_t last_step_ = -1;
  bool outside_ = true;  // not in the batch
};

}  // namespace

std::string_view span_kind_name(SpanKind kind) {
  switch (kind) {
    case SpanKind::kQueued: return "queued";
    case SpanKind::kPrefill: return "prefill";
    case SpanKind::kDecode: return "decode";
    case SpanKind::kStall: return "stall";
    case SpanKind::kPaused: return "paused";
  }
  return "";
}

std::vector<ChoiceTimeline> make_timelines(std::span<const EngineEvent> events, RequestId request) {
  const auto steps = steps_of(events);
  std::map<SequenceId, Builder> builders;
  for (const EngineEvent& event : events) {
    if (event.request != request) continue;
    builders.try_emplace(event.sequence, steps, request).first->second.take(event);
  }
  std::vector<ChoiceTimeline> lines;
  for (auto& [sequence, builder] : builders) lines.push_back(std::move(builder.line()));
  return lines;
}

}  // namespace fathom
