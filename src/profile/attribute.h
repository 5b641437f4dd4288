// From timelines to a report: every microsecond of a step goes to a call, to the host, to idle time, or is printed as
// unaccounted.
//
// The critical path is walked backwards from the step's end: the call that ended last explains the time back to its
// begin; the gap before it is the host's, by the phases that lie there, or idle time of the device; then the call that
// had ended by then, the same lane's first. A call on a parallel lane that ends before its join explains nothing. The
// walk sees times, not dependencies: it is an estimate, and stands beside the measured exposed time.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "profile/report.h"
#include "profile/timeline.h"

namespace fathom {

struct StepAttribution {
  std::vector<double> call_us;            // one per call of the step: its part of the critical path
  std::map<std::string, double> host_us;  // by phase; "collect": the capture itself
  double idle_us = 0;
  double unaccounted_us = 0;  // total less all of the above
};

StepAttribution attribute_step(const TimelineStep& step);

// Fills what follows from the steps of each repeat: step_us, rows, host gaps, idle and unaccounted time, token counts.
// `http_us`: one per repeat, or none; it runs on other threads and is never on the critical path.
void attribute_repeats(std::span<const std::vector<TimelineStep>> repeats, std::span<const double> http_us,
                       ProfileReport& report);

// How steady the steps of a report are.
struct Steadiness {
  double spread = 0;  // of steps inside a repeat: (90th - 10th percentile) / median, the median repeat's
  double drift = 0;   // second half of a repeat against its first, relative; the median repeat's
  bool steady = false;
};
inline constexpr double kSteadySpread = 0.25;
inline constexpr double kSteadyDrift = 0.05;
Steadiness judge_steadiness(const ProfileReport& report);

}  // namespace fathom
