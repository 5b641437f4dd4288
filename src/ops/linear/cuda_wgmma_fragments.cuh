// Weights in the registers of their lane as the first operand of a warpgroup's product, and x in shared memory as the
// second: what the kernels of linear/wgmma for few rows share.
#pragma once

#include "ops/cuda/ptx/copy_async.cuh"
#include "ops/cuda/ptx/wgmma.cuh"
#include "ops/cuda/weight_fragments.cuh"
#include "ops/linear/cuda_group.cuh"

#if FATHOM_HAS_WGMMA
namespace fathom::cuda {

// A lane's rows g and g + 8 of a chunk, as linear/mma loads them.
template <bool kFp8>
struct RawRows {
  static constexpr int kPieces = kFp8 ? 2 : 4;
  uint4 v[2][kPieces];
};
template <bool kFp8>
struct WeightRows {
  const std::uint8_t* rows[2];
  WeightRows() = default;
  __device__ __forceinline__ WeightRows(const DeviceWeight& w, int first_row, int t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      rows[half] =
          w.values + static_cast<std::int64_t>(min(first_row + 8 * half, w.n - 1)) * w.k * (kFp8 ? 1 : 2) + 16 * t;
    }
  }
  __device__ __forceinline__ void load(RawRows<kFp8>& raw, int chunk) const {
    const std::int64_t at = static_cast<std::int64_t>(chunk) * kLinearChunk * (kFp8 ? 1 : 2);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < RawRows<kFp8>::kPieces; ++j) raw.v[half][j] = load_streaming(rows[half] + at + 64 * j);
    }
  }
};

// Fragments whose steps have linear/mma's columns. In a step's row of x, in shared memory, the four columns of a lane
// stand together (8 bytes); the products ask for two of them from each of two lanes. So a lane gives half of its
// columns to its neighbour.
struct CodeExchange {
  std::uint32_t give, row_low, row_high;
  bool odd;
  __device__ __forceinline__ explicit CodeExchange(int t) : odd((t & 1) != 0) {
    give = odd ? 0x5410u : 0x7632u;
    row_low = odd ? 0x3254u : 0x5410u;
    row_high = odd ? 0x3276u : 0x7610u;
  }
};
__device__ __forceinline__ void make_fragments(const RawRows<true>& raw, const CodeExchange& x,
                                               std::uint32_t (&a)[8][4]) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint4 low = raw.v[0][j], high = raw.v[1][j];
    const std::uint32_t c0[4] = {low.x, low.y, low.z, low.w}, c1[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t got = __shfl_xor_sync(0xffffffffu, __byte_perm(c0[i], c1[i], x.give), 1);
      e4m3_pairs(__byte_perm(c0[i], got, x.row_low), a[4 * j + i][0], a[4 * j + i][2]);
      e4m3_pairs(__byte_perm(c1[i], got, x.row_high), a[4 * j + i][1], a[4 * j + i][3]);
    }
  }
}
__device__ __forceinline__ void make_fragments(const RawRows<false>& raw, const CodeExchange& x,
                                               std::uint32_t (&a)[8][4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 v = raw.v[half][j];
      const std::uint32_t got0 = __shfl_xor_sync(0xffffffffu, x.odd ? v.x : v.y, 1);
      const std::uint32_t got1 = __shfl_xor_sync(0xffffffffu, x.odd ? v.z : v.w, 1);
      a[2 * j][half] = x.odd ? got0 : v.x;
      a[2 * j][2 + half] = x.odd ? v.y : got0;
      a[2 * j + 1][half] = x.odd ? got1 : v.z;
      a[2 * j + 1][2 + half] = x.odd ? v.w : got1;
    }
  }
}
// The same from x whose columns stand where the lanes have them (LinearOrder::kFragments): nothing to give.
__device__ __forceinline__ void make_sorted_fragments(const RawRows<true>& raw, std::uint32_t (&a)[8][4]) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint4 low = raw.v[0][j], high = raw.v[1][j];
    const std::uint32_t c0[4] = {low.x, low.y, low.z, low.w}, c1[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      e4m3_alternate_pairs(c0[i], a[4 * j + i][0], a[4 * j + i][2]);
      e4m3_alternate_pairs(c1[i], a[4 * j + i][1], a[4 * j + i][3]);
    }
  }
}

// kTokens rows of a chunk of x by one warp, four columns a lane to their step; rows beyond the last repeat it.
template <bool kFp8, int kTokens>
__device__ __forceinline__ void copy_to_steps(unsigned char* tile, const Bf16Bits* x, std::int64_t stride, int last) {
  constexpr int kRowBytes = 128;  // 64 columns: half a chunk; the halves stand one after the other
  const int q = static_cast<int>(threadIdx.x) % 32;
  const int s = kFp8 ? 4 * (q / 16) + q % 4 : 2 * (q / 8) + q % 2, t = kFp8 ? q / 4 % 4 : q / 2 % 4;
  tile += s / 4 * kTokens * kRowBytes + 8 * (t / 2);
  x += 4 * q;
#pragma unroll 8
  for (int row = 0; row < kTokens; ++row) {
    copy_async_8(tile + swizzle_128(row, 2 * (s % 4) + t % 2), x);
    if (row < last) x += stride;
  }
}

}  // namespace fathom::cuda
#endif
