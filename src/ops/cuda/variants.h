// The CUDA variants of the operations: named by operation and kernel, registered like the CPU ones.
#pragma once

#include "ops/registry.h"

namespace fathom {

// Every CUDA variant; the last one of an operation is its default. Present only in builds with CUDA.
void register_cuda_variants(OpRegistry& registry);

}  // namespace fathom
