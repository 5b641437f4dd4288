// Asynchronous copies from global to shared memory (sm_80 on): past registers.
#pragma once

#include "ops/cuda/ptx/mma.cuh"

namespace fathom::cuda {

__device__ __forceinline__ void copy_async_16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}
// The same of bytes whose whole 128-byte line is wanted.
__device__ __forceinline__ void copy_async_16_once(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global)
               : "memory");
}
__device__ __forceinline__ void copy_async_8(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all but the last kPending groups that this thread has committed are there; others' copies need a barrier.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace fathom::cuda
