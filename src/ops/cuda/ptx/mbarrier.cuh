// Barriers in shared memory that count arrivals (sm_90 on), and registers moved between warpgroups.
#pragma once

#include "ops/cuda/ptx/mma.cuh"

#if __CUDA_ARCH__ >= 900
namespace fathom::cuda {

__device__ __forceinline__ void mbarrier_init(std::uint64_t* barrier, int num_arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(num_arrivals) : "memory");
}
// What this thread did before is seen by those who wait.
__device__ __forceinline__ void mbarrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Until the phase of this parity is complete.
__device__ __forceinline__ void mbarrier_wait(std::uint64_t* barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}\n" ::"r"(
          shared_address(barrier)),
      "r"(parity)
      : "memory");
}

}  // namespace fathom::cuda
#endif
