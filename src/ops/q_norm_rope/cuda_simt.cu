#include "ops/cuda/device_rows.cuh"
#include "ops/cuda/numerics.cuh"
#include "ops/q_norm_rope/q_norm_rope.h"

namespace fathom::cuda {
namespace {

constexpr int kWarps = 8;

// One warp a head: 512 channels, 16 a lane as two 16-byte pieces (channels 8 lane .. and 256 + 8 lane ..).
__global__ void __launch_bounds__(kWarps * 32)
    q_heads(const uint4* q_raw, const float4* rope, uint4* q, int num_rows, int num_heads, float eps) {
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x >> 5);
  const int lane = static_cast<int>(threadIdx.x & 31);
  if (row >= num_rows) return;
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

}  // namespace

void q_norm_rope_simt(ExecutionContext& context, const QNormRopePlan& plan, const QNormRopeArgs& args) {
  FATHOM_CHECK(plan.desc.head_dim == kHeadDim && plan.desc.rope_dim == kRopeDim, "heads of 512 channels, 64 rotated");
  const int num_rows = static_cast<int>(args.q_raw.shape[0]) * plan.desc.num_heads;
  if (num_rows == 0) return;
  q_heads<<<static_cast<unsigned>((num_rows + kWarps - 1) / kWarps), kWarps * 32, 0, stream_of(context)>>>(
      args.q_raw.as<uint4>(), args.rope.as<float4>(), args.q.as<uint4>(), num_rows, plan.desc.num_heads, plan.desc.eps);
}

}  // namespace fathom::cuda
