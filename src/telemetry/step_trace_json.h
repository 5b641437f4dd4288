// Captured steps as JSON: what a server's /stop_profile answers and `fathom profile --attach` reads.
//
// {"format": "fathom-capture", "version": 1, MEMBERS...,
//  "operations": [[operation, variant], ...],
//  "steps": [{"step", "tokens", "sequences", "drafts", "committed", "begin_us", "step_us", "turn_us", "schedule_us",
//             "launch_us", "wait_us", "commit_us", "detokenise_us", "prepare_us", "forward_us", "sample_us",
//             "draft_us", "collect_us", "calls": [[index of the operation, layer, begin_us, time_us, bytes, flops],
//             ...]}, ...]}
// Where a device traced, "kernels": [name, ...] stands behind the operations, and a step has, beside its empty calls,
// "device": [[index of the operation, layer, begin_us, time_us, bytes, flops, index of the kernel, stream], ...] or
// "device_fault": why there are none.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "telemetry/traced_step.h"

namespace fathom {

inline constexpr std::string_view kCaptureFormat = "fathom-capture";
inline constexpr int kCaptureVersion = 1;

// `members`: JSON members that describe the run, "\"http_us\":12,...", or empty.
std::string captured_steps_json(std::span<const TracedStep> steps, std::string_view members);

}  // namespace fathom
