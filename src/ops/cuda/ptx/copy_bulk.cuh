// Bulk copies from global to shared memory that report to a barrier there (sm_90 on).
#pragma once

#include "ops/cuda/ptx/mbarrier.cuh"

#if __CUDA_ARCH__ >= 900
namespace fathom::cuda {

// Arrives at the barrier, whose phase then waits for `num_bytes` more of copies.
__device__ __forceinline__ void mbarrier_arrive_expecting(std::uint64_t* barrier, std::uint32_t num_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(num_bytes)
               : "memory");
}
// `num_bytes`, a multiple of 16, as both addresses are.
__device__ __forceinline__ void copy_bulk(void* shared, const void* global, std::uint32_t num_bytes,
                                          std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(num_bytes), "r"(shared_address(barrier))
               : "memory");
}

}  // namespace fathom::cuda
#endif
