// The number formats of spec sections 2.1 and 6 on the device: the same bits as tensor/scalar_formats.h
// and tensor/block_quantise.h give on the host.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace fathom::cuda {

using Bf16Bits = std::uint16_t;

__device__ __forceinline__ float bf16_to_f32(Bf16Bits bits) {
  return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}
__device__ __forceinline__ Bf16Bits f32_to_bf16(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}
__device__ __forceinline__ float round_bf16(float value) { return bf16_to_f32(f32_to_bf16(value)); }
__device__ __forceinline__ float bf16_low(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float bf16_high(std::uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
__device__ __forceinline__ std::uint32_t mul_bf16x2(std::uint32_t a, std::uint32_t b) {
  const __nv_bfloat162 product =
      __hmul2(reinterpret_cast<const __nv_bfloat162&>(a), reinterpret_cast<const __nv_bfloat162&>(b));
  return reinterpret_cast<const std::uint32_t&>(product);
}

// 2^e for e in [-126, 127].
__device__ __forceinline__ float exp2_int(int e) { return __int_as_float((e + 127) << 23); }
// value * 2^e without double rounding for the ranges met here (|e| may exceed a normal exponent).
__device__ __forceinline__ float scale_by_exp2(float value, int e) {
  if (e < -126) return value * exp2_int(-126) * exp2_int(e + 126 < -126 ? -126 : e + 126);
  if (e > 127) return value * exp2_int(127) * exp2_int(e - 127 > 127 ? 127 : e - 127);
  return value * exp2_int(e);
}
__device__ __forceinline__ float e8m0_to_f32(std::uint8_t code) {
  if (code == 0) return __int_as_float(0x00400000);  // 2^-127
  return __int_as_float(static_cast<int>(code) << 23);
}
// The exponent bits of an fp32 hold e4m3's when both are placed at the top of the mantissa; 2^120 moves the bias.
__device__ __forceinline__ float e4m3_to_f32(std::uint8_t code) {
  const std::uint32_t bits =
      (static_cast<std::uint32_t>(code & 0x80) << 24) | (static_cast<std::uint32_t>(code & 0x7f) << 20);
  return __uint_as_float(bits) * exp2_int(120);
}
// Round to nearest even of a value in [-448, 448].
__device__ __forceinline__ std::uint8_t f32_to_e4m3(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const float magnitude = fabsf(value);
  if (magnitude < 0x1p-6f)
    return static_cast<std::uint8_t>(sign | static_cast<std::uint32_t>(rintf(magnitude * 512.0f)));
  const std::uint32_t m = __float_as_uint(magnitude);
  const std::uint32_t rounded = m + 0x7ffffu + ((m >> 20) & 1u);
  return static_cast<std::uint8_t>(sign | ((rounded >> 20) - ((127u - 7u) << 3)));
}
__device__ __forceinline__ float e2m1_to_f32(std::uint32_t code) {
  const std::uint32_t bits = ((code & 8u) << 28) | ((code & 7u) << 22);
  return __uint_as_float(bits) * exp2_int(126);
}
// Round to nearest even of a value in [-6, 6]; ties go to the even code.
__device__ __forceinline__ std::uint32_t f32_to_e2m1(float value) {
  const std::uint32_t sign = (__float_as_uint(value) >> 28) & 8u;
  const float m = fabsf(value);
  std::uint32_t code = 0;
  if (m <= 2.0f) {
    code = static_cast<std::uint32_t>(rintf(m * 2.0f));  // steps of 1/2 up to 2.0, code 4
  } else if (m <= 4.0f) {
    code = 2u + static_cast<std::uint32_t>(rintf(m));
  } else {
    code = 4u + static_cast<std::uint32_t>(rintf(m * 0.5f));
  }
  return sign | code;
}
__device__ __forceinline__ int ceil_log2(float t) {
  const std::uint32_t bits = __float_as_uint(t);
  return static_cast<int>(bits >> 23) - 127 + ((bits & 0x7fffffu) != 0 ? 1 : 0);
}
// Exponents of AQ and FQ from a block's largest magnitude.
__device__ __forceinline__ int aq_exponent(float amax) { return ceil_log2(fmaxf(amax, 1e-4f) * (1.0f / 448.0f)); }
__device__ __forceinline__ int fq_exponent(float amax) {
  return ceil_log2(fmaxf(amax, 6.0f * 0x1p-126f) * (1.0f / 6.0f));
}
__device__ __forceinline__ std::uint8_t aq_code(float value, int exponent) {
  return f32_to_e4m3(fminf(fmaxf(scale_by_exp2(value, -exponent), -448.0f), 448.0f));
}
__device__ __forceinline__ float aq_value(float value, int exponent) {
  return scale_by_exp2(e4m3_to_f32(aq_code(value, exponent)), exponent);
}
__device__ __forceinline__ std::uint32_t fq_code(float value, int exponent) {
  return f32_to_e2m1(fminf(fmaxf(scale_by_exp2(value, -exponent), -6.0f), 6.0f));
}

// Sums over a warp in a fixed tree; every lane gets the total.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}
// Sum over a block of kThreads; `shared` holds kThreads / 32 floats. Every thread gets the total.
template <int kThreads>
__device__ __forceinline__ float block_sum(float value, float* shared) {
  value = warp_sum(value);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = value;
  __syncthreads();
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) total += shared[w];
  return total;
}
template <int kThreads>
__device__ __forceinline__ float block_max(float value, float* shared) {
  value = warp_max(value);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = value;
  __syncthreads();
  float total = shared[0];
#pragma unroll
  for (int w = 1; w < kThreads / 32; ++w) total = fmaxf(total, shared[w]);
  return total;
}

}  // namespace fathom::cuda
