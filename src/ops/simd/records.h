// Cached records, written and read on vectors: the bits of ops/cache_records.h.
#pragma once

#include "ops/cache_records.h"

namespace fathom::simd {

// values [head_dim] fp32.
void write_kv_record(const KvRecordLayout& layout, CacheRecord record, const float* values);
void read_kv_record(const KvRecordLayout& layout, CacheRecord record, float* values);

// Records stand apart in the pools: asked for together, they arrive together.
inline void prefetch_kv_record(const KvRecordLayout& layout, CacheRecord record) {
  constexpr std::int64_t kLine = 64;
  const std::int64_t bytes = layout.data_bytes();
  for (std::int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(record.data + at);
  __builtin_prefetch(record.data + bytes - 1);
  if (record.scales != nullptr) __builtin_prefetch(record.scales);
}

}  // namespace fathom::simd
