// A device made of host memory: the engine's device side (own memory, staged copies, results brought back, faults) runs
// on a machine without a GPU, with the CPU's operations. Work is done when it is launched, so waits are over at once.
#pragma once

#include <memory>

#include "backend/device_api.h"

namespace fathom {

// `total_bytes`: allocations beyond it fail as on a full card.
std::unique_ptr<DeviceApi> make_emulated_device_api(std::int64_t total_bytes);

}  // namespace fathom
