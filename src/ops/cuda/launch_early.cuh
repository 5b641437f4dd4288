// A launch that may begin while the one before it on the stream still runs (programmatic dependent launch, sm_90 on).
//
// Such a kernel may fetch weights, which no launch writes, until await_earlier_launches(); only after it may it read
// anything else, or write. Every block of it waits, also one without work: the launch behind it waits for it alone, and
// so for what ran before only if it did. It begins once every block of the launch before has called admit_next_launch()
// or has ended, so its blocks keep none of those from a multiprocessor. Behind a kernel that does not call it, or a
// copy, it begins as any launch does.
#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/kernel_image.cuh"

namespace fathom::cuda {

// Until every launch before has ended and all that it wrote is seen.
__device__ __forceinline__ void await_earlier_launches() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void admit_next_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// 16 bytes of weights, asked for where this stands: a read through the read-only cache (__ldg) may be moved behind the
// wait, to where it is first used.
__device__ __forceinline__ uint4 load_weights_now(const void* pointer) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(pointer));
  return v;
}

// Whether the loaded code of `kernel` waits: sm_80 code (or its PTX on a newer card) does not and must begin as always.
template <typename Kernel>
bool may_begin_early(Kernel kernel) {
  return compiled_for_sm90(kernel);
}

// kernel<<<grid, threads, shared_bytes, stream>>>(arguments...), early if `early`. A failure shows as the launch's.
template <typename... Parameters, typename... Arguments>
void launch_early(void (*kernel)(Parameters...), bool early, dim3 grid, int threads, std::size_t shared_bytes,
                  cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

}  // namespace fathom::cuda
