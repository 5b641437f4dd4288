// What the kernels of linear share: the weights of one launch, whose a block's tile is, and the way of a result out.
#pragma once

#include "ops/linear/kernels.cuh"
#include "ops/linear/plan.h"

namespace fathom::cuda {

struct LinearGroup {
  LinearItem items[kLinearMaxGroup];
  std::int32_t num_items;
  std::int32_t num_tiles;
};

// Items one after another in tiles of `tile_rows` weight rows.
inline LinearGroup make_linear_group(std::span<const LinearItem> items, int tile_rows) {
  LinearGroup group{};
  for (const LinearItem& item : items) {
    group.items[group.num_items] = item;
    group.items[group.num_items++].first_tile = group.num_tiles;
    group.num_tiles += (item.weight.n + tile_rows - 1) / tile_rows;
  }
  return group;
}

// AQ(x, 128) where an item wants it: the caller's, or written to `scratch` by a launch of its own. Null: none does.
inline const Bf16Bits* quantised_rows(const LinearCall& call, std::span<const LinearItem> items, Bf16Bits* scratch,
                                      cudaStream_t stream) {
  bool wanted = false;
  for (const LinearItem& item : items) wanted = wanted || item.quantise;
  if (!wanted || call.x_quantised != nullptr) return call.x_quantised;
  launch_quantise_rows(call.x, call.x_stride, scratch, call.num_tokens, call.x_stride, stream);
  return scratch;
}

// Codes or bf16 values in whole chunks; tiles of `slice_rows` rows each read one slice of x.
inline bool fits_tensor_cores(std::span<const LinearItem> items, int slice_rows) {
  for (const LinearItem& item : items) {
    const bool format = item.weight.format == WeightFormat::kBf16 || item.weight.format == WeightFormat::kFp8Block128;
    if (!format || item.weight.k % kLinearChunk != 0 || item.group_rows % slice_rows != 0) return false;
  }
  return true;
}

__device__ __forceinline__ const LinearItem& item_of_tile(const LinearGroup& group, int tile) {
  int which = 0;
  while (which + 1 < group.num_items && tile >= group.items[which + 1].first_tile) ++which;
  return group.items[which];
}

// The first column of x that a tile from `first_row` on reads.
__device__ __forceinline__ std::int64_t first_column(const LinearItem& item, int first_row) {
  return item.group_rows > 0 ? static_cast<std::int64_t>(first_row / item.group_rows) * item.weight.k : 0;
}

__device__ __forceinline__ float chunk_scale(const DeviceWeight& w, std::int64_t at) {
  return w.f32_scale ? reinterpret_cast<const float*>(w.scale)[at] : e8m0_to_f32(w.scale[at]);
}

__device__ __forceinline__ void store_output(const LinearItem& item, int token, int row, float value) {
  const std::int64_t o = static_cast<std::int64_t>(token) * item.weight.n + row;
  if (item.f32_out)
    static_cast<float*>(item.out)[o] = value;
  else
    static_cast<Bf16Bits*>(item.out)[o] = f32_to_bf16(value);
}

// Four outputs of a row of x, from `row` (a multiple of four) on.
__device__ __forceinline__ void store_outputs(const LinearItem& item, int token, int row, const float (&v)[4]) {
  const std::int64_t o = static_cast<std::int64_t>(token) * item.weight.n + row;
  if (item.weight.n % 4 == 0) {
    if (row >= item.weight.n) return;
    if (item.f32_out)
      *reinterpret_cast<float4*>(static_cast<float*>(item.out) + o) = make_float4(v[0], v[1], v[2], v[3]);
    else
      *reinterpret_cast<uint2*>(static_cast<Bf16Bits*>(item.out) + o) =
          make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (row + i < item.weight.n) store_output(item, token, row + i, v[i]);
}

// A tile's results, [kTokens][kLinearResultStride<kRows>] in shared memory, so that a row of out leaves in whole lines.
template <int kRows, int kTokens, int kThreads>
__device__ __forceinline__ void store_tile(const LinearItem& item, const float* results, int first_row, int first_token,
                                           int num_tokens) {
  constexpr int kPieces = kRows / 4;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * kPieces; i += kThreads) {
    const int row = i % kPieces * 4, token = i / kPieces;
    if (first_token + token >= num_tokens) break;
    const float4 r = *reinterpret_cast<const float4*>(results + token * kLinearResultStride<kRows> + row);
    const float v[4] = {r.x, r.y, r.z, r.w};
    store_outputs(item, first_token + token, first_row + row, v);
  }
}

}  // namespace fathom::cuda
