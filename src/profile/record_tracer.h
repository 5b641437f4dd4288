// Captures of a running engine on a device: the samples of each step from the device's own records, through replays.
#pragma once

#include <functional>
#include <memory>

#include "engine/device_tracer.h"
#include "profile/device_timeline.h"

namespace fathom {

// `open` is called when a capture starts; what it opened goes when the capture ends.
std::unique_ptr<DeviceTracer> make_record_tracer(std::function<Result<std::unique_ptr<DeviceRecorder>>()> open);

}  // namespace fathom
