// StepRows and the cache pools as kernels take them: raw device pointers by value.
#pragma once

#include <cuda_runtime.h>

#include "ops/cache_view.h"
#include "ops/execution_context.h"
#include "ops/step_rows.h"

namespace fathom::cuda {

struct DeviceRows {
  std::int32_t num_tokens, num_sequences;
  const std::int32_t *token_ids, *positions, *sequence_of, *sequence_begin, *window_begin, *window_end;
  const std::int32_t *context_table, *window_table, *window_first, *state_slot;
  const std::int64_t *context_offset, *window_offset;
};

inline DeviceRows device_rows(const StepRows& rows) {
  return {rows.num_tokens,
          rows.num_sequences,
          rows.token_ids.as<std::int32_t>(),
          rows.positions.as<std::int32_t>(),
          rows.sequence_of.as<std::int32_t>(),
          rows.sequence_begin.as<std::int32_t>(),
          rows.window_begin.as<std::int32_t>(),
          rows.window_end.as<std::int32_t>(),
          rows.context_table.as<std::int32_t>(),
          rows.window_table.as<std::int32_t>(),
          rows.window_first.as<std::int32_t>(),
          rows.state_slot.as<std::int32_t>(),
          rows.context_offset.as<std::int64_t>(),
          rows.window_offset.as<std::int64_t>()};
}

inline cudaStream_t stream_of(const ExecutionContext& context) { return static_cast<cudaStream_t>(context.stream); }

// Where a record's data and scales lie.
struct RecordAddress {
  const std::uint8_t* data;
  const std::uint8_t* scale;
};

__device__ __forceinline__ std::byte* window_page(const DeviceRows& rows, const CachePools& pools,
                                                  const LayerCache& cache, std::int32_t sequence,
                                                  std::int32_t position) {
  const std::int64_t entry = rows.window_offset[sequence] + position / kBlockTokens - rows.window_first[sequence];
  return pools.window + static_cast<std::int64_t>(rows.window_table[entry]) * pools.window_block_bytes +
         cache.window_offset_bytes;
}
__device__ __forceinline__ std::byte* context_block(const DeviceRows& rows, const CachePools& pools,
                                                    std::int32_t sequence, std::int32_t block) {
  return pools.context + static_cast<std::int64_t>(rows.context_table[rows.context_offset[sequence] + block]) *
                             pools.context_block_bytes;
}

// Packed key records of the real widths: 448 e4m3, 64 bf16, 7 exponents padded to 8 (spec section 10).
inline constexpr int kHeadDim = 512;
inline constexpr int kRopeDim = 64;
inline constexpr int kNopeDim = 448;
inline constexpr int kRecordDataBytes = 576;
inline constexpr int kRecordScaleBytes = 8;
inline constexpr int kIndexDim = 128;
inline constexpr int kIndexKeyDataBytes = 64;
inline constexpr int kIndexKeyScaleBytes = 4;

__device__ __forceinline__ RecordAddress window_record(const DeviceRows& rows, const CachePools& pools,
                                                       const LayerCache& cache, std::int32_t sequence,
                                                       std::int32_t position) {
  const auto* page = reinterpret_cast<const std::uint8_t*>(window_page(rows, pools, cache, sequence, position));
  const int slot = position % kBlockTokens;
  return {page + slot * kRecordDataBytes, page + kBlockTokens * kRecordDataBytes + slot * kRecordScaleBytes};
}
__device__ __forceinline__ RecordAddress entry_record(const DeviceRows& rows, const CachePools& pools,
                                                      const LayerCache& cache, std::int32_t sequence,
                                                      std::int32_t entry) {
  const int per_block = kBlockTokens / cache.ratio;
  const auto* page = reinterpret_cast<const std::uint8_t*>(context_block(rows, pools, sequence, entry / per_block)) +
                     cache.entry_offset_bytes;
  const int slot = entry % per_block;
  return {page + slot * kRecordDataBytes, page + per_block * kRecordDataBytes + slot * kRecordScaleBytes};
}

}  // namespace fathom::cuda
