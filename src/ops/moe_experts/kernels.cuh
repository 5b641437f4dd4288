// What the naive and the tensor-core experts share: arguments, grouping of rows by expert, the final sum.
#pragma once

#include "ops/cuda/device_rows.cuh"
#include "ops/cuda/device_weight.cuh"
#include "ops/moe_experts/device_experts.h"
#include "ops/moe_experts/moe_experts.h"
#include "ops/moe_experts/plan.h"

namespace fathom::cuda {

struct MoeItem {
  std::int32_t expert, begin, count, unused;
};

// A row of a tile: its entry, or -1 where the tile has no more, and its routing weight.
struct MoeTileRow {
  std::int32_t entry;
  float weight;
};

struct MoeCall {
  DeviceExperts experts;
  DeviceWeight shared_w1, shared_w3, shared_w2;
  bool has_shared;
  const Bf16Bits* x;  // [tokens, hidden]
  const std::int32_t* expert_ids;
  const float* expert_weights;
  std::int32_t* num_items;
  MoeItem* items;             // [num_items]
  std::int32_t item_entries;  // most of an item
  std::int32_t* entries;
  Bf16Bits *x_quantised, *t, *y, *out;
  Bf16Bits* tiles;          // wgmma: x, then t, as its blocks copy them (order_tiles)
  MoeTileRow* tile_rows;    // and what their rows are
  std::uint32_t* arrivals;  // [tokens, hidden / kMoeDownRows] zeros, or null: y is summed by a launch of its own
  std::int32_t num_tokens, topk, hidden, intermediate, num_experts;
  float limit;
  bool quantise;
};

MoeCall make_moe_call(ExecutionContext& context, const MoeExpertsPlan& plan, const MoeExpertsArgs& args);
// Items and entries, and x_quantised: columns paired like the codes of a word.
void launch_group_rows(const MoeCall& call, cudaStream_t stream);
// Items and entries alone.
void launch_group_entries(const MoeCall& call, cudaStream_t stream);
// Rows of x, or of t, through AQ to call.tiles: those of items, then the shared expert's in pieces of
// kMoeWgmmaSharedTokens. A tile has, for each chunk of 128 columns, in the order of the sums (moe_step_of_chunk), two
// halves of 64 columns by 16-column steps of a product; a half has the tile's rows, to whole eights (or room for
// kMoeWgmmaSharedTokens), of 128 bytes each, their 16-byte pieces swizzled (swizzle_128).
enum class MoeTiles { kInput, kIntermediate };
void launch_order_tiles(const MoeCall& call, MoeTiles which, cudaStream_t stream);
// out = bf16( sum of y over the row's experts in ascending id, then the shared one ).
void launch_sum_experts(const MoeCall& call, cudaStream_t stream);

// t = bf16( weight * silu(min(a, limit)) * clamp(b, -limit, limit) ), a and b already rounded to bf16.
__device__ __forceinline__ Bf16Bits gated(float a, float b, float weight, float limit) {
  a = fminf(round_bf16(a), limit);
  b = fminf(fmaxf(round_bf16(b), -limit), limit);
  return f32_to_bf16(weight * (a / (1.0f + expf(-a)) * b));
}

__device__ __forceinline__ DeviceWeight expert_matrix(const DeviceExperts& experts, const DeviceExperts::Matrix& matrix,
                                                      int which, int expert) {
  const auto* base = reinterpret_cast<const std::uint8_t*>(experts.slab) + expert * experts.stride_bytes;
  return {base + matrix.values_offset,
          base + matrix.scale_offset,
          reinterpret_cast<const float*>(base + experts.scale_2_offset)[which],
          experts.format,
          false,
          matrix.n,
          matrix.k};
}

}  // namespace fathom::cuda
