#pragma once

#include "ops/linear/cuda_group.cuh"

namespace fathom::cuda {

// Only where code for sm_90a is loaded; the group's tiles have kLinearWgmmaRows rows. `quantised`: AQ(x), where an item
// asks for it.
void launch_linear_split(const LinearCall& call, const LinearGroup& group, const Bf16Bits* quantised,
                         const LinearSplit& split, cudaStream_t stream);

}  // namespace fathom::cuda
