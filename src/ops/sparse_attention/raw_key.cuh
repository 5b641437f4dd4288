// A packed key record on its way to a bf16 tile in shared memory: what one thread of a block of 256 has of a tile of 64
// keys, and its codes made bf16. Where the pieces go is each kernel's own.
#pragma once

#include "ops/cuda/activation_quantiser.cuh"
#include "ops/cuda/device_rows.cuh"

namespace fathom::cuda {

__device__ __forceinline__ uint4 load_piece(const std::uint8_t* p, bool aligned) {
  if (aligned) return __ldg(reinterpret_cast<const uint4*>(p));
  const uint2 low = __ldg(reinterpret_cast<const uint2*>(p)), high = __ldg(reinterpret_cast<const uint2*>(p + 8));
  return make_uint4(low.x, low.y, high.x, high.y);
}

// Sixteen codes of a block with e8m0 `scale`: placed bits times 2^120 2^(scale - 127), one exact multiply.
__device__ __forceinline__ void widen_codes(const uint4& codes, std::uint32_t scale, uint4& low, uint4& high) {
  const std::uint32_t bits = min(scale + 120u, 254u) << 7, factor = bits | bits << 16;
  const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  std::uint32_t pairs[8];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const std::uint32_t a = __byte_perm(words[w], 0, 0x1404), b = __byte_perm(words[w], 0, 0x3424);
    pairs[2 * w] = mul_bf16x2((a & 0x80008000u) | ((a >> 4) & 0x07f007f0u), factor);
    pairs[2 * w + 1] = mul_bf16x2((b & 0x80008000u) | ((b >> 4) & 0x07f007f0u), factor);
  }
  low = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  high = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
}

// Key tid / 4, 16-byte pieces part + 4 j with part = tid % 4: j < 7 are codes, two more the rotated channels.
struct RawKey {
  uint4 codes[7];
  uint4 rope[2];
  uint2 scales;

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (uint4& piece : codes) piece = make_uint4(0, 0, 0, 0);
    rope[0] = rope[1] = make_uint4(0, 0, 0, 0);
    scales = make_uint2(0, 0);
  }
  __device__ __forceinline__ void load(const std::uint8_t* data, const std::uint8_t* scale, int part) {
    const bool aligned = (reinterpret_cast<std::uintptr_t>(data) & 15) == 0;
#pragma unroll
    for (int j = 0; j < 7; ++j) codes[j] = load_piece(data + 16 * (part + 4 * j), aligned);
    rope[0] = load_piece(data + kNopeDim + 16 * part, aligned);
    rope[1] = load_piece(data + kNopeDim + 16 * (part + 4), aligned);
    scales = __ldg(reinterpret_cast<const uint2*>(scale));
  }
  // The sixteen channels of piece part + 4 j, which lies in block j of 64.
  __device__ __forceinline__ void widen(int j, uint4& low, uint4& high) const {
    widen_codes(codes[j], (j < 4 ? scales.x >> (8 * j) : scales.y >> (8 * (j - 4))) & 0xffu, low, high);
  }
};

}  // namespace fathom::cuda
