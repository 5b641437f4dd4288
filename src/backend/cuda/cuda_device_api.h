// The CUDA run-time as a DeviceApi. No CUDA header here: the engine's side compiles without the toolkit.
#pragma once

#include <memory>

#include "backend/device_api.h"

namespace fathom::cuda {

// Device 0.
std::unique_ptr<DeviceApi> make_cuda_device_api();

}  // namespace fathom::cuda
