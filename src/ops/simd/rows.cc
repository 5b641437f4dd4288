#include "ops/simd/rows.h"

#include "ops/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/simd/rows.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "ops/simd/quantise-inl.h"
#include "ops/simd/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {

void rms_norm_row_of(const float* x, const std::byte* weight, std::int64_t n, float eps, bool round, float* out) {
  if (weight != nullptr) return rms_norm(x, reinterpret_cast<const std::uint8_t*>(weight), n, eps, round, out);
  const FloatVec factor = hn::Set(FloatTag(), inverse_rms(sum_of_squares(x, n), n, eps));
  for_each_vector(n, [&](std::int64_t i, std::size_t lanes) HWY_ATTR {
    store_some(round_if(round, hn::Mul(load_some(x + i, lanes), factor)), out + i, lanes);
  });
}

void rotate_row_of(const float* x, const float* cos_sin, std::int64_t n, bool inverse, bool round, float* out) {
  return inverse ? rotate<true>(x, cos_sin, n, round, out) : rotate<false>(x, cos_sin, n, round, out);
}

void hadamard_row_of(float* x, std::int64_t n) { hadamard_in_place(x, n); }

void fake_quantise_e2m1_row_of(float* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 32) {
    simulate_e2m1_block(x + i, static_cast<std::size_t>(n - i < 32 ? n - i : 32), x + i);
  }
}

void fake_quantise_e4m3_row_of(float* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 64) {
    simulate_e4m3_block(x + i, static_cast<std::size_t>(n - i < 64 ? n - i : 64), x + i);
  }
}

void widen_bf16_row_of(const std::byte* x, std::int64_t n, float* out) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(x);
  for_each_vector(n, [&](std::int64_t i, std::size_t lanes)
                         HWY_ATTR { store_some(load_bf16_some(bytes + 2 * i, lanes), out + i, lanes); });
}

void round_row_of(float* x, std::int64_t n) {
  for_each_vector(n, [&](std::int64_t i, std::size_t lanes)
                         HWY_ATTR { store_some(round_if(true, load_some(x + i, lanes)), x + i, lanes); });
}

void add_rows_of(const float* a, const float* b, std::int64_t n, bool round, float* out) {
  for_each_vector(n, [&](std::int64_t i, std::size_t lanes) HWY_ATTR {
    store_some(round_if(round, hn::Add(load_some(a + i, lanes), load_some(b + i, lanes))), out + i, lanes);
  });
}

void swiglu_row_of(const float* a, const float* b, std::int64_t n, float limit, float weight, bool round, float* out) {
  const FloatTag d;
  const FloatVec high = hn::Set(d, limit), low = hn::Set(d, -limit), factor = hn::Set(d, weight);
  for_each_vector(n, [&](std::int64_t i, std::size_t lanes) HWY_ATTR {
    const FloatVec gate = at_most(load_some(a + i, lanes), high);
    const FloatVec up = at_least(at_most(load_some(b + i, lanes), high), low);
    const FloatVec silu = hn::Mul(gate, sigmoid_vec(gate));
    store_some(round_if(round, hn::Mul(factor, hn::Mul(silu, up))), out + i, lanes);
  });
}

void sqrt_softplus_row_of(float* x, std::int64_t n) {
  const FloatTag d;
  const FloatVec large = hn::Set(d, 20.0f);
  for_each_vector(n, [&](std::int64_t i, std::size_t lanes) HWY_ATTR {
    const FloatVec z = load_some(x + i, lanes);
    const FloatVec soft = hn::Log1p(d, exp_vec(at_most(z, large)));
    store_some(hn::Sqrt(hn::IfThenElse(hn::Gt(z, large), z, soft)), x + i, lanes);
  });
}

float sum_of_squares_row_of(const float* x, std::int64_t n) { return sum_of_squares(x, n); }

void collapse_streams_row_of(const float* streams, const float* weights, std::int64_t hc, std::int64_t n, bool round,
                             float* out) {
  const FloatTag d;
  for_each_vector(n, [&](std::int64_t i, std::size_t lanes) HWY_ATTR {
    FloatVec sum = hn::Mul(hn::Set(d, weights[0]), load_some(streams + i, lanes));
    for (std::int64_t j = 1; j < hc; ++j) {
      sum = hn::MulAdd(hn::Set(d, weights[j]), load_some(streams + j * n + i, lanes), sum);
    }
    store_some(round_if(round, sum), out + i, lanes);
  });
}

void mix_streams_row_of(const float* h, const float* y, const float* post, const float* comb, std::int64_t hc,
                        std::int64_t n, bool round, float* next) {
  const FloatTag d;
  for_each_vector(n, [&](std::int64_t i, std::size_t lanes) HWY_ATTR {
    const FloatVec out = load_some(y + i, lanes);
    for (std::int64_t k = 0; k < hc; ++k) {
      FloatVec sum = hn::Mul(hn::Set(d, post[k]), out);
      for (std::int64_t j = 0; j < hc; ++j) {
        sum = hn::MulAdd(hn::Set(d, comb[j * hc + k]), load_some(h + j * n + i, lanes), sum);
      }
      store_some(round_if(round, sum), next + k * n + i, lanes);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom {
HWY_EXPORT(rms_norm_row_of);
HWY_EXPORT(rotate_row_of);
HWY_EXPORT(hadamard_row_of);
HWY_EXPORT(fake_quantise_e2m1_row_of);
HWY_EXPORT(fake_quantise_e4m3_row_of);
HWY_EXPORT(widen_bf16_row_of);
HWY_EXPORT(round_row_of);
HWY_EXPORT(add_rows_of);
HWY_EXPORT(swiglu_row_of);
HWY_EXPORT(sqrt_softplus_row_of);
HWY_EXPORT(sum_of_squares_row_of);
HWY_EXPORT(collapse_streams_row_of);
HWY_EXPORT(mix_streams_row_of);

namespace simd {

void rms_norm_row(const float* x, const std::byte* weight, std::int64_t n, float eps, bool round, float* out) {
  HWY_DYNAMIC_DISPATCH(rms_norm_row_of)(x, weight, n, eps, round, out);
}
void rotate_row(const float* x, const float* cos_sin, std::int64_t n, bool inverse, bool round, float* out) {
  HWY_DYNAMIC_DISPATCH(rotate_row_of)(x, cos_sin, n, inverse, round, out);
}
void hadamard_row(float* x, std::int64_t n) { HWY_DYNAMIC_DISPATCH(hadamard_row_of)(x, n); }
void fake_quantise_e2m1_row(float* x, std::int64_t n) { HWY_DYNAMIC_DISPATCH(fake_quantise_e2m1_row_of)(x, n); }
void fake_quantise_e4m3_row(float* x, std::int64_t n) { HWY_DYNAMIC_DISPATCH(fake_quantise_e4m3_row_of)(x, n); }
void widen_bf16_row(const std::byte* x, std::int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(widen_bf16_row_of)(x, n, out);
}
void round_row(float* x, std::int64_t n) { HWY_DYNAMIC_DISPATCH(round_row_of)(x, n); }
void add_rows(const float* a, const float* b, std::int64_t n, bool round, float* out) {
  HWY_DYNAMIC_DISPATCH(add_rows_of)(a, b, n, round, out);
}
void swiglu_row(const float* a, const float* b, std::int64_t n, float limit, float weight, bool round, float* out) {
  HWY_DYNAMIC_DISPATCH(swiglu_row_of)(a, b, n, limit, weight, round, out);
}
void sqrt_softplus_row(float* x, std::int64_t n) { HWY_DYNAMIC_DISPATCH(sqrt_softplus_row_of)(x, n); }
float sum_of_squares_row(const float* x, std::int64_t n) { return HWY_DYNAMIC_DISPATCH(sum_of_squares_row_of)(x, n); }
void collapse_streams_row(const float* streams, const float* weights, std::int64_t hc, std::int64_t n, bool round,
                          float* out) {
  HWY_DYNAMIC_DISPATCH(collapse_streams_row_of)(streams, weights, hc, n, round, out);
}
void mix_streams_row(const float* h, const float* y, const float* post, const float* comb, std::int64_t hc,
                     std::int64_t n, bool round, float* next) {
  HWY_DYNAMIC_DISPATCH(mix_streams_row_of)(h, y, post, comb, hc, n, round, next);
}

}  // namespace simd
}  // namespace fathom
#endif  // HWY_ONCE
