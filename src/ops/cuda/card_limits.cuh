// What launchers ask the card: how many blocks it takes at once and how much shared memory one may have.
#pragma once

#include <cuda_runtime.h>

namespace fathom::cuda {

struct CardLimits {
  int num_multiprocessors = 1, shared_bytes = 0;
};
// Of the device that is current; one block and no shared memory where it does not say.
inline CardLimits card_limits() {
  CardLimits limits;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&limits.num_multiprocessors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&limits.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
    return {};
  return limits;
}

}  // namespace fathom::cuda
