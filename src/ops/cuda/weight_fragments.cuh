// Weight rows as the A operand of m16n8k16: a warp takes 16 rows and 128 columns at a time.
//
// K may be permuted as long as x is permuted alike, so every lane loads whole 16-byte pieces of its rows
// and turns each into fragments in place: no shared memory, no shuffles. Lane (g, t) = (lane / 4, lane % 4)
// holds 32 columns of rows g and g + 8; the columns by format:
//   bf16   32 j + 8 t + i          (j < 4, i < 8)
//   e4m3   16 t + i, 64 + 16 t + i (i < 16)
//   e2m1   32 t + i                (i < 32): one MXFP4 scale, two NVFP4 scales
#pragma once

#include "ops/cuda/activation_quantiser.cuh"
#include "ops/cuda/ptx/mma.cuh"

namespace fathom::cuda {

// The 32 columns of x a lane pairs with them, as 16 bf16 pairs in column order.
struct ColumnsBf16 {
  static __device__ __forceinline__ void load(std::uint32_t (&x)[16], const Bf16Bits* chunk, int t) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 v = *reinterpret_cast<const uint4*>(chunk + 32 * j + 8 * t);
      x[4 * j] = v.x, x[4 * j + 1] = v.y, x[4 * j + 2] = v.z, x[4 * j + 3] = v.w;
    }
  }
};
struct ColumnsE4m3 {
  static __device__ __forceinline__ void load(std::uint32_t (&x)[16], const Bf16Bits* chunk, int t) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 v = *reinterpret_cast<const uint4*>(chunk + 64 * (j / 2) + 16 * t + 8 * (j % 2));
      x[4 * j] = v.x, x[4 * j + 1] = v.y, x[4 * j + 2] = v.z, x[4 * j + 3] = v.w;
    }
  }
};
struct ColumnsE2m1 {
  static __device__ __forceinline__ void load(std::uint32_t (&x)[16], const Bf16Bits* chunk, int t) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 v = *reinterpret_cast<const uint4*>(chunk + 32 * t + 8 * j);
      x[4 * j] = v.x, x[4 * j + 1] = v.y, x[4 * j + 2] = v.z, x[4 * j + 3] = v.w;
    }
  }
  // Nibbles i and i + 4 of a code word make one pair, so columns i and i + 4 must too.
  static __device__ __forceinline__ void pair_like_codes(std::uint32_t (&x)[16]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t p0 = x[4 * j], p1 = x[4 * j + 1], p2 = x[4 * j + 2], p3 = x[4 * j + 3];
      x[4 * j] = __byte_perm(p0, p2, 0x5410);
      x[4 * j + 1] = __byte_perm(p0, p2, 0x7632);
      x[4 * j + 2] = __byte_perm(p1, p3, 0x5410);
      x[4 * j + 3] = __byte_perm(p1, p3, 0x7632);
    }
  }
};

// Four e4m3 codes to two bf16 pairs, unscaled: sign and 7 bits placed, then 2^120 for the exponent bias.
__device__ __forceinline__ void e4m3_pairs(std::uint32_t codes, std::uint32_t& low, std::uint32_t& high) {
  const std::uint32_t a = __byte_perm(codes, 0, 0x1404), b = __byte_perm(codes, 0, 0x3424);
  low = mul_bf16x2((a & 0x80008000u) | ((a >> 4) & 0x07f007f0u), 0x7b807b80u);
  high = mul_bf16x2((b & 0x80008000u) | ((b >> 4) & 0x07f007f0u), 0x7b807b80u);
}

// The same with the codes paired (0, 2) and (1, 3), which saves a third of the integer instructions: for products whose
// other operand has its columns in that order.
__device__ __forceinline__ void e4m3_alternate_pairs(std::uint32_t codes, std::uint32_t& even, std::uint32_t& odd) {
  even = mul_bf16x2(((codes << 8) & 0x80008000u) | ((codes << 4) & 0x07f007f0u), 0x7b807b80u);
  odd = mul_bf16x2((codes & 0x80008000u) | ((codes >> 4) & 0x07f007f0u), 0x7b807b80u);
}

// Eight e2m1 codes to four bf16 pairs (i, i + 4), times `scale` (2^126 for the bias times the block's scale).
__device__ __forceinline__ void e2m1_pairs(std::uint32_t codes, std::uint32_t scale, std::uint32_t (&pairs)[4]) {
  pairs[0] = mul_bf16x2(((codes << 12) & 0x80008000u) | ((codes << 6) & 0x01c001c0u), scale);
  pairs[1] = mul_bf16x2(((codes << 8) & 0x80008000u) | ((codes << 2) & 0x01c001c0u), scale);
  pairs[2] = mul_bf16x2(((codes << 4) & 0x80008000u) | ((codes >> 2) & 0x01c001c0u), scale);
  pairs[3] = mul_bf16x2((codes & 0x80008000u) | ((codes >> 6) & 0x01c001c0u), scale);
}

}  // namespace fathom::cuda
