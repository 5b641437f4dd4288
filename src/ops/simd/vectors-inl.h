// Vector building blocks of the `cpu` variants, once for each target.
//
// Lane order is part of the contract: a sum over K keeps one accumulator per lane, column c of a natural row in
// lane c mod L, and ends in reduce_four's tree. Whatever computes an output uses exactly this order, so a row's
// bits do not depend on how many rows share a call (architecture: row invariance). L differs between targets.

// clang-format off
#if defined(FATHOM_OPS_SIMD_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FATHOM_OPS_SIMD_VECTORS_INL_H_
#undef FATHOM_OPS_SIMD_VECTORS_INL_H_
#else
#define FATHOM_OPS_SIMD_VECTORS_INL_H_
#endif
// clang-format on

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
using IntTag = hn::RebindToSigned<FloatTag>;
using UintTag = hn::RebindToUnsigned<FloatTag>;

constexpr std::size_t kLanes = HWY_MAX_BYTES / sizeof(float);

HWY_INLINE FloatVec load(const float* p) { return hn::LoadU(FloatTag(), p); }
HWY_INLINE void store(FloatVec v, float* p) { hn::StoreU(v, FloatTag(), p); }

// [L] -> [4]: lanes i, i + 4, i + 8, ... are added, upper half to lower half.
template <class D>
HWY_INLINE hn::Vec<hn::CappedTag<float, 4>> fold_to_four([[maybe_unused]] D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return fold_to_four(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// The sums of four accumulators, each by the same tree: ((x0 + x2) + (x1 + x3)) inside each group of four lanes,
// then groups folded upper half to lower half.
HWY_INLINE hn::Vec<hn::CappedTag<float, 4>> reduce_four(FloatVec a, FloatVec b, FloatVec c, FloatVec d) {
  const FloatTag tag;
  const hn::RepartitionToWide<FloatTag> wide;
  const FloatVec ab = hn::Add(hn::InterleaveLower(tag, a, b), hn::InterleaveUpper(tag, a, b));
  const FloatVec cd = hn::Add(hn::InterleaveLower(tag, c, d), hn::InterleaveUpper(tag, c, d));
  const auto ab64 = hn::BitCast(wide, ab);
  const auto cd64 = hn::BitCast(wide, cd);
  const FloatVec low = hn::BitCast(tag, hn::InterleaveLower(wide, ab64, cd64));
  const FloatVec high = hn::BitCast(tag, hn::InterleaveUpper(wide, ab64, cd64));
  return fold_to_four(tag, hn::Add(low, high));
}

// One sum by reduce_four's tree.
HWY_INLINE float reduce_one(FloatVec a) {
  const FloatVec zero = hn::Zero(FloatTag());
  return hn::GetLane(reduce_four(a, zero, zero, zero));
}

// A NaN v stays NaN: x86's minimum and maximum give their second operand when either is NaN.
HWY_INLINE FloatVec at_most(FloatVec v, FloatVec bound) { return hn::Min(bound, v); }
HWY_INLINE FloatVec at_least(FloatVec v, FloatVec bound) { return hn::Max(bound, v); }

HWY_INLINE float reduce_max(FloatVec v) { return hn::GetLane(hn::MaxOfLanes(FloatTag(), v)); }

// Round to nearest even in bfloat16, as float_to_bf16 does; NaN stays NaN.
template <class D>
HWY_INLINE hn::Vec<D> round_to_bf16_vec(D d, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::And(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu))), hn::Set(du, 0xffff0000u));
  return hn::IfThenElse(hn::Eq(v, v), hn::BitCast(d, rounded), v);
}

// Elements [i, i + n) of an array, n <= L, the missing lanes `fill`.
HWY_INLINE FloatVec load_some(const float* p, std::size_t n, float fill = 0.0f) {
  if (n >= kLanes) return load(p);
  HWY_ALIGN float buffer[kLanes];
  for (std::size_t i = 0; i < kLanes; ++i) buffer[i] = i < n ? p[i] : fill;
  return hn::Load(FloatTag(), buffer);
}

HWY_INLINE void store_some(FloatVec v, float* p, std::size_t n) {
  if (n >= kLanes) return store(v, p);
  HWY_ALIGN float buffer[kLanes];
  hn::Store(v, FloatTag(), buffer);
  std::memcpy(p, buffer, n * sizeof(float));
}

// L bfloat16 values at any address.
HWY_INLINE FloatVec load_bf16(const std::uint8_t* p) {
  const hn::Rebind<std::uint16_t, FloatTag> d16;
  const hn::Repartition<std::uint8_t, decltype(d16)> d8;
  const auto half = hn::BitCast(d16, hn::LoadU(d8, p));
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(UintTag(), half)));
}

HWY_INLINE FloatVec load_bf16_some(const std::uint8_t* p, std::size_t n) {
  if (n >= kLanes) return load_bf16(p);
  std::uint8_t buffer[2 * kLanes] = {};
  std::memcpy(buffer, p, 2 * n);
  return load_bf16(buffer);
}

HWY_INLINE FloatVec load_f32(const std::uint8_t* p) {
  const hn::Repartition<std::uint8_t, FloatTag> d8;
  return hn::BitCast(FloatTag(), hn::LoadU(d8, p));
}

// L e4m3 codes times 2^-120: exponent and mantissa moved to fp32's places, so that subnormal codes come out
// right too; the caller's factor carries 2^120. The NaN codes 0x7f and 0xff would read as +-480: no weight has
// them (loading refuses it), and a cached block with NaN says so in its scale.
HWY_INLINE FloatVec load_e4m3(const std::uint8_t* p) {
  const hn::Rebind<std::int8_t, FloatTag> d8;
  const hn::Repartition<std::uint8_t, decltype(d8)> du8;
  const auto wide = hn::PromoteTo(IntTag(), hn::BitCast(d8, hn::LoadU(du8, p)));
  const auto mask = hn::Set(IntTag(), static_cast<std::int32_t>(0x87ffffffu));
  return hn::BitCast(FloatTag(), hn::And(hn::ShiftLeft<20>(wide), mask));
}

// The value of the e2m1 code in the low four bits of each lane, times `factor`; other bits may be anything.
HWY_INLINE FloatVec e2m1_value(hn::Vec<UintTag> code, FloatVec factor) {
  const FloatTag d;
#if HWY_TARGET == HWY_AVX3
  // The look-up reads four bits of an index. Codes that share a factor share a table.
  HWY_ALIGN static constexpr float kTable[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                                 -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  return hn::TableLookupLanes(hn::Mul(hn::Load(d, kTable), factor), hn::Indices512<float>{code.raw});
#else
  // Two exponent bits and one mantissa bit moved to fp32's places, times 2^126.
  const UintTag du;
  const auto magnitude = hn::ShiftLeft<22>(hn::And(code, hn::Set(du, 7u)));
  const auto sign = hn::ShiftLeft<28>(hn::And(code, hn::Set(du, 8u)));
  return hn::Mul(hn::Mul(hn::BitCast(d, hn::Or(magnitude, sign)), hn::Set(d, 0x1p126f)), factor);
#endif
}
HWY_INLINE FloatVec e2m1_value(hn::Vec<UintTag> code) { return e2m1_value(code, hn::Set(FloatTag(), 1.0f)); }

// L bytes of e2m1 pairs: the even columns' values and the odd columns', each times `factor`.
HWY_INLINE void load_e2m1(const std::uint8_t* p, FloatVec factor, FloatVec& even, FloatVec& odd) {
  const hn::Rebind<std::uint8_t, FloatTag> d8;
  const auto bytes = hn::PromoteTo(UintTag(), hn::LoadU(d8, p));
  even = e2m1_value(bytes, factor);
  odd = e2m1_value(hn::ShiftRight<4>(bytes), factor);
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#endif
