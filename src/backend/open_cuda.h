// Backends on a device: CUDA, where this program has it and the machine a device, and one emulated in host memory.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/device_backend.h"
#include "base/status.h"

namespace fathom {

// Whether this program was built with CUDA at all.
bool built_with_cuda();

// Failure: built without CUDA, no device, a driver too old, with what was found and what to do. A fault named by
// FATHOM_DEVICE_FAULT (faulty_device_api.h) is injected, so that a fault's whole way can be tried on any machine.
Result<std::unique_ptr<Backend>> open_cuda_backend(const DeviceBackendOptions& options);
// The same way on a machine without a GPU: CPU operations in memory of its own.
Result<std::unique_ptr<Backend>> open_emulated_backend(const DeviceBackendOptions& options);
// Registers the CUDA variants; does nothing in a build without CUDA.
void register_cuda_variants_if_built(OpRegistry& registry);

}  // namespace fathom
