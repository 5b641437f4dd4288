// Whether the times that a profile attributes can be believed. Two checks by events, which know nothing of records:
//
// - Repeated: the operation runs some times more inside the captured step; the replay's event time grows by what those
//   launches take. The records of the same replay attribute a time to the same launches. Events see from one kernel's
//   end to the next one's, so each launch shows what an empty one does between two kernels; that is taken off.
// - Alone: each call between two events, behind a sweep that empties the caches. An upper bound: in a step the call's
//   inputs are in the cache, and other launches stand before it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "profile/device_timeline.h"
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

// Microseconds of an empty kernel in a long chain of them that is replayed as a graph, by events.
class EmptyLaunches {
 public:
  virtual ~EmptyLaunches() = default;
  virtual Result<double> run_us() = 0;
};
Result<std::unique_ptr<EmptyLaunches>> open_empty_launches(void* stream);

// Around one step, for `ncu --profile-from-start off`; nothing where no profiler listens.
Status begin_profiler_range();
Status end_profiler_range();

// One operation, all its calls of a step together.
struct IsolatedRow {
  std::string operation;
  double calls = 0;          // of a step
  double launches = 0;       // of a step, all kernels of the calls
  double attributed_us = 0;  // summed time by the report
  double alone_us = 0;       // medians of the rounds, summed
  // Of one repeat of all the calls; 0: not measured.
  double repeated_us = 0;        // by the records
  double repeated_event_us = 0;  // by events, less the launches' share
  double difference() const { return repeated_us / repeated_event_us - 1; }
};

inline constexpr double kIsolatedTolerance = 0.05;

class IsolatedCheck {
 public:
  // The operations of the report. All must outlive the check.
  IsolatedCheck(Model& model, ModelStep& step, const ProfileReport& report, std::int32_t num_rounds);

  // First, while records are taken: what they attribute to repeats.
  Status attribute_repeats(DeviceRecorder& recorder, EmptyLaunches& empty);
  // Then, when none are taken any more: they slow what events see.
  Status time_repeats(EmptyLaunches& empty);
  Status time_alone(IsolatingObserver& observer);

  // By falling attributed time.
  std::vector<IsolatedRow> rows() const;
  double launch_us() const { return launch_us_; }  // of events, per launch

 private:
  std::int32_t num_extra(const IsolatedRow& row) const;
  // Event time of one replay of the step, the operation so many times more.
  Result<double> replay_us(const std::string& operation, std::int32_t num_extra);

  Model& model_;
  ModelStep& step_;
  std::int32_t num_rounds_;
  std::map<std::string, IsolatedRow> rows_;
  double empty_record_us_ = 0, launch_us_ = 0;
};

// [{"operation", "calls", "launches", "attributed_us", "alone_us", "repeated_us", "repeated_event_us"}, ...]
std::string isolated_json(const std::vector<IsolatedRow>& rows);
std::string isolated_text(const std::vector<IsolatedRow>& rows, double launch_us);

}  // namespace fathom
