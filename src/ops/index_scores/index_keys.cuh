#pragma once

#include "ops/cuda/device_rows.cuh"
#include "ops/cuda/numerics.cuh"
#include "ops/index_scores/index_scores.h"
#include "ops/index_scores/plan.h"

namespace fathom::cuda {

struct IndexCall {
  DeviceRows rows;
  CachePools pools;
  LayerCache cache;
  const Bf16Bits* q;        // [tokens, heads, 128]
  const Bf16Bits* weights;  // [tokens, heads]
  float* scores;            // [rows here, stride]
  std::int64_t stride;
  std::int32_t first_row, num_heads, topk;
  std::int32_t num_table_entries;  // of all context tables, used or not: as many can be read
  float weight_scale;
};

inline IndexCall index_call(const IndexScoresPlan& plan, const IndexScoresArgs& args) {
  return {
      device_rows(*args.rows),
      args.pools,
      plan.desc.cache,
      args.q.as<Bf16Bits>(),
      args.weights_raw.as<Bf16Bits>(),
      args.scores.as<float>(),
      args.scores.shape[1],
      args.first_row,
      plan.desc.num_heads,
      plan.desc.topk,
      args.rows->context_table.empty() ? 0 : static_cast<std::int32_t>(args.rows->context_table.shape.num_elements()),
      plan.desc.weight_scale};
}

struct IndexKey {
  const std::uint8_t* data;   // 64 bytes, low nibble first
  const std::uint8_t* scale;  // 4 exponents
};

__device__ __forceinline__ IndexKey index_key(const IndexCall& call, int sequence, int entry) {
  const int per_block = kBlockTokens / call.cache.ratio, slot = entry % per_block;
  const auto* page =
      reinterpret_cast<const std::uint8_t*>(context_block(call.rows, call.pools, sequence, entry / per_block)) +
      call.cache.index_key_offset_bytes;
  return {page + slot * kIndexKeyDataBytes, page + per_block * kIndexKeyDataBytes + slot * kIndexKeyScaleBytes};
}

}  // namespace fathom::cuda
