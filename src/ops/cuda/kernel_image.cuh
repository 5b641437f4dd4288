// Which code of a kernel the driver loaded: kernels that need sm_90 exist as empty bodies in other images.
#pragma once

#include <cuda_runtime.h>

namespace fathom::cuda {

// Whether `kernel` runs from code made for sm_90 (clusters) or sm_90a (warpgroup products). False for sm_80 code
// or PTX on an sm_90 card, and on sm_120, whose code has no warpgroup products.
template <typename Kernel>
bool compiled_for_sm90(Kernel kernel) {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess) return false;
  return attributes.binaryVersion == 90 && attributes.ptxVersion >= 90;
}

}  // namespace fathom::cuda
