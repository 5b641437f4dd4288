#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "ops/rope_rows/rope_rows.h"

namespace fathom {
namespace {

// The pair index whose wavelength makes `turns` turns over the original context (spec 2.1, c(n)).
double correction_index(double turns, double base, double rope_dim, double context) {
  constexpr double kPi = 3.14159265358979323846;
  return rope_dim * std::log(context / (turns * 2.0 * kPi)) / (2.0 * std::log(base));
}

}  // namespace

std::vector<float> make_rope_frequencies(double base, std::int32_t rope_dim, const YarnScaling& scaling) {
  FATHOM_CHECK(rope_dim > 0 && rope_dim % 2 == 0, "channels rotate in pairs");
  std::vector<float> frequencies(static_cast<std::size_t>(rope_dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const auto t = static_cast<float>(std::pow(base, 2.0 * static_cast<double>(i) / rope_dim));
    frequencies[i] = 1.0f / t;
  }
  if (scaling.factor == 1.0f) return frequencies;

  const auto context = static_cast<double>(scaling.original_max_position_embeddings);
  const double low = std::max(std::floor(correction_index(scaling.beta_fast, base, rope_dim, context)), 0.0);
  double high = std::min(std::ceil(correction_index(scaling.beta_slow, base, rope_dim, context)), rope_dim - 1.0);
  if (high == low) high += 0.001;  // a step instead of a division by zero
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float position = static_cast<float>(i) - static_cast<float>(low);
    const float ramp = std::clamp(position / static_cast<float>(high - low), 0.0f, 1.0f);
    const float scaled = frequencies[i] / scaling.factor * ramp;
    const float kept = frequencies[i] * (1.0f - ramp);
    frequencies[i] = scaled + kept;
  }
  return frequencies;
}

}  // namespace fathom
