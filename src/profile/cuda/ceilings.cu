// What the card can do at most, measured now: bytes read and written by a copy that fills it, and bf16 tensor
// arithmetic on registers (mma.sync m16n8k16; Hopper's warpgroup instructions reach more).
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "profile/device_timeline.h"

namespace fathom {
namespace {

constexpr std::int64_t kCopyBytes = std::int64_t{1} << 30;
constexpr int kMmaSteps = 2048;
constexpr int kChains = 8;

__global__ void copy_words(const uint4* from, uint4* to, std::int64_t count) {
  const std::int64_t stride = std::int64_t{blockDim.x} * gridDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) to[i] = from[i];
}

__global__ void multiply(float* out, std::uint32_t seed) {
  float sums[kChains][4] = {};
  const std::uint32_t a = 0x3f803f80u ^ seed, b = 0x3f803f80u + threadIdx.x * seed;
  for (int step = 0; step < kMmaSteps; ++step) {
#pragma unroll
    for (int chain = 0; chain < kChains; ++chain) {
      float* c = sums[chain];
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%5,%5}, {%0,%1,%2,%3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a), "r"(b));
    }
  }
  float sum = 0;
  for (const auto& chain : sums) sum += chain[0] + chain[1] + chain[2] + chain[3];
  if (sum == 12345.678f) out[threadIdx.x] = sum;  // keeps the arithmetic alive
}

__global__ void nothing() {}

Status status_of(cudaError_t error) {
  if (error == cudaSuccess) return {};
  return unavailable(std::string("measuring the card's ceilings failed: ") + cudaGetErrorString(error));
}

template <typename Launch>
Result<double> best_ms(int rounds, Launch&& launch) {
  cudaEvent_t begin = nullptr, end = nullptr;
  FATHOM_RETURN_IF_ERROR(status_of(cudaEventCreate(&begin)));
  FATHOM_RETURN_IF_ERROR(status_of(cudaEventCreate(&end)));
  float best = 1e30f;
  for (int i = 0; i < rounds; ++i) {
    FATHOM_RETURN_IF_ERROR(status_of(cudaEventRecord(begin)));
    launch();
    FATHOM_RETURN_IF_ERROR(status_of(cudaEventRecord(end)));
    FATHOM_RETURN_IF_ERROR(status_of(cudaEventSynchronize(end)));
    float ms = 0;
    FATHOM_RETURN_IF_ERROR(status_of(cudaEventElapsedTime(&ms, begin, end)));
    if (i > 0) best = std::min(best, ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return static_cast<double>(best);
}

}  // namespace

Result<Ceilings> measure_cuda_ceilings() {
  int device = 0, num_multiprocessors = 0;
  FATHOM_RETURN_IF_ERROR(status_of(cudaGetDevice(&device)));
  FATHOM_RETURN_IF_ERROR(
      status_of(cudaDeviceGetAttribute(&num_multiprocessors, cudaDevAttrMultiProcessorCount, device)));
  std::byte *from = nullptr, *to = nullptr;
  FATHOM_RETURN_IF_ERROR(status_of(cudaMalloc(&from, kCopyBytes)));
  FATHOM_RETURN_IF_ERROR(status_of(cudaMalloc(&to, kCopyBytes)));
  FATHOM_RETURN_IF_ERROR(status_of(cudaMemset(from, 0x5a, kCopyBytes)));
  Ceilings out;
  FATHOM_ASSIGN_OR_RETURN(const double copy_ms, best_ms(6, [&] {
                            copy_words<<<num_multiprocessors * 8, 512>>>(reinterpret_cast<const uint4*>(from),
                                                                         reinterpret_cast<uint4*>(to), kCopyBytes / 16);
                          }));
  out.memory_bytes_per_s = 2.0 * static_cast<double>(kCopyBytes) / (copy_ms / 1e3);
  const int blocks = num_multiprocessors * 2, threads = 256;
  FATHOM_ASSIGN_OR_RETURN(const double mma_ms,
                          best_ms(6, [&] { multiply<<<blocks, threads>>>(reinterpret_cast<float*>(to), 0); }));
  out.flops_per_s = 2.0 * 16 * 8 * 16 * kChains * kMmaSteps * (threads / 32) * blocks / (mma_ms / 1e3);
  FATHOM_ASSIGN_OR_RETURN(const double launches_ms, best_ms(4, [&] {
                            for (int i = 0; i < 200; ++i) nothing<<<1, 32>>>();
                          }));
  out.launch_us = launches_ms * 1e3 / 200;
  cudaFree(from);
  cudaFree(to);
  FATHOM_RETURN_IF_ERROR(status_of(cudaGetLastError()));
  return out;
}

}  // namespace fathom
