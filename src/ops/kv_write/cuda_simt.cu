#include "ops/cuda/window_record.cuh"
#include "ops/kv_write/kv_write.h"

namespace fathom::cuda {
namespace {

// One block a row.
__global__ void __launch_bounds__(kRecordThreads)
    write_window(DeviceRows rows, CachePools pools, LayerCache cache, const uint2* kv_raw, const uint2* kv_norm,
                 const float2* rope, float eps) {
  write_window_record(rows, pools, cache, kv_raw, kv_norm, rope, eps, static_cast<int>(blockIdx.x));
}

}  // namespace

void kv_write_simt(ExecutionContext& context, const KvWritePlan& plan, const KvWriteArgs& args) {
  FATHOM_CHECK(plan.desc.cache.kv.head_dim == kHeadDim && plan.desc.cache.kv.rope_dim == kRopeDim &&
                   plan.desc.cache.kv.format == CacheFormat::kPacked,
               "packed records of 512 channels");
  if (args.rows->num_tokens == 0) return;
  write_window<<<static_cast<unsigned>(args.rows->num_tokens), kRecordThreads, 0, stream_of(context)>>>(
      device_rows(*args.rows), args.pools, plan.desc.cache, args.kv_raw.as<uint2>(), args.kv_norm.as<uint2>(),
      args.rope.as<float2>(), plan.desc.eps);
}

}  // namespace fathom::cuda
