// The scalar arithmetic of the `reference` variants: sums in double, one rounding to fp32 at the end.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/execution_context.h"
#include "ops/numerics.h"
#include "tensor/weights.h"

namespace fathom {

// sum_i a[i] * b[i] of n elements in double, in an order that depends on n alone.
double dot(const float* a, const float* b, std::int64_t n);
// 1 / sqrt(mean(x^2) + eps)
double inverse_rms(std::span<const float> x, float eps);
// out = store( weight * (x * rsqrt(mean(x^2) + eps)) ), spec 2.1. `out` may be x.
void rms_norm_row(std::span<const float> x, std::span<const float> weight, float eps, const Numerics& numerics,
                  std::span<float> out);

// Rotates the pairs (x[2i], x[2i+1]) by the angles whose cosines and sines are cos_sin[2i], cos_sin[2i+1], in
// fp32, and stores (spec 2.1, interleaved). kInverse negates the sines.
enum class Rotation : std::uint8_t { kForward, kInverse };
void rotate_pairs(std::span<float> x, const float* cos_sin, Rotation rotation, const Numerics& numerics);
// cos and sin of the fp32 angle fp32(position) * frequency (spec 2.1): two floats a frequency.
void rope_angles(std::int32_t position, std::span<const float> frequencies, std::span<float> cos_sin);

// y = H x / sqrt(n), H the natural-order Sylvester matrix, n a power of two; fp32 butterflies (spec 2.1).
void hadamard(std::span<float> x);

double sigmoid(double z);
double silu(double z);
// z for z > 20, else log1p(exp z) (spec 2.7.1).
double softplus(double z);

// What `weight` multiplies: x, through AQ 1x128 where the numerics and the weight's format ask for it.
// [rows, in_features], fp32.
std::vector<float> linear_input(const float* x, std::int64_t rows, const LinearWeight& weight,
                                const Numerics& numerics);

// y[t * y_stride + n - n_begin] = fp32( sum_k x[t * x_stride + k] * W[n][k] ), n in [n_begin, n_end). Split
// over the context's threads by n.
void scalar_matmul(const ExecutionContext& context, const float* x, std::int64_t x_stride, std::int64_t rows,
                   const LinearWeight& weight, std::int64_t n_begin, std::int64_t n_end, float* y,
                   std::int64_t y_stride);

}  // namespace fathom
