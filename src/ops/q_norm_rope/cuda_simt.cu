#include "ops/cuda/query_head.cuh"
#include "ops/q_norm_rope/q_norm_rope.h"

namespace fathom::cuda {
namespace {

constexpr int kWarps = 8;

// One warp a head.
__global__ void __launch_bounds__(kWarps * 32)
    q_heads(const uint4* q_raw, const float4* rope, uint4* q, int num_rows, int num_heads, float eps) {
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x >> 5);
  if (row < num_rows) make_query_head(q_raw, rope, q, row, num_heads, eps);
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
