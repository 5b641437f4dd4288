// Locating, reading and writing cached records (spec section 10, cache_view.h): the one place that knows
// how a position, an entry index or a compressor row becomes an address. Host memory only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/cache_view.h"
#include "ops/step_rows.h"

namespace fathom {

// One record: its data bytes and, packed, its exponent bytes (null when fp32).
struct CacheRecord {
  std::byte* data = nullptr;
  std::byte* scales = nullptr;
};

// The window record of a position of a sequence; the position's block must be in the window table.
CacheRecord window_record(const StepRows& rows, const CachePools& pools, const LayerCache& cache, std::int32_t sequence,
                          std::int32_t position);
// Compressed entry `entry` of a sequence: tokens [entry * ratio, (entry + 1) * ratio).
CacheRecord entry_record(const StepRows& rows, const CachePools& pools, const LayerCache& cache, std::int32_t sequence,
                         std::int64_t entry);
// The indexer key of the same entry (ratio 4).
CacheRecord index_key_record(const StepRows& rows, const CachePools& pools, const LayerCache& cache,
                             std::int32_t sequence, std::int64_t entry);

// The row of a position in a compressor array [slots, width] f32 at `offset_bytes` of a sequence's slab.
std::byte* state_row(const StepRows& rows, const CachePools& pools, std::int32_t sequence, std::int64_t offset_bytes,
                     std::int32_t ratio, std::int32_t width, std::int32_t position);

// kPacked: AQ 64 on the first nope_dim() channels, e4m3 codes and e + 127 bytes; the others as bf16; padding
// exponents zero; a block with a NaN has E8M0's NaN as its scale, so that all of it reads as NaN. kFloat: the values
// as they are.
void write_kv_record(const KvRecordLayout& layout, CacheRecord record, std::span<const float> values);
void read_kv_record(const KvRecordLayout& layout, CacheRecord record, std::span<float> values);
// kPacked: FQ 32, e2m1 pairs (low nibble = even channel) and e + 127 bytes. kFloat: the values as they are.
void write_index_key(const IndexKeyLayout& layout, CacheRecord record, std::span<const float> values);
void read_index_key(const IndexKeyLayout& layout, CacheRecord record, std::span<float> values);

}  // namespace fathom
