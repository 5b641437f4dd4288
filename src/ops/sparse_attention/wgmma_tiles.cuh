// What the warpgroup kernels do with tiles of 64 keys and 64 heads. Keys lie in shared memory in bf16, 128-byte
// swizzled, in blocks of 64 channels: the same bytes are K for Q K^T and, channels contiguous, V for P V. Queries and
// results lie there likewise, head by head. All arithmetic is group_softmax.cuh's.
#pragma once

#include "ops/cuda/ptx/copy_async.cuh"
#include "ops/cuda/ptx/wgmma.cuh"
#include "ops/sparse_attention/group_softmax.cuh"
#include "ops/sparse_attention/row_keys.cuh"

#if FATHOM_HAS_WGMMA
namespace fathom::cuda {

inline constexpr int kTileKeys = 64;
inline constexpr int kBlockBytes = 64 * 128;        // 64 rows of 64 channels
inline constexpr int kTileBytes = 8 * kBlockBytes;  // 64 rows of 512 channels

// What a group of two tiles needs of a block's shared memory, 1024-byte aligned as swizzled operands must be.
struct GroupMemory {
  unsigned char *q, *keys, *probs;  // [1], [2 tiles], [2 tiles][2 terms of 64 x 64]
  float *peaks, *sums;              // [2 tiles][64 heads]

  explicit __device__ __forceinline__ GroupMemory(unsigned char* memory)
      : q(memory + (1024u - (shared_address(memory) & 1023u)) % 1024u),
        keys(q + kTileBytes),
        probs(keys + 2 * kTileBytes),
        peaks(reinterpret_cast<float*>(probs + 4 * kBlockBytes)),
        sums(peaks + 2 * 64) {}
};

// By 256 threads, on their way to shared memory, past registers.
__device__ __forceinline__ void load_queries(const AttentionCall& call, int row, int first_head, unsigned char* q) {
  const Bf16Bits* heads = call.q + (static_cast<std::int64_t>(row) * call.num_heads + first_head) * kHeadDim;
#pragma unroll 1
  for (int n = 0; n < 64 * 64 / kAttentionThreads; ++n) {
    const int i = n * kAttentionThreads + static_cast<int>(threadIdx.x), head = i / 64, piece = i % 64;
    unsigned char* to = q + piece / 8 * kBlockBytes + swizzle_128(head, piece % 8);
    if (first_head + head < call.num_heads) {
      copy_async_16(to, heads + head * kHeadDim + 8 * piece);
    } else {
      *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
    }
  }
  copy_async_commit();
}

// The largest logit of each head in the warpgroup's tile, to the peaks; keys that are not there become -inf.
__device__ __forceinline__ void find_peaks(float (&s)[32], float* peaks, int num_keys) {
  const int warp = static_cast<int>(threadIdx.x) >> 5 & 3, lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2,
            t = lane & 3;
  float peak[2] = {-INFINITY, -INFINITY};
  if (num_keys < kTileKeys) {
#pragma unroll
    for (int i = 0; i < 32; ++i)
      if (i / 4 * 8 + 2 * t + (i & 1) >= num_keys) s[i] = -INFINITY;
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) peak[i / 2 % 2] = fmaxf(peak[i / 2 % 2], s[i]);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    peak[half] = quad_max(peak[half]);
    if (t == 0) peaks[16 * warp + 8 * half + g] = peak[half];
  }
}

// P of the warpgroup's tile, in two terms, and its sums.
__device__ __forceinline__ void soften(const float (&s)[32], const float (&m)[2], unsigned char* probs, float* sums) {
  const int warp = static_cast<int>(threadIdx.x) >> 5 & 3, lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2,
            t = lane & 3;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = 16 * warp + 8 * half + g;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const ProbPair p =
          split_pair(probability(s[4 * n + 2 * half], m[half]), probability(s[4 * n + 2 * half + 1], m[half]));
      const int at = swizzle_128(row, n) + 4 * t;
      *reinterpret_cast<std::uint32_t*>(probs + at) = p.high;
      *reinterpret_cast<std::uint32_t*>(probs + kBlockBytes + at) = p.low;
      sum = __fadd_rn(sum, pair_sum(p.high, p.low));
    }
    sum = quad_sum(sum);
    if (t == 0) sums[row] = sum;
  }
}

// One block of 64 channels of the warp's heads of a result, finished, to where rows leave from.
__device__ __forceinline__ void finish_block(const float* o, const float (&inverse)[2], unsigned char* block) {
  const int warp = static_cast<int>(threadIdx.x) >> 5 & 3, lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2,
            t = lane & 3;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float* pair = o + 4 * n + 2 * r;
      *reinterpret_cast<std::uint32_t*>(block + swizzle_128(16 * warp + 8 * r + g, n) + 4 * t) =
          pack_bf16(pair[0] * inverse[r], pair[1] * inverse[r]);
    }
  }
}

// By 256 threads: kBlocks blocks of finished heads, rotated back and written in whole lines.
template <int kBlocks>
__device__ __forceinline__ void write_heads(const AttentionCall& call, const unsigned char* heads, int row,
                                            int first_head, int first_block) {
  const float2* rope = call.rope + static_cast<std::int64_t>(row) * (kRopeDim / 2);
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < 64 * 8 * kBlocks; i += kAttentionThreads) {
    const int head = i / (8 * kBlocks), at = i % (8 * kBlocks), piece = 8 * first_block + at;
    if (first_head + head >= call.num_heads) break;
    uint4 v = *reinterpret_cast<const uint4*>(heads + at / 8 * kBlockBytes + swizzle_128(head, at % 8));
    if (piece >= kNopeDim / 8) {
      std::uint32_t* pair = &v.x;
#pragma unroll
      for (int e = 0; e < 4; ++e)
        pair[e] = finish_pair(bf16_low(pair[e]), bf16_high(pair[e]), 1.0f, 8 * piece + 2 * e, rope);
    }
    reinterpret_cast<uint4*>(call.out + (static_cast<std::int64_t>(row) * call.num_heads + first_head + head) *
                                            kHeadDim)[piece] = v;
  }
}

}  // namespace fathom::cuda
#endif
