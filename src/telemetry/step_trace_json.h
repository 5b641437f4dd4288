// Captured steps as JSON: what a server's /stop_profile answers and `fathom profile --attach` reads.
//
// {"format": "fathom-capture", "version": 1, MEMBERS...,
//  "operations": [[operation, variant], ...],
//  "steps": [{"step", "tokens", "sequences", "drafts", "committed", "begin_us", "step_us", "turn_us", "schedule_us",
//             "launch_us", "wait_us", "commit_us", "detokenise_us", "prepare_us", "forward_us", "sample_us",
//             "draft_us", "collect_us", "calls": [[index of the operation, layer, begin_us, time_us, bytes, flops],
//             ...]}, ...]}
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "telemetry/step_trace.h"

namespace fathom {

inline constexpr std::string_view kCaptureFormat = "fathom-capture";
inline constexpr int kCaptureVersion = 1;

// `members`: JSON members that describe the run, "\"http_us\":12,...", or empty.
std::string captured_steps_json(std::span<const StepTrace> steps, std::string_view members);

}  // namespace fathom
