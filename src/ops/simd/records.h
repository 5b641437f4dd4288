// Cached records, written and read on vectors: the bits of ops/cache_records.h.
#pragma once

#include "ops/cache_records.h"

namespace fathom::simd {

// values [head_dim] fp32.
void write_kv_record(const KvRecordLayout& layout, CacheRecord record, const float* values);
void read_kv_record(const KvRecordLayout& layout, CacheRecord record, float* values);

}  // namespace fathom::simd
