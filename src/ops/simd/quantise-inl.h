// AQ and FQ of spec 2.1 on vectors; bit for bit what tensor/block_quantise.h does.

// clang-format off
#if defined(FATHOM_OPS_SIMD_QUANTISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FATHOM_OPS_SIMD_QUANTISE_INL_H_
#undef FATHOM_OPS_SIMD_QUANTISE_INL_H_
#else
#define FATHOM_OPS_SIMD_QUANTISE_INL_H_
#endif
// clang-format on

#include "ops/simd/vectors-inl.h"
#include "tensor/block_quantise.h"

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {

// 2^e of a normal exponent.
HWY_INLINE float power_of_two(int e) {
  const auto bits = static_cast<std::uint32_t>(e + 127) << 23;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Keeps kBits mantissa bits, ties to even; below the smallest normal 2^kMinExponent the step stays that of its
// binade. |v| is within the format's largest value, which does not round up.
template <int kBits, int kMinExponent>
HWY_INLINE FloatVec round_to_grid(FloatVec v) {
  const FloatTag d;
  const UintTag du;
  constexpr int kShift = 23 - kBits;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<kShift>(bits), hn::Set(du, 1u));
  const auto half = hn::Set(du, (1u << (kShift - 1)) - 1);
  const auto mask = hn::Set(du, ~((1u << kShift) - 1));
  const FloatVec normal = hn::BitCast(d, hn::And(hn::Add(bits, hn::Add(odd, half)), mask));
  // Adding 1.5 * 2^23 steps rounds to a whole number of steps of 2^(kMinExponent - kBits).
  constexpr int kMagic = 23 + kMinExponent - kBits;
  const FloatVec magic = hn::Set(d, 1.5f * static_cast<float>(1 << kMagic));
  const FloatVec small = hn::CopySign(hn::Sub(hn::Add(v, magic), magic), v);
  const float limit = kMinExponent >= 0 ? static_cast<float>(1 << (kMinExponent > 0 ? kMinExponent : 0))
                                        : 1.0f / static_cast<float>(1 << (kMinExponent < 0 ? -kMinExponent : 0));
  return hn::IfThenElse(hn::Lt(hn::Abs(v), hn::Set(d, limit)), small, normal);
}

HWY_INLINE FloatVec round_to_e4m3(FloatVec v) { return round_to_grid<3, -6>(v); }
HWY_INLINE FloatVec round_to_e2m1(FloatVec v) { return round_to_grid<1, 0>(v); }

HWY_INLINE float absolute_maximum(const float* x, std::size_t n) {
  FloatVec amax = hn::Zero(FloatTag());
  std::size_t i = 0;
  // The other way round: a NaN among the values is passed over.
  for (; i + kLanes <= n; i += kLanes) amax = at_least(amax, hn::Abs(load(x + i)));
  if (i < n) amax = at_least(amax, hn::Abs(load_some(x + i, n - i)));
  return reduce_max(amax);
}

HWY_INLINE int e4m3_scale_exponent(float amax) { return ceil_log2((amax > 1e-4f ? amax : 1e-4f) * (1.0f / 448.0f)); }
HWY_INLINE int e2m1_scale_exponent(float amax) {
  constexpr float kFloor = 6.0f * 0x1p-126f;
  return ceil_log2((amax > kFloor ? amax : kFloor) * (1.0f / 6.0f));
}

// v / 2^e on the e4m3 grid (codes as numbers, not bits); NaN stays NaN.
HWY_INLINE FloatVec to_e4m3_steps(FloatVec v, FloatVec inverse_scale) {
  const FloatTag d;
  const FloatVec largest = hn::Set(d, 448.0f);
  const FloatVec steps = round_to_e4m3(at_least(at_most(hn::Mul(v, inverse_scale), largest), hn::Neg(largest)));
  return hn::IfThenElse(hn::Eq(v, v), steps, v);
}
HWY_INLINE FloatVec to_e2m1_steps(FloatVec v, FloatVec inverse_scale) {
  const FloatTag d;
  const FloatVec largest = hn::Set(d, 6.0f);
  return round_to_e2m1(hn::Max(hn::Min(hn::Mul(v, inverse_scale), largest), hn::Neg(largest)));
}

// Simulated AQ of one block of n values, n <= 128; out may be x.
HWY_INLINE void simulate_e4m3_block(const float* x, std::size_t n, float* out) {
  const FloatTag d;
  const int e = e4m3_scale_exponent(absolute_maximum(x, n));
  const FloatVec scale = hn::Set(d, power_of_two(e));
  const FloatVec inverse = hn::Set(d, power_of_two(-e));
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(hn::Mul(to_e4m3_steps(load(x + i), inverse), scale), out + i);
  if (i < n) store_some(hn::Mul(to_e4m3_steps(load_some(x + i, n - i), inverse), scale), out + i, n - i);
}

// Simulated FQ of one block of n values, n <= 32; out may be x. Returns the scale's exponent.
HWY_INLINE int simulate_e2m1_block(const float* x, std::size_t n, float* out) {
  const FloatTag d;
  const int e = e2m1_scale_exponent(absolute_maximum(x, n));
  const FloatVec scale = hn::Set(d, power_of_two(e));
  const FloatVec inverse = hn::Set(d, power_of_two(-e));
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(hn::Mul(to_e2m1_steps(load(x + i), inverse), scale), out + i);
  if (i < n) store_some(hn::Mul(to_e2m1_steps(load_some(x + i, n - i), inverse), scale), out + i, n - i);
  return e;
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#endif
