// Where a request's time went, from the engine's events: queued, its prefill, its decoding, the steps in which rows of
// others' prompts made it wait, and whose they were.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/events.h"

namespace fathom {

enum class SpanKind : std::uint8_t {
  kQueued,   // submitted, or preempted, and not (again) in the batch
  kPrefill,  // steps with rows of its prompt
  kDecode,   // steps that decode it and hold no other request's prefill
  kStall,    // steps that decode it beside other requests' prefill, or leave it out for that
  kPaused,   // in the batch and left out, nobody else to blame: its reader was slow, or nothing ran
};
std::string_view span_kind_name(SpanKind kind);  // "queued", "prefill", ...

// What another request's prefill took of a span.
struct SpanCause {
  RequestId request;
  std::int64_t num_rows = 0;
  std::int64_t us = 0;  // of each step, the share that those rows have in all its rows
};

// One after the other, without a gap, from submission to the end. Neighbours of one kind and with the same causes are
// one span, prefill apart: there every step is one.
struct TimelineSpan {
  SpanKind kind = SpanKind::kQueued;
  std::int64_t begin_us = 0, end_us = 0;  // on the engine's clock
  std::int32_t num_steps = 0;
  std::int64_t position = 0;      // prefill: where its rows begin
  std::int64_t num_rows = 0;      // its own in these steps
  std::int64_t num_tokens = 0;    // drawn
  std::vector<SpanCause> causes;  // stall: whose prefill; prefill: whose rows shared the steps
};

struct ChoiceTimeline {
  SequenceId sequence;
  bool complete = true;  // false: the ring no longer holds its beginning
  bool finished = false;
  std::int64_t cached_tokens = 0;  // that admission found
  std::int32_t num_preemptions = 0;
  std::vector<TimelineSpan> spans;
};

// `events` in the ring's order. One timeline a choice, by sequence.
std::vector<ChoiceTimeline> make_timelines(std::span<const EngineEvent> events, RequestId request);

}  // namespace fathom
