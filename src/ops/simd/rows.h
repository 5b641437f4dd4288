// One row of an element-wise operation on vectors; the instruction set is chosen at run time. Each result is a
// bitwise function of its own row. Pointers need no alignment; `round` means to bf16.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fathom::simd {

// out = weight * (x * rsqrt(mean(x^2) + eps)), weight bf16 (null: 1). `out` may be x.
void rms_norm_row(const float* x, const std::byte* weight, std::int64_t n, float eps, bool round, float* out);

// Interleaved pairs rotated by cos_sin [n / 2][2]; `out` may be x.
void rotate_row(const float* x, const float* cos_sin, std::int64_t n, bool inverse, bool round, float* out);

// x = H x / sqrt(n), n a power of two.
void hadamard_row(float* x, std::int64_t n);

// Simulated FQ in blocks of 32, simulated AQ in blocks of 64; in place.
void fake_quantise_e2m1_row(float* x, std::int64_t n);
void fake_quantise_e4m3_row(float* x, std::int64_t n);

// out = bf16 values widened.
void widen_bf16_row(const std::byte* x, std::int64_t n, float* out);

// x rounded to bf16 in place.
void round_row(float* x, std::int64_t n);

// out = a + b.
void add_rows(const float* a, const float* b, std::int64_t n, bool round, float* out);

// out = weight * (silu(min(a, limit)) * clamp(b, -limit, limit)); `out` may be a or b.
void swiglu_row(const float* a, const float* b, std::int64_t n, float limit, float weight, bool round, float* out);

// x = sqrt(softplus(x)), softplus(z) = z for z > 20 else log1p(exp z); in place.
void sqrt_softplus_row(float* x, std::int64_t n);

// sum of x^2.
float sum_of_squares_row(const float* x, std::int64_t n);

// out = sum_j weights[j] * streams[j], streams [hc][n].
void collapse_streams_row(const float* streams, const float* weights, std::int64_t hc, std::int64_t n, bool round,
                          float* out);

// next[k] = post[k] * y + sum_j comb[j][k] * h[j]; h and next [hc][n], comb [hc][hc].
void mix_streams_row(const float* h, const float* y, const float* post, const float* comb, std::int64_t hc,
                     std::int64_t n, bool round, float* next);

}  // namespace fathom::simd
