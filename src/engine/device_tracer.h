// What an executor asks while a capture runs on a device: which kernels a step ran, and when. Steps are replayed as
// always; implementations (profile/) read the device's own records.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/captured_step.h"
#include "base/status.h"
#include "telemetry/op_observer.h"
#include "telemetry/traced_step.h"

namespace fathom {

class DeviceTracer {
 public:
  virtual ~DeviceTracer() = default;

  // Records from now on. Failure: there is nothing to record with; the capture then has the host's samples.
  virtual Status start() = 0;
  virtual void stop() = 0;
  // Before the first launch of a step; the device has nothing to do then.
  virtual void begin_step() = 0;
  // To be told of operations that are launched and not replayed; may be null.
  virtual OpObserver* observer() = 0;
  // Behind the step's last wait, and outside its time: what the device did since begin_step, by begin. `replayed`: the
  // captured steps that it replayed, in order.
  virtual Result<std::vector<DeviceSample>> end_step(std::span<const std::shared_ptr<const CapturedStep>> replayed) = 0;
};

}  // namespace fathom
