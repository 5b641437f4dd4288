#include "tensor/block_quantise.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "tensor/scalar_formats.h"

namespace fathom {
namespace {

float absolute_maximum(std::span<const float> values) {
  float amax = 0.0f;
  for (float value : values) amax = std::max(amax, std::fabs(value));
  return amax;
}

template <typename Quantise, typename Dequantise>
void simulate(std::span<float> values, std::int64_t block, Quantise quantise, Dequantise dequantise) {
  constexpr std::int64_t kMaxBlock = 128;
  FATHOM_CHECK(block <= kMaxBlock, "quantiser blocks hold at most 128 channels");
  std::uint8_t codes[kMaxBlock];
  for (std::size_t begin = 0; begin < values.size(); begin += static_cast<std::size_t>(block)) {
    const std::size_t n = std::min(static_cast<std::size_t>(block), values.size() - begin);
    const std::span<float> part = values.subspan(begin, n);
    const int exponent = quantise(part, std::span<std::uint8_t>(codes, n));
    for (std::size_t i = 0; i < n; ++i) part[i] = std::ldexp(dequantise(codes[i]), exponent);
  }
}

}  // namespace

int ceil_log2(float t) {
  const auto bits = std::bit_cast<std::uint32_t>(t);
  const int exponent = static_cast<int>(bits >> 23) - 127;
  return (bits & 0x7fffffu) == 0 ? exponent : exponent + 1;
}

int quantise_e4m3_block(std::span<const float> values, std::span<std::uint8_t> codes) {
  const float amax = std::max(absolute_maximum(values), 1e-4f);
  const int exponent = ceil_log2(amax * (1.0f / 448.0f));
  for (std::size_t i = 0; i < values.size(); ++i) {
    codes[i] = float_to_e4m3(std::clamp(std::ldexp(values[i], -exponent), -448.0f, 448.0f));
  }
  return exponent;
}

int quantise_e2m1_block(std::span<const float> values, std::span<std::uint8_t> codes) {
  const float amax = std::max(absolute_maximum(values), 6.0f * 0x1p-126f);
  const int exponent = ceil_log2(amax * (1.0f / 6.0f));
  for (std::size_t i = 0; i < values.size(); ++i) {
    codes[i] = float_to_e2m1(std::clamp(std::ldexp(values[i], -exponent), -6.0f, 6.0f));
  }
  return exponent;
}

void simulate_e4m3(std::span<float> values, std::int64_t block) {
  simulate(values, block, quantise_e4m3_block, e4m3_to_float);
}

void simulate_e2m1(std::span<float> values, std::int64_t block) {
  simulate(values, block, quantise_e2m1_block, [](std::uint8_t code) { return kE2m1Values[code & 15]; });
}

}  // namespace fathom
