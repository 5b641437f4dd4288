// AQ 128 on bf16 pairs in registers: the exact result of quantise-then-dequantise, ten instructions a pair.
#pragma once

#include "ops/cuda/numerics.cuh"

namespace fathom::cuda {

__device__ __forceinline__ __nv_bfloat162 as_bf162(std::uint32_t v) {
  return reinterpret_cast<const __nv_bfloat162&>(v);
}
__device__ __forceinline__ std::uint32_t as_u32(__nv_bfloat162 v) { return reinterpret_cast<const std::uint32_t&>(v); }
__device__ __forceinline__ std::uint32_t splat_bf16(float value) {
  const std::uint32_t bits = __float_as_uint(value) >> 16;
  return bits | bits << 16;
}

// The larger magnitudes of two pairs; magnitudes order like their bits.
__device__ __forceinline__ std::uint32_t max_magnitude(std::uint32_t a, std::uint32_t b) {
  return __vmaxu2(a & 0x7fff7fffu, b & 0x7fff7fffu);
}
__device__ __forceinline__ float pair_maximum(std::uint32_t magnitudes) {
  return fmaxf(bf16_low(magnitudes), bf16_high(magnitudes));
}

// Rounds both halves, already divided by the scale, to e4m3: 3 mantissa bits, steps of 2^-9 below 2^-6.
__device__ __forceinline__ std::uint32_t round_pair_e4m3(std::uint32_t v) {
  const std::uint32_t normal = (v + 0x00070007u + ((v >> 4) & 0x00010001u)) & 0xfff0fff0u;
  const __nv_bfloat162 magic = as_bf162(0x3ec03ec0u);  // 0.375: one bf16 step there is 2^-9
  const std::uint32_t small = as_u32(__hsub2(__hadd2(as_bf162(v), magic), magic));
  const std::uint32_t mask = __vcmpltu2(v & 0x7fff7fffu, 0x3c803c80u);  // |v| < 2^-6
  return (small & mask) | (normal & ~mask);
}

// A lane's N pairs of a block whose largest magnitude is amax.
template <int N>
__device__ __forceinline__ void simulate_aq(std::uint32_t (&x)[N], float amax) {
  const int exponent = aq_exponent(amax);
  const std::uint32_t down = splat_bf16(exp2_int(-exponent)), up = splat_bf16(exp2_int(exponent));
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = mul_bf16x2(round_pair_e4m3(mul_bf16x2(x[i], down)), up);
}

// The same for a quad of lanes that hold 32 channels each of one block of 128.
__device__ __forceinline__ void simulate_aq_quad(std::uint32_t (&x)[16]) {
  std::uint32_t m = x[0] & 0x7fff7fffu;
#pragma unroll
  for (int i = 1; i < 16; ++i) m = max_magnitude(m, x[i]);
  m = max_magnitude(m, __shfl_xor_sync(0xffffffffu, m, 1));
  m = max_magnitude(m, __shfl_xor_sync(0xffffffffu, m, 2));
  simulate_aq<16>(x, pair_maximum(m));
}

}  // namespace fathom::cuda
