#pragma once

#include "ops/linear/cuda_group.cuh"

namespace fathom::cuda {

// linear/mma for at most eight rows of x, where the device's shared memory takes it; false: nothing was launched.
// `quantised`: AQ(x) where the caller has it.
bool launch_linear_stream(const LinearCall& call, std::span<const LinearItem> items, const Bf16Bits* quantised,
                          cudaStream_t stream);

}  // namespace fathom::cuda
