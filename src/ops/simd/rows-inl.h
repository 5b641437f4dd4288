// One row at a time: norms, rotation, Hadamard, exponentials. Every function's result is a bitwise function of its
// row alone.

// clang-format off
#if defined(FATHOM_OPS_SIMD_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FATHOM_OPS_SIMD_ROWS_INL_H_
#undef FATHOM_OPS_SIMD_ROWS_INL_H_
#else
#define FATHOM_OPS_SIMD_ROWS_INL_H_
#endif
// clang-format on

#include <hwy/contrib/math/math-inl.h>

#include <cmath>

#include "ops/simd/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {

HWY_INLINE float sum_of_squares(const float* x, std::int64_t n) {
  FloatVec a = hn::Zero(FloatTag()), b = a;
  std::int64_t i = 0;
  for (; i + 2 * static_cast<std::int64_t>(kLanes) <= n; i += 2 * kLanes) {
    const FloatVec v = load(x + i), w = load(x + i + kLanes);
    a = hn::MulAdd(v, v, a);
    b = hn::MulAdd(w, w, b);
  }
  for (; i < n; i += kLanes) {
    const FloatVec v = load_some(x + i, static_cast<std::size_t>(n - i));
    a = hn::MulAdd(v, v, a);
  }
  return reduce_one(hn::Add(a, b));
}

HWY_INLINE float inverse_rms(float squares, std::int64_t n, float eps) {
  return 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
}

HWY_INLINE FloatVec round_if(bool round, FloatVec v) { return round ? round_to_bf16_vec(FloatTag(), v) : v; }

// body(i, n) for each vector of a row of `count` elements: n lanes are inside it.
template <typename Body>
HWY_INLINE void for_each_vector(std::int64_t count, Body body) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    body(i, count - i < static_cast<std::int64_t>(kLanes) ? static_cast<std::size_t>(count - i) : kLanes);
  }
}

// out = store( weight * (x * factor) ); weight bf16 at any address. `out` may be x.
HWY_INLINE void scale_row(const float* x, const std::uint8_t* weight, std::int64_t n, float factor, bool round,
                          float* out) {
  const FloatVec f = hn::Set(FloatTag(), factor);
  for_each_vector(n, [&](std::int64_t i, std::size_t lanes) HWY_ATTR {
    const FloatVec w = load_bf16_some(weight + 2 * i, lanes);
    store_some(round_if(round, hn::Mul(w, hn::Mul(load_some(x + i, lanes), f))), out + i, lanes);
  });
}

HWY_INLINE void rms_norm(const float* x, const std::uint8_t* weight, std::int64_t n, float eps, bool round,
                         float* out) {
  scale_row(x, weight, n, inverse_rms(sum_of_squares(x, n), n, eps), round, out);
}

// (x0, x1) -> (x0 cos - x1 sin, x0 sin + x1 cos) for interleaved pairs; each product rounded on its own, as the
// reference has it. `n` channels, cos_sin interleaved; kInverse negates the sines. `out` may be x.
template <bool kInverse>
HWY_INLINE void rotate(const float* x, const float* cos_sin, std::int64_t n, bool round, float* out) {
  const FloatTag d;
  const FloatVec sign =
      kInverse ? hn::OddEven(hn::Set(d, -1.0f), hn::Set(d, 1.0f)) : hn::OddEven(hn::Set(d, 1.0f), hn::Set(d, -1.0f));
  for_each_vector(n, [&](std::int64_t i, std::size_t lanes) HWY_ATTR {
    const FloatVec v = load_some(x + i, lanes);
    const FloatVec cs = load_some(cos_sin + i, lanes);
    const FloatVec swapped = hn::Reverse2(d, v);
    const FloatVec sine = hn::Mul(hn::DupOdd(cs), sign);
    store_some(round_if(round, hn::Add(hn::Mul(v, hn::DupEven(cs)), hn::Mul(swapped, sine))), out + i, lanes);
  });
}

// y = H x / sqrt(n), n a power of two of at most 1024; in place.
HWY_INLINE void hadamard_in_place(float* x, std::int64_t n) {
  constexpr auto kVector = static_cast<std::int64_t>(kLanes);
  for (std::int64_t half = 1; half < n; half *= 2) {
    if (half >= kVector) {
      for (std::int64_t begin = 0; begin < n; begin += 2 * half) {
        for (std::int64_t i = begin; i < begin + half; i += kLanes) {
          const FloatVec a = load(x + i), b = load(x + i + half);
          store(hn::Add(a, b), x + i);
          store(hn::Sub(a, b), x + i + half);
        }
      }
    } else if (n >= kVector) {
      // Pairs inside a vector: each lane adds its partner, the upper one of a pair with its own sign turned.
      const FloatTag d;
      const IntTag di;
      const auto lane = hn::Iota(di, 0), distance = hn::Set(di, static_cast<std::int32_t>(half));
      const auto partner = hn::IndicesFromVec(d, hn::Xor(lane, distance));
      const auto lower = hn::Eq(hn::And(lane, distance), hn::Zero(di));
      const FloatVec sign = hn::BitCast(d, hn::IfThenElse(lower, hn::Zero(di), hn::Set(di, std::int32_t{INT32_MIN})));
      for (std::int64_t i = 0; i < n; i += kLanes) {
        const FloatVec v = load(x + i);
        store(hn::Add(hn::TableLookupLanes(v, partner), hn::Xor(v, sign)), x + i);
      }
    } else {
      for (std::int64_t begin = 0; begin < n; begin += 2 * half) {
        for (std::int64_t i = begin; i < begin + half; ++i) {
          const float a = x[i], b = x[i + half];
          x[i] = a + b;
          x[i + half] = a - b;
        }
      }
    }
  }
  const float factor = 1.0f / std::sqrt(static_cast<float>(n));
  for (std::int64_t i = 0; i < n; ++i) x[i] *= factor;
}

// Highway's own gives 0 for NaN.
HWY_INLINE FloatVec exp_vec(FloatVec v) { return hn::IfThenElse(hn::Eq(v, v), hn::Exp(FloatTag(), v), v); }

// 1 / (1 + exp(-v)); beyond -87 the exponential would leave fp32.
HWY_INLINE FloatVec sigmoid_vec(FloatVec v) {
  const FloatTag d;
  const FloatVec one = hn::Set(d, 1.0f);
  const FloatVec e = exp_vec(at_most(hn::Neg(v), hn::Set(d, 87.0f)));
  return hn::Div(one, hn::Add(one, e));
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#endif
