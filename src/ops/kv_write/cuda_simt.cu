#include "ops/cuda/device_rows.cuh"
#include "ops/cuda/key_record.cuh"
#include "ops/kv_write/kv_write.h"

namespace fathom::cuda {
namespace {

// One block a row, four channels a thread.
__global__ void __launch_bounds__(kRecordThreads)
    write_window(DeviceRows rows, CachePools pools, LayerCache cache, const uint2* kv_raw, const uint2* kv_norm,
                 const float2* rope, float eps) {
  const int row = static_cast<int>(blockIdx.x), t = static_cast<int>(threadIdx.x);
  const uint2 x = kv_raw[static_cast<std::int64_t>(row) * kRecordThreads + t];
  float v[4] = {bf16_low(x.x), bf16_high(x.x), bf16_low(x.y), bf16_high(x.y)};
  norm_key(v, kv_norm[t], eps);
  if (t >= kNopeDim / 4) {
    const float2* angles = rope + static_cast<std::int64_t>(row) * (kRopeDim / 2) + (t - kNopeDim / 4) * 2;
    rotate_pair(v[0], v[1], angles[0]);
    rotate_pair(v[2], v[3], angles[1]);
  }
  const std::int32_t sequence = rows.sequence_of[row], position = rows.positions[row];
  auto* page = reinterpret_cast<std::uint8_t*>(window_page(rows, pools, cache, sequence, position));
  const int slot = position % kBlockTokens;
  write_record(v, page + slot * kRecordDataBytes, page + kBlockTokens * kRecordDataBytes + slot * kRecordScaleBytes);
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
