#include "ops/hyper_connection/stream_weights.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ops/simd/rows.h"

namespace fathom {
namespace {

void divide_rows(float* comb, std::int32_t n, float eps) {
  for (std::int32_t j = 0; j < n; ++j) {
    float sum = eps;
    for (std::int32_t k = 0; k < n; ++k) sum += comb[j * n + k];
    for (std::int32_t k = 0; k < n; ++k) comb[j * n + k] /= sum;
  }
}

void divide_columns(float* comb, std::int32_t n, float eps) {
  for (std::int32_t k = 0; k < n; ++k) {
    float sum = eps;
    for (std::int32_t j = 0; j < n; ++j) sum += comb[j * n + k];
    for (std::int32_t j = 0; j < n; ++j) comb[j * n + k] /= sum;
  }
}

// The released models' size: constant bounds let the compiler keep the matrix in registers.
void sinkhorn_of_four(float* comb, std::int32_t iterations, float eps) {
  float c[16];
  std::copy_n(comb, 16, c);
  divide_columns(c, 4, eps);
  for (std::int32_t i = 1; i < iterations; ++i) {
    divide_rows(c, 4, eps);
    divide_columns(c, 4, eps);
  }
  std::copy_n(c, 16, comb);
}

}  // namespace

float mix_sigmoid(float z) { return 1.0f / (1.0f + std::exp(-z)); }

void sinkhorn_cpu(float* comb, std::int32_t n, std::int32_t iterations, float eps) {
  for (std::int32_t j = 0; j < n; ++j) {
    float* row = comb + j * n;
    const float maximum = *std::max_element(row, row + n);
    float sum = 0.0f;
    for (std::int32_t k = 0; k < n; ++k) {
      row[k] = std::exp(row[k] - maximum);
      sum += row[k];
    }
    for (std::int32_t k = 0; k < n; ++k) row[k] = row[k] / sum + eps;
  }
  if (n == 4) return sinkhorn_of_four(comb, iterations, eps);
  divide_columns(comb, n, eps);
  for (std::int32_t i = 1; i < iterations; ++i) {
    divide_rows(comb, n, eps);
    divide_columns(comb, n, eps);
  }
}

void mix_statistics_cpu(const ExecutionContext& context, const float* v, const std::int32_t* index,
                        std::int64_t num_rows, std::int64_t width, const View& fn, float eps, float* padded, float* m,
                        const simd::Tiles& tiles) {
  const std::int64_t outputs = fn.shape[0];
  LinearWeight weight;
  weight.format = WeightFormat::kF32;
  weight.out_features = outputs;
  weight.in_features = width;
  weight.values = fn;
  const auto row_of = [&](std::int64_t i) { return v + (index != nullptr ? index[i] : i) * width; };
  simd::InputRows x = {v, width, index};
  if (simd::prepared_columns(width) != width) {
    const std::int64_t padded_width = simd::prepared_columns(width);
    for (std::int64_t i = 0; i < num_rows; ++i) {
      simd::prepare_row(row_of(i), width, false, simd::ColumnOrder::kNatural, padded + i * padded_width);
    }
    x = {padded, padded_width, nullptr};
  }
  const std::array products = {simd::Product{.weight = &weight,
                                             .n_begin = 0,
                                             .n_end = outputs,
                                             .x = x,
                                             .out = {m, outputs, nullptr},
                                             .num_rows = num_rows,
                                             .how = {}}};
  simd::run_products(context, products, tiles);
  simd::for_rows(context, num_rows, width, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const float mean = simd::sum_of_squares_row(row_of(i), width) / static_cast<float>(width);
      const float factor = 1.0f / std::sqrt(mean + eps);
      for (std::int64_t o = 0; o < outputs; ++o) m[i * outputs + o] *= factor;
    }
  });
}

}  // namespace fathom
