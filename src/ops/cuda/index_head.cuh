// The device side of index_query: a warp rotates, transforms and quantises one indexer head, channels 4 lane ..
// 4 lane + 3.
#pragma once

#include "ops/cuda/device_rows.cuh"
#include "ops/cuda/key_record.cuh"

namespace fathom::cuda {

// `row`: the head's place in [tokens * heads].
__device__ __forceinline__ void make_index_head(const uint2* q_raw, const float2* rope, uint2* q, int row,
                                                int num_heads) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const uint2 x = q_raw[static_cast<std::int64_t>(row) * 32 + lane];
  float v[4] = {bf16_low(x.x), bf16_high(x.x), bf16_low(x.y), bf16_high(x.y)};
  if (lane >= 16) {
    const float2* angles = rope + static_cast<std::int64_t>(row / num_heads) * (kRopeDim / 2) + (lane - 16) * 2;
    rotate_pair(v[0], v[1], angles[0]);
    rotate_pair(v[2], v[3], angles[1]);
  }
  float w[4] = {v[0] + v[1], v[0] - v[1], v[2] + v[3], v[2] - v[3]};
  v[0] = w[0] + w[2], v[1] = w[1] + w[3], v[2] = w[0] - w[2], v[3] = w[1] - w[3];
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float other = __shfl_xor_sync(0xffffffffu, v[i], mask);
      v[i] = (lane & mask) == 0 ? v[i] + other : other - v[i];
    }
  }
  float amax = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i] = round_bf16(__fmul_rn(v[i], 0.088388347648318447f));
    amax = fmaxf(amax, fabsf(v[i]));
  }
#pragma unroll
  for (int mask = 1; mask < 8; mask *= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, mask));
  const int exponent = fq_exponent(amax);
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = scale_by_exp2(e2m1_to_f32(fq_code(v[i], exponent)), exponent);
  q[static_cast<std::int64_t>(row) * 32 + lane] = make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
}

}  // namespace fathom::cuda
