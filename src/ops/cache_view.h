// Where cached keys and compressor rows live (spec sections 3 and 10; architecture: Pinned 3).
//
// Positional: everything is found from a position, a block table and these offsets; lengths follow from
// the sequence's length. Rows at or beyond the length are never read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/units.h"

namespace fathom {

inline constexpr std::int32_t kBlockTokens = 128;  // tokens of a context block; rows of a window block
inline constexpr std::int32_t kMaxDraft = 8;       // most tokens a step may commit beyond the first

enum class CacheFormat : std::uint8_t {
  kFloat,   // records of fp32 (plain, vendor)
  kPacked,  // spec 10: e4m3 + bf16 rope + ue8m0 scales; index keys e2m1 + ue8m0 (serve)
};

// One key record: head_dim channels, the last rope_dim of them rotated. In a page of T records, the data
// of all come first, then the scales of all (packed only).
struct KvRecordLayout {
  CacheFormat format = CacheFormat::kPacked;
  std::int32_t head_dim = 512;
  std::int32_t rope_dim = 64;

  std::int32_t nope_dim() const { return head_dim - rope_dim; }
  std::int32_t num_scales() const { return static_cast<std::int32_t>(ceil_div(nope_dim(), 64)); }
  std::int64_t data_bytes() const {
    return format == CacheFormat::kPacked ? nope_dim() + 2 * rope_dim : 4 * static_cast<std::int64_t>(head_dim);
  }
  // Exponent bytes, padded to 8.
  std::int64_t scale_bytes() const { return format == CacheFormat::kPacked ? round_up(num_scales(), 8) : 0; }
  std::int64_t page_bytes(std::int64_t rows) const { return rows * (data_bytes() + scale_bytes()); }
  std::int64_t data_offset(std::int64_t row) const { return row * data_bytes(); }
  std::int64_t scale_offset(std::int64_t rows, std::int64_t row) const {
    return rows * data_bytes() + row * scale_bytes();
  }
};

// One indexer key: index_head_dim channels; packed = e2m1 pairs, then ue8m0 per 32 of all records.
struct IndexKeyLayout {
  CacheFormat format = CacheFormat::kPacked;
  std::int32_t head_dim = 128;

  std::int64_t data_bytes() const {
    return format == CacheFormat::kPacked ? head_dim / 2 : 4 * static_cast<std::int64_t>(head_dim);
  }
  std::int64_t scale_bytes() const { return format == CacheFormat::kPacked ? head_dim / 32 : 0; }
  std::int64_t page_bytes(std::int64_t rows) const { return rows * (data_bytes() + scale_bytes()); }
  std::int64_t data_offset(std::int64_t row) const { return row * data_bytes(); }
  std::int64_t scale_offset(std::int64_t rows, std::int64_t row) const {
    return rows * data_bytes() + row * scale_bytes();
  }
};

// Compressor rows u and g (fp32, ape added): position p is in slot p mod slots.
constexpr std::int32_t compressor_slots(std::int32_t ratio) { return (ratio == 4 ? 8 : 128) + kMaxDraft; }

// The three pools. A block's bytes are contiguous; block i starts at base + i * stride.
struct CachePools {
  std::byte* context = nullptr;
  std::int64_t context_block_bytes = 0;
  std::byte* window = nullptr;
  std::int64_t window_block_bytes = 0;
  std::byte* state = nullptr;
  std::int64_t state_slot_bytes = 0;
};

// One layer's place inside the blocks. Offsets are -1 where the layer's kind has no such state.
struct LayerCache {
  std::int32_t ratio = 0;  // 0, 4 or 128
  KvRecordLayout kv;
  IndexKeyLayout index_key;
  std::int64_t window_offset_bytes = -1;     // page of 128 records in a window block
  std::int64_t entry_offset_bytes = -1;      // page of 128 / ratio records in a context block
  std::int64_t index_key_offset_bytes = -1;  // page of 32 keys in a context block (ratio 4)
  std::int64_t main_u_offset_bytes = -1;     // [slots, c * head_dim] f32 in a state slab; c = 2 for ratio 4
  std::int64_t main_g_offset_bytes = -1;
  std::int64_t index_u_offset_bytes = -1;  // [slots, 2 * index_head_dim] f32 (ratio 4)
  std::int64_t index_g_offset_bytes = -1;

  std::int32_t entries_per_block() const { return ratio == 0 ? 0 : kBlockTokens / ratio; }
};

}  // namespace fathom
