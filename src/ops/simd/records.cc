#include "ops/simd/records.h"

#include "ops/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/simd/records.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "ops/simd/records-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {

void encode_record(const KvRecordLayout& layout, CacheRecord record, const float* values) {
  encode_kv_record(layout, values, record);
}
void decode_record(const KvRecordLayout& layout, CacheRecord record, float* values) {
  decode_kv_record(layout, record, values);
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom {
HWY_EXPORT(encode_record);
HWY_EXPORT(decode_record);

namespace simd {

void write_kv_record(const KvRecordLayout& layout, CacheRecord record, const float* values) {
  HWY_DYNAMIC_DISPATCH(encode_record)(layout, record, values);
}
void read_kv_record(const KvRecordLayout& layout, CacheRecord record, float* values) {
  HWY_DYNAMIC_DISPATCH(decode_record)(layout, record, values);
}

}  // namespace simd
}  // namespace fathom
#endif  // HWY_ONCE
