// Whether the times that a profile attributes can be believed: the same calls one by one, each between two events
// behind a memory sweep that empties the caches and lets the host launch ahead.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "profile/model_step.h"
#include "profile/report.h"
#include "telemetry/op_observer.h"

namespace fathom {

// Told of every call of a step that is launched without a graph.
class IsolatingObserver : public OpObserver {
 public:
  // Microseconds of each call since it was last asked, in launch order, less what two events with nothing between them
  // show. Waits for the device.
  virtual Result<std::vector<double>> take_us() = 0;
};
// On the CUDA card, for launches on `stream`. Failure: built without CUDA, or the card's.
Result<std::unique_ptr<IsolatingObserver>> open_isolating_observer(void* stream);

// Around one step, for `ncu --profile-from-start off`; nothing where no profiler listens.
Status begin_profiler_range();
Status end_profiler_range();

// One operation, all its calls of a step together.
struct IsolatedRow {
  std::string operation;
  double calls = 0;          // of a step
  double launches = 0;       // of a step, all kernels of the calls
  double attributed_us = 0;  // summed time by the report
  double isolated_us = 0;    // medians of the rounds, summed
  double difference() const { return attributed_us / isolated_us - 1; }
};

inline constexpr double kIsolatedTolerance = 0.05;
// A launch that nothing runs before shows about 2 us more than one in the middle of a replay: operations whose launches
// are shorter than this on average cannot be held to the tolerance.
inline constexpr double kIsolatedLeast_us = 40;

// The step launched `num_rounds` times without a graph, beside the report of its replays. By falling attributed time.
Result<std::vector<IsolatedRow>> measure_isolated(ModelStep& step, IsolatingObserver& observer,
                                                  const ProfileReport& report, std::int32_t num_rounds);
std::string isolated_text(const std::vector<IsolatedRow>& rows);

}  // namespace fathom
