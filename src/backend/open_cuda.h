// The CUDA backend, where this program has one and the machine has a device for it.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "base/status.h"

namespace fathom {

// Whether this program was built with CUDA at all.
bool built_with_cuda();

// Failure: built without CUDA, no device, a driver too old, with what was found and what to do.
Result<std::unique_ptr<Backend>> open_cuda_backend();
// Registers the CUDA variants; does nothing in a build without CUDA.
void register_cuda_variants_if_built(OpRegistry& registry);

}  // namespace fathom
