// The device side of q_norm_rope: a warp norms and rotates one head of 512 channels, 16 a lane as two 16-byte pieces
// (channels 8 lane .. and 256 + 8 lane ..).
#pragma once

#include "ops/cuda/device_rows.cuh"
#include "ops/cuda/numerics.cuh"

namespace fathom::cuda {

// `row`: the head's place in [tokens * heads].
__device__ __forceinline__ void make_query_head(const uint4* q_raw, const float4* rope, uint4* q, int row,
                                                int num_heads, float eps) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const uint4* in = q_raw + static_cast<std::int64_t>(row) * (kHeadDim / 8);
  std::uint32_t v[8];
  const uint4 first = in[lane], second = in[32 + lane];
  v[0] = first.x, v[1] = first.y, v[2] = first.z, v[3] = first.w;
  v[4] = second.x, v[5] = second.y, v[6] = second.z, v[7] = second.w;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += bf16_low(v[i]) * bf16_low(v[i]) + bf16_high(v[i]) * bf16_high(v[i]);
  const float factor = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(kHeadDim) + eps);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = pack_bf16(bf16_low(v[i]) * factor, bf16_high(v[i]) * factor);
  // The last 64 channels lie in the second piece of lanes 24..31: four pairs a lane.
  if (lane >= 24) {
    const float4* angles = rope + static_cast<std::int64_t>(row / num_heads) * (kRopeDim / 4) + (lane - 24) * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 pair = angles[i / 2];
      const float c = (i & 1) != 0 ? pair.z : pair.x, s = (i & 1) != 0 ? pair.w : pair.y;
      const float x0 = bf16_low(v[4 + i]), x1 = bf16_high(v[4 + i]);
      v[4 + i] =
          pack_bf16(__fsub_rn(__fmul_rn(x0, c), __fmul_rn(x1, s)), __fadd_rn(__fmul_rn(x0, s), __fmul_rn(x1, c)));
    }
  }
  uint4* out = q + static_cast<std::int64_t>(row) * (kHeadDim / 8);
  out[lane] = make_uint4(v[0], v[1], v[2], v[3]);
  out[32 + lane] = make_uint4(v[4], v[5], v[6], v[7]);
}

}  // namespace fathom::cuda
