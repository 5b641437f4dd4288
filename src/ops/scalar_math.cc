#include "ops/scalar_math.h"

#include <cmath>

#include "base/check.h"
#include "ops/dequantise.h"
#include "ops/parallel.h"
#include "tensor/block_quantise.h"

namespace fathom {

double dot(const float* a, const float* b, std::int64_t n) {
  // Several partial sums let the compiler use vector registers; which element goes to which is fixed.
  constexpr std::int64_t kPartials = 8;
  double partial[kPartials] = {};
  std::int64_t i = 0;
  for (; i + kPartials <= n; i += kPartials) {
    for (std::int64_t j = 0; j < kPartials; ++j) {
      partial[j] += static_cast<double>(a[i + j]) * static_cast<double>(b[i + j]);
    }
  }
  for (; i < n; ++i) partial[i % kPartials] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  double sum = 0.0;
  for (double value : partial) sum += value;
  return sum;
}

double inverse_rms(std::span<const float> x, float eps) {
  const auto n = static_cast<std::int64_t>(x.size());
  return 1.0 / std::sqrt(dot(x.data(), x.data(), n) / static_cast<double>(n) + static_cast<double>(eps));
}

void rms_norm_row(std::span<const float> x, std::span<const float> weight, float eps, const Numerics& numerics,
                  std::span<float> out) {
  const double factor = inverse_rms(x, eps);
  for (std::size_t i = 0; i < x.size(); ++i) {
    out[i] = numerics.store(static_cast<float>(static_cast<double>(weight[i]) * (static_cast<double>(x[i]) * factor)));
  }
}

void rotate_pairs(std::span<float> x, const float* cos_sin, Rotation rotation, const Numerics& numerics) {
  for (std::size_t i = 0; i < x.size() / 2; ++i) {
    const float c = cos_sin[2 * i];
    const float s = rotation == Rotation::kForward ? cos_sin[2 * i + 1] : -cos_sin[2 * i + 1];
    const float x0 = x[2 * i];
    const float x1 = x[2 * i + 1];
    x[2 * i] = numerics.store(x0 * c - x1 * s);
    x[2 * i + 1] = numerics.store(x0 * s + x1 * c);
  }
}

void rope_angles(std::int32_t position, std::span<const float> frequencies, std::span<float> cos_sin) {
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float angle = static_cast<float>(position) * frequencies[i];
    cos_sin[2 * i] = static_cast<float>(std::cos(static_cast<double>(angle)));
    cos_sin[2 * i + 1] = static_cast<float>(std::sin(static_cast<double>(angle)));
  }
}

void hadamard(std::span<float> x) {
  const std::size_t n = x.size();
  FATHOM_CHECK(n > 0 && (n & (n - 1)) == 0, "a Hadamard transform has a power of two of channels");
  for (std::size_t half = 1; half < n; half *= 2) {
    for (std::size_t begin = 0; begin < n; begin += 2 * half) {
      for (std::size_t i = begin; i < begin + half; ++i) {
        const float sum = x[i] + x[i + half];
        const float difference = x[i] - x[i + half];
        x[i] = sum;
        x[i + half] = difference;
      }
    }
  }
  const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
  for (float& value : x) value *= factor;
}

double sigmoid(double z) { return 1.0 / (1.0 + std::exp(-z)); }

double silu(double z) { return z * sigmoid(z); }

double softplus(double z) { return z > 20.0 ? z : std::log1p(std::exp(z)); }

std::vector<float> linear_input(const float* x, std::int64_t rows, const LinearWeight& weight,
                                const Numerics& numerics) {
  const std::int64_t k = weight.in_features;
  std::vector<float> input(x, x + rows * k);
  if (!numerics.quantise_linear_input || !weight.quantises_input()) return input;
  for (std::int64_t t = 0; t < rows; ++t) {
    simulate_e4m3(std::span<float>(input).subspan(static_cast<std::size_t>(t * k), static_cast<std::size_t>(k)), 128);
  }
  return input;
}

void scalar_matmul(const ExecutionContext& context, const float* x, std::int64_t x_stride, std::int64_t rows,
                   const LinearWeight& weight, std::int64_t n_begin, std::int64_t n_end, float* y,
                   std::int64_t y_stride) {
  parallel_ranges(context, n_end - n_begin, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> w(static_cast<std::size_t>(weight.in_features));
    for (std::int64_t i = begin; i < end; ++i) {
      dequantise_row(weight, n_begin + i, w);
      for (std::int64_t t = 0; t < rows; ++t) {
        y[t * y_stride + i] = static_cast<float>(dot(x + t * x_stride, w.data(), weight.in_features));
      }
    }
  });
}

}  // namespace fathom
