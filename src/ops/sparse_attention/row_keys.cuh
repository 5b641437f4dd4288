// The keys one row sees: its window positions, then compressed entries; groups of 128, group 0 the window.
#pragma once

#include "ops/cuda/device_rows.cuh"
#include "ops/cuda/numerics.cuh"
#include "ops/sparse_attention/plan.h"
#include "ops/sparse_attention/sparse_attention.h"

namespace fathom::cuda {

struct AttentionCall {
  DeviceRows rows;
  CachePools pools;
  LayerCache cache;
  const Bf16Bits* q;  // [tokens, heads, 512]
  const float* sink;
  const std::int32_t* selected;  // [tokens, topk] or null
  const float2* rope;            // [tokens, 32]
  Bf16Bits* out;
  float* partial_o;    // [tokens, splits, heads, 512]
  float2* partial_ml;  // [tokens, splits, heads]
  std::int32_t num_heads, topk, num_splits;
  std::uint32_t* arrivals =
      nullptr;  // [tokens, tiles of 16 heads] zeros, or null: a launch folds a split call's groups
};

inline AttentionCall attention_call(const SparseAttentionPlan& plan, const SparseAttentionArgs& args) {
  return {device_rows(*args.rows),
          args.pools,
          plan.desc.cache,
          args.q.as<Bf16Bits>(),
          args.sink.as<float>(),
          args.selected.as<std::int32_t>(),
          args.rope.as<float2>(),
          args.out.as<Bf16Bits>(),
          nullptr,
          nullptr,
          plan.desc.num_heads,
          plan.desc.topk,
          1};
}

struct RowKeys {
  std::int32_t sequence, window_begin, num_window, num_entries;
  const std::int32_t* selected;

  __device__ __forceinline__ int num_groups() const {
    return 1 + (num_entries + kAttentionGroup - 1) / kAttentionGroup;
  }
  __device__ __forceinline__ int group_size(int group) const {
    return group == 0 ? num_window : min(kAttentionGroup, num_entries - (group - 1) * kAttentionGroup);
  }
  __device__ __forceinline__ RecordAddress key(const AttentionCall& call, int group, int i) const {
    if (group == 0) return window_record(call.rows, call.pools, call.cache, sequence, window_begin + i);
    const int j = (group - 1) * kAttentionGroup + i;
    return entry_record(call.rows, call.pools, call.cache, sequence, selected != nullptr ? selected[j] : j);
  }
};

__device__ __forceinline__ RowKeys row_keys(const AttentionCall& call, int row) {
  const std::int32_t visible = call.cache.ratio == 0 ? 0 : (call.rows.positions[row] + 1) / call.cache.ratio;
  const std::int32_t begin = call.rows.window_begin[row];
  return {call.rows.sequence_of[row], begin, call.rows.window_end[row] - begin,
          call.cache.ratio == 4 ? min(visible, call.topk) : visible,
          call.cache.ratio == 4 ? call.selected + static_cast<std::int64_t>(row) * call.topk : nullptr};
}

// Logits are kept in units of log2: exp2 everywhere.
inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kLogitScale = 0.044194173824159216f * kLog2e;  // 512^-0.5

// One head's channel pair: o / denominator, stored, the last 64 channels rotated back, stored.
__device__ __forceinline__ std::uint32_t finish_pair(float o0, float o1, float inverse, int channel,
                                                     const float2* rope) {
  float x0 = round_bf16(o0 * inverse), x1 = round_bf16(o1 * inverse);
  if (channel >= kNopeDim) {
    const float2 angle = rope[(channel - kNopeDim) / 2];
    const float y0 = __fadd_rn(__fmul_rn(x0, angle.x), __fmul_rn(x1, angle.y));
    const float y1 = __fsub_rn(__fmul_rn(x1, angle.x), __fmul_rn(x0, angle.y));
    x0 = y0;
    x1 = y1;
  }
  return pack_bf16(x0, x1);
}
// 1 / (l + e^(sink - m)); an infinite denominator gives 0.
__device__ __forceinline__ float inverse_denominator(float m, float l, float sink) {
  return __fdiv_rn(1.0f, __fadd_rn(l, exp2f(__fmaf_rn(sink, kLog2e, -m))));
}

}  // namespace fathom::cuda
