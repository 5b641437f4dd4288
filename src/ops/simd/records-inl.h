// Cached records on vectors; the bits are those of ops/cache_records.h.

// clang-format off
#if defined(FATHOM_OPS_SIMD_RECORDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FATHOM_OPS_SIMD_RECORDS_INL_H_
#undef FATHOM_OPS_SIMD_RECORDS_INL_H_
#else
#define FATHOM_OPS_SIMD_RECORDS_INL_H_
#endif
// clang-format on

#include <cmath>

#include "ops/cache_records.h"
#include "ops/simd/quantise-inl.h"
#include "ops/simd/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {

constexpr std::int64_t kKvBlock = 64;
constexpr std::int64_t kIndexBlock = 32;

constexpr std::byte kNanScale{255};  // of a block with a NaN

HWY_INLINE float exponent_byte_to_float(std::byte b) { return power_of_two(static_cast<int>(b) - 127); }

// [head_dim] fp32.
HWY_INLINE void decode_kv_record(const KvRecordLayout& layout, CacheRecord record, float* out) {
  if (layout.format == CacheFormat::kFloat) {
    std::memcpy(out, record.data, static_cast<std::size_t>(layout.head_dim) * sizeof(float));
    return;
  }
  const FloatTag d;
  const auto* data = reinterpret_cast<const std::uint8_t*>(record.data);
  const std::int64_t nope = layout.nope_dim();
  for (std::int64_t begin = 0; begin < nope; begin += kKvBlock) {
    // load_e4m3 leaves 2^120 out; beside a scale of 2^8 or more it needs a factor of its own.
    const int exponent = static_cast<int>(record.scales[begin / kKvBlock]) - 127;
    const bool wide = exponent > 7;
    const FloatVec factor = hn::Set(d, power_of_two(wide ? 120 : exponent + 120));
    const float left = record.scales[begin / kKvBlock] == kNanScale ? NAN : power_of_two(exponent);
    const FloatVec rest = hn::Set(d, wide ? left : 1.0f);
    const std::int64_t end = nope < begin + kKvBlock ? nope : begin + kKvBlock;
    std::int64_t i = begin;
    if (!wide) {
      for (; i + static_cast<std::int64_t>(kLanes) <= end; i += kLanes) {
        store(hn::Mul(load_e4m3(data + i), factor), out + i);
      }
    }
    for (; i < end; i += kLanes) {
      const auto lanes = static_cast<std::size_t>(end - i);
      std::uint8_t codes[kLanes] = {};
      std::memcpy(codes, data + i, lanes < kLanes ? lanes : kLanes);
      store_some(hn::Mul(hn::Mul(load_e4m3(codes), factor), rest), out + i, lanes);
    }
  }
  for (std::int64_t i = 0; i < layout.rope_dim; i += kLanes) {
    const auto lanes = static_cast<std::size_t>(layout.rope_dim - i);
    store_some(load_bf16_some(data + nope + 2 * i, lanes), out + nope + i, lanes);
  }
}

// Codes of `lanes` values already on the e4m3 grid, divided by the scale.
HWY_INLINE void store_e4m3_codes(FloatVec steps, std::byte* out, std::size_t lanes) {
  const UintTag du;
  // Times 2^-120 puts exponent and mantissa where load_e4m3 takes them from, subnormal codes included.
  const auto bits = hn::BitCast(du, hn::Mul(steps, hn::Set(FloatTag(), 0x1p-120f)));
  const auto number = hn::And(hn::ShiftRight<20>(bits), hn::Set(du, 0x7fu));
  const auto is_number = hn::RebindMask(du, hn::Eq(steps, steps));
  const auto code = hn::Or(hn::IfThenElse(is_number, number, hn::Set(du, 0x7fu)),
                           hn::And(hn::ShiftRight<24>(bits), hn::Set(du, 0x80u)));
  const hn::Rebind<std::uint8_t, FloatTag> d8;
  const auto codes = hn::U8FromU32(code);
  if (lanes >= kLanes) return hn::StoreU(codes, d8, reinterpret_cast<std::uint8_t*>(out));
  HWY_ALIGN std::uint8_t buffer[kLanes];
  hn::Store(codes, d8, buffer);
  std::memcpy(out, buffer, lanes);
}

HWY_INLINE void store_bf16(FloatVec v, std::byte* out, std::size_t lanes) {
  HWY_ALIGN std::uint32_t bits[kLanes];
  hn::Store(hn::BitCast(UintTag(), round_to_bf16_vec(FloatTag(), v)), UintTag(), bits);
  for (std::size_t i = 0; i < kLanes && i < lanes; ++i) {
    const auto half = static_cast<std::uint16_t>(bits[i] >> 16);
    std::memcpy(out + 2 * i, &half, 2);
  }
}

HWY_INLINE void encode_kv_record(const KvRecordLayout& layout, const float* values, CacheRecord record) {
  if (layout.format == CacheFormat::kFloat) {
    std::memcpy(record.data, values, static_cast<std::size_t>(layout.head_dim) * sizeof(float));
    return;
  }
  const std::int64_t nope = layout.nope_dim();
  std::memset(record.scales, 0, static_cast<std::size_t>(layout.scale_bytes()));
  for (std::int64_t begin = 0; begin < nope; begin += kKvBlock) {
    const std::int64_t n = nope - begin < kKvBlock ? nope - begin : kKvBlock;
    const int e = e4m3_scale_exponent(absolute_maximum(values + begin, static_cast<std::size_t>(n)));
    const FloatVec inverse = hn::Set(FloatTag(), power_of_two(-e));
    FloatVec sum = hn::Zero(FloatTag());
    for (std::int64_t i = begin; i < begin + n; i += kLanes) {
      const auto lanes = static_cast<std::size_t>(begin + n - i);
      const FloatVec steps = to_e4m3_steps(load_some(values + i, lanes), inverse);
      store_e4m3_codes(steps, record.data + i, lanes);
      sum = hn::Add(sum, steps);  // of at most 448 each: not a number only where one of them is not
    }
    const bool has_nan = std::isnan(reduce_one(sum));
    record.scales[begin / kKvBlock] = has_nan ? kNanScale : static_cast<std::byte>(e + 127);
  }
  for (std::int64_t i = 0; i < layout.rope_dim; i += kLanes) {
    const auto lanes = static_cast<std::size_t>(layout.rope_dim - i);
    store_bf16(load_some(values + nope + i, lanes), record.data + nope + 2 * i, lanes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#endif
