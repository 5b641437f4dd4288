// One captured step: what the host did, and what a device did beside it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "telemetry/step_trace.h"

namespace fathom {

// One kernel, copy or set of a device.
struct DeviceSample {
  std::int32_t layer = -1;  // as in OpScope
  std::int32_t lane = 0;    // its stream
  std::string operation;
  std::string variant;
  std::string kernel;
  double begin_us = 0;  // since StepTrace::origin
  double time_us = 0;
  OpCost cost;  // of the whole call, with its first kernel
};

// Where a device traced, its samples take the place of the host's.
struct TracedStep : StepTrace {
  bool on_device = false;
  std::vector<DeviceSample> device;
  std::string device_fault;  // why the device's samples are missing
};

}  // namespace fathom
