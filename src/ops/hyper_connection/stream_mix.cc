#include "ops/hyper_connection/stream_mix.h"

#include <algorithm>
#include <cmath>

#include "ops/dequantise.h"
#include "ops/scalar_math.h"

namespace fathom {
namespace {

void normalise_rows(std::span<double> comb, std::size_t n, double eps) {
  for (std::size_t j = 0; j < n; ++j) {
    double sum = eps;
    for (std::size_t k = 0; k < n; ++k) sum += comb[j * n + k];
    for (std::size_t k = 0; k < n; ++k) comb[j * n + k] /= sum;
  }
}

void normalise_columns(std::span<double> comb, std::size_t n, double eps) {
  for (std::size_t k = 0; k < n; ++k) {
    double sum = eps;
    for (std::size_t j = 0; j < n; ++j) sum += comb[j * n + k];
    for (std::size_t j = 0; j < n; ++j) comb[j * n + k] /= sum;
  }
}

}  // namespace

std::vector<double> mix_statistics(std::span<const float> streams, const View& fn, std::int64_t num_rows, float eps) {
  const auto n = static_cast<std::int64_t>(streams.size());
  const double factor = inverse_rms(streams, eps);
  std::vector<double> statistics(static_cast<std::size_t>(num_rows));
  std::vector<float> weights(streams.size());
  for (std::int64_t i = 0; i < num_rows; ++i) {
    for (std::int64_t k = 0; k < n; ++k) weights[static_cast<std::size_t>(k)] = load_float(fn, i * n + k);
    statistics[static_cast<std::size_t>(i)] = dot(weights.data(), streams.data(), n) * factor;
  }
  return statistics;
}

void collapse_streams(std::span<const float> streams, std::span<const double> weights, const Numerics& numerics,
                      std::span<float> x) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    double sum = 0.0;
    for (std::size_t j = 0; j < weights.size(); ++j) {
      sum += weights[j] * static_cast<double>(streams[j * x.size() + i]);
    }
    x[i] = numerics.store(static_cast<float>(sum));
  }
}

void sinkhorn(std::span<double> comb, std::int32_t size, std::int32_t iterations, double eps) {
  const auto n = static_cast<std::size_t>(size);
  for (std::size_t j = 0; j < n; ++j) {
    const std::span<double> row = comb.subspan(j * n, n);
    const double maximum = *std::max_element(row.begin(), row.end());
    double sum = 0.0;
    for (double& value : row) {
      value = std::exp(value - maximum);
      sum += value;
    }
    for (double& value : row) value = value / sum + eps;
  }
  normalise_columns(comb, n, eps);
  for (std::int32_t i = 1; i < iterations; ++i) {
    normalise_rows(comb, n, eps);
    normalise_columns(comb, n, eps);
  }
}

}  // namespace fathom
