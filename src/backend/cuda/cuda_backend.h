// The backend on one CUDA device. No CUDA header here: the engine's side compiles without the toolkit.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace fathom::cuda {

// Device 0. Failure: no device, or a driver that is too old.
Result<std::unique_ptr<Backend>> make_cuda_backend();

}  // namespace fathom::cuda
