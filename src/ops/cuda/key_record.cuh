// A block of 128 threads holding one 512-channel key, four channels a thread: its norm, rotation and packing
// (spec 2.4.5, 2.5.3-5 and 10).
#pragma once

#include "ops/cuda/device_rows.cuh"
#include "ops/cuda/numerics.cuh"

namespace fathom::cuda {

inline constexpr int kRecordThreads = kHeadDim / 4;

// Statistics and angles of keys are fp64: the packed bytes are compared exactly with the host's, so the order
// of a reduction must not show in them.
template <int kThreads>
__device__ __forceinline__ double block_sum_f64(double value) {
  __shared__ double shared[kThreads / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(0xffffffffu, value, offset);
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = value;
  __syncthreads();
  double total = 0.0;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) total += shared[w];
  __syncthreads();
  return total;
}

__device__ __forceinline__ void norm_key(float (&v)[4], uint2 weight, float eps) {
  double sum = 0.0;
#pragma unroll
  for (int i = 0; i < 4; ++i) sum += static_cast<double>(v[i]) * static_cast<double>(v[i]);
  const double factor = 1.0 / sqrt(block_sum_f64<kRecordThreads>(sum) / kHeadDim + static_cast<double>(eps));
  const float w[4] = {bf16_low(weight.x), bf16_high(weight.x), bf16_low(weight.y), bf16_high(weight.y)};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    v[i] = round_bf16(static_cast<float>(static_cast<double>(w[i]) * (static_cast<double>(v[i]) * factor)));
}

// The accurate cosine and sine of an fp32 angle.
__device__ __forceinline__ float2 accurate_angle(float angle) {
  double s, c;
  sincos(static_cast<double>(angle), &s, &c);
  return make_float2(static_cast<float>(c), static_cast<float>(s));
}

// (x0, x1) rotated by an angle's (cos, sin), products rounded like the host's.
__device__ __forceinline__ void rotate_pair(float& x0, float& x1, float2 angle) {
  const float y0 = __fsub_rn(__fmul_rn(x0, angle.x), __fmul_rn(x1, angle.y));
  const float y1 = __fadd_rn(__fmul_rn(x0, angle.y), __fmul_rn(x1, angle.x));
  x0 = round_bf16(y0);
  x1 = round_bf16(y1);
}

// AQ 64 on the first 448 channels, bf16 for the rest. Sixteen lanes hold one block of 64.
__device__ __forceinline__ void write_record(const float (&v)[4], std::uint8_t* data, std::uint8_t* scales) {
  const int t = static_cast<int>(threadIdx.x);
  float amax = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
#pragma unroll
  for (int offset = 8; offset > 0; offset >>= 1) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, offset));
  if (t < kNopeDim / 4) {
    // Rounding may bring the largest magnitude down to a smaller exponent's 448: records hold the smallest exponent
    // that their values need, so that equal values are equal bytes.
    const int first = aq_exponent(amax);
    const int exponent = aq_exponent(aq_value(amax, first));
    std::uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      codes |= static_cast<std::uint32_t>(aq_code(aq_value(v[i], first), exponent)) << (8 * i);
    reinterpret_cast<std::uint32_t*>(data)[t] = codes;
    if ((t & 15) == 0) scales[t >> 4] = static_cast<std::uint8_t>(exponent + 127);
  } else {
    const int i = t - kNopeDim / 4;
    reinterpret_cast<std::uint32_t*>(data + kNopeDim)[2 * i] = pack_bf16(v[0], v[1]);
    reinterpret_cast<std::uint32_t*>(data + kNopeDim)[2 * i + 1] = pack_bf16(v[2], v[3]);
    if (i == 0) scales[7] = 0;
  }
}

}  // namespace fathom::cuda
