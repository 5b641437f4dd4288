// What collectors hand to the attribution: steps as calls and host phases on one time axis. Made from a StepTrace
// (CPU scopes), from CUPTI records or from event times; stored as JSON by the server's captures.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "profile/report.h"
#include "telemetry/step_trace.h"

namespace fathom {

// One kernel, or one operation call where there are no kernels. Times in microseconds since the step's begin.
struct TimelineCall {
  double begin_us = 0;
  double time_us = 0;
  std::int32_t lane = 0;    // stream; on the CPU one lane for the engine's operations
  std::int32_t layer = -1;  // as in OpScope
  std::string operation;
  std::string variant;
  std::string kernel;  // empty: the variant stands for it
  double bytes = 0;
  double flops = 0;

  double end_us() const { return begin_us + time_us; }
};

// What the host did; leaf phases do not overlap each other. A container holds calls (the forward pass, drafting) or
// the wait for the device: its empty stretches have no other name.
struct HostPhase {
  std::string name;
  double begin_us = 0;
  double time_us = 0;
  bool container = false;

  double end_us() const { return begin_us + time_us; }
};

struct TimelineStep {
  std::int64_t step = 0;
  std::int32_t num_tokens = 0, num_sequences = 0;
  double committed_tokens = 0;
  double experts_hit = 0;  // distinct routed experts, mean over the trunk's layers; 0: nobody counted
  double total_us = 0;     // from the end of the step before to its own end, or from its begin where the engine slept
  double collect_us = 0;   // of that, spent on the capture itself, between calls
  bool on_device = false;  // calls ran on a device, beside the host
  std::vector<HostPhase> phases;
  std::vector<TimelineCall> calls;  // by begin
};

TimelineStep step_of_trace(const StepTrace& trace);

// The server's answer to /stop_profile.
struct ParsedCapture {
  RunDescription run;  // what the server knows of it
  std::vector<TimelineStep> steps;
  double http_us = 0;  // busy time of the server's worker threads while it was taken
  std::vector<std::string> notes;
};
// `source` names the text in messages. Empty, truncated, not a capture, of another version, no steps: a Status that
// says which.
Result<ParsedCapture> parse_capture(std::string_view text, std::string_view source);

// Chrome's trace format: opens in Perfetto and chrome://tracing. Host and device lanes, one slice a call with its
// layer, variant, bytes and FLOPs; steps one after another.
std::string chrome_trace_json(std::span<const TimelineStep> steps, std::string_view title);

// gzip.
Result<std::string> compress_gzip(std::string_view text);

}  // namespace fathom
