// A team: the blocks that share a row, and what they do together. Sums are of integers and everything else is a
// largest or smallest, so results know neither the number of blocks nor who came first.
#pragma once

#include "ops/sample/noise.cuh"
#include "ops/sample/team_area.h"

namespace fathom::cuda {

constexpr int kTeamWarps = kTeamThreads / 32;

// Written by another block before the last meeting: past the L1.
__device__ __forceinline__ std::uint64_t load_shared_word(const std::uint64_t* p) {
  std::uint64_t v;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* p) {
  std::uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ std::uint64_t warp_max(std::uint64_t v) {
  const std::uint32_t high = __reduce_max_sync(0xffffffffu, static_cast<std::uint32_t>(v >> 32));
  const std::uint32_t low =
      __reduce_max_sync(0xffffffffu, static_cast<std::uint32_t>(v >> 32) == high ? static_cast<std::uint32_t>(v) : 0u);
  return static_cast<std::uint64_t>(high) << 32 | low;
}
__device__ __forceinline__ std::uint64_t warp_sum(std::uint64_t v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}

struct TeamShared {
  std::uint64_t words[4][kTeamWarps];
  std::uint64_t score;  // of the best by exact score
  int score_id;
  int num_mine, num_before;
  int bin;  // what a round of a cut found
  std::uint64_t above;
  std::uint32_t cut_key;
  int cut_last;
  std::uint64_t top[kTeamTop];
};

// What a block says at a meeting, or hears of all: words[0] the largest, words[1] the largest, words[2] the sum.
struct Said {
  std::uint64_t largest, other, sum;
};

template <bool kCluster>
struct Team {
  TeamArea* area;
  TeamShared* s;
  int rank, size;   // 8, 16 or 32 blocks
  int meeting = 0;  // of the buffers of TeamArea::words
  int round = 0;    // of the buffers of TeamArea::bins and num_listed

  // All blocks' stores so far become visible to all.
  __device__ __forceinline__ void sync() {
#if __CUDA_ARCH__ >= 900
    if constexpr (kCluster) {
      asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
      return;
    }
#endif
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      const auto count = static_cast<std::uint32_t>(size);
      std::uint32_t* arrived = &area->arrived[size / 16];
      const std::uint32_t ticket = atomicAdd(arrived, 1u), until = (ticket | (count - 1)) + 1;
      while (static_cast<std::int32_t>(load_acquire(arrived) - until) < 0) {
      }
    }
    __syncthreads();
  }

  // Largest, largest and sum over the threads of this block; in thread 0.
  __device__ __forceinline__ Said of_block(Said v) const {
    const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5);
    v.largest = warp_max(v.largest), v.other = warp_max(v.other), v.sum = warp_sum(v.sum);
    __syncthreads();
    if (lane == 0) s->words[0][warp] = v.largest, s->words[1][warp] = v.other, s->words[2][warp] = v.sum;
    __syncthreads();
    if (warp == 0) {
      v.largest = warp_max(lane < kTeamWarps ? s->words[0][lane] : 0);
      v.other = warp_max(lane < kTeamWarps ? s->words[1][lane] : 0);
      v.sum = warp_sum(lane < kTeamWarps ? s->words[2][lane] : 0);
    }
    return v;
  }
  // Thread 0's words go to all.
  __device__ __forceinline__ void tell(const Said& v) {
    if (threadIdx.x == 0) {
      std::uint64_t* words = area->words[meeting & 1][rank];
      words[0] = v.largest, words[1] = v.other, words[2] = v.sum;
    }
    ++meeting;
    sync();
  }
  // What block `block` said last.
  __device__ __forceinline__ std::uint64_t heard(int block, int word) const {
    return load_shared_word(&area->words[(meeting - 1) & 1][block][word]);
  }
  __device__ __forceinline__ Said heard_of_all() const {
    const int lane = static_cast<int>(threadIdx.x & 31);
    const bool mine = lane < size;
    return {warp_max(mine ? heard(lane, 0) : 0), warp_max(mine ? heard(lane, 1) : 0),
            warp_sum(mine ? heard(lane, 2) : 0)};
  }
  __device__ __forceinline__ Said meet(const Said& of_thread) {
    tell(of_block(of_thread));
    return heard_of_all();
  }

  // Empties what round `which` will add to; a meeting must follow before anybody adds.
  __device__ __forceinline__ void empty_round(int which) {
    const int share = kTeamBins / size;
    const int tid = static_cast<int>(threadIdx.x);
    if (tid < share) area->bins[which & 1][rank * share + tid] = 0;
    if (tid == 0 && rank == 0) area->num_listed[which % 3] = 0;
  }
};

// This block's part of the row: ids [begin, begin + count), `padded` the next multiple of 32, -inf beyond count.
struct TeamPart {
  float* values;  // in shared memory
  int begin, count, padded;
};

}  // namespace fathom::cuda
