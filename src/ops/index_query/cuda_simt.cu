#include "ops/cuda/index_head.cuh"
#include "ops/index_query/index_query.h"

namespace fathom::cuda {
namespace {

constexpr int kWarps = 4;

// One warp a head.
__global__ void __launch_bounds__(kWarps * 32)
    index_heads(const uint2* q_raw, const float2* rope, uint2* q, int num_rows, int num_heads) {
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x >> 5);
  if (row < num_rows) make_index_head(q_raw, rope, q, row, num_heads);
}

}  // namespace

void index_query_simt(ExecutionContext& context, const IndexQueryPlan& plan, const IndexQueryArgs& args) {
  FATHOM_CHECK(plan.desc.head_dim == kIndexDim && plan.desc.rope_dim == kRopeDim, "indexer heads of 128 channels");
  const int num_rows = static_cast<int>(args.q_raw.shape[0]) * plan.desc.num_heads;
  if (num_rows == 0) return;
  index_heads<<<static_cast<unsigned>((num_rows + kWarps - 1) / kWarps), kWarps * 32, 0, stream_of(context)>>>(
      args.q_raw.as<uint2>(), args.rope.as<float2>(), args.q.as<uint2>(), num_rows, plan.desc.num_heads);
}

}  // namespace fathom::cuda
