#pragma once

#include "ops/linear/cuda_group.cuh"

namespace fathom::cuda {

// x as the kernels below read it. `quantised`: AQ(x), where an item asks for it; `sorted`: its columns stand where the
// products' fragments have them (LinearOrder::kFragments).
struct LinearSplitRows {
  const Bf16Bits *plain, *quantised;
  std::int64_t stride;
  std::int32_t num_tokens;
  bool sorted;
};

// Only where code for sm_90a is loaded; the group's tiles have kLinearWgmmaRows rows.
void launch_linear_split(const LinearCall& call, const LinearGroup& group, const Bf16Bits* quantised,
                         const LinearSplit& split, cudaStream_t stream);
void launch_linear_many_tiles(const LinearGroup& group, const LinearSplitRows& inputs, cudaStream_t stream);

}  // namespace fathom::cuda
