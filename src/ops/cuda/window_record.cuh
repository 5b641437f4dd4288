// The device side of kv_write: a block of kRecordThreads makes its row's window record, four channels a thread.
#pragma once

#include "ops/cuda/device_rows.cuh"
#include "ops/cuda/key_record.cuh"

namespace fathom::cuda {

__device__ __forceinline__ void write_window_record(const DeviceRows& rows, const CachePools& pools,
                                                    const LayerCache& cache, const uint2* kv_raw, const uint2* kv_norm,
                                                    const float2* rope, float eps, int row) {
  const int t = static_cast<int>(threadIdx.x);
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

}  // namespace fathom::cuda
