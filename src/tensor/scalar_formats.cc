#include "tensor/scalar_formats.h"

#include <algorithm>

namespace fathom {

float e4m3_to_float(std::uint8_t code) {
  const float sign = (code & 0x80) != 0 ? -1.0f : 1.0f;
  const int exponent = (code >> 3) & 0xf;
  const int mantissa = code & 0x7;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(0x7fc00000u | (code & 0x80u) << 24);
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -9);
  return sign * std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

std::uint8_t float_to_e4m3(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint8_t>((bits >> 24) & 0x80u);
  const float magnitude = std::fabs(value);
  if (std::isnan(magnitude)) return static_cast<std::uint8_t>(sign | 0x7f);
  // Below the smallest normal (2^-6) codes step by 2^-9; nearbyint rounds halves to even.
  if (magnitude < 0x1p-6f) {
    const auto steps = static_cast<int>(std::nearbyint(magnitude * 0x1p9f));
    return static_cast<std::uint8_t>(sign | steps);  // 8 steps are the smallest normal's code
  }
  std::uint32_t rounded = std::bit_cast<std::uint32_t>(magnitude);
  rounded += 0x7ffffu + ((rounded >> 20) & 1u);
  const int exponent = static_cast<int>(rounded >> 23) - 127 + 7;
  const auto mantissa = (rounded >> 20) & 0x7u;
  if (exponent > 15 || (exponent == 15 && mantissa == 7)) return static_cast<std::uint8_t>(sign | 0x7e);
  return static_cast<std::uint8_t>(sign | exponent << 3 | static_cast<int>(mantissa));
}

std::optional<std::size_t> find_e4m3_nan(std::span<const std::byte> codes) {
  constexpr std::size_t kStretch = 4096;
  constexpr std::uint8_t kNan = 0x7f;
  const auto magnitude = [&](std::size_t i) {
    return static_cast<std::uint8_t>(static_cast<std::uint8_t>(codes[i]) & kNan);
  };
  for (std::size_t begin = 0; begin < codes.size(); begin += kStretch) {
    const std::size_t end = std::min(begin + kStretch, codes.size());
    std::uint8_t largest = 0;  // of a stretch without leaving early: the compiler makes vectors of it
    for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, magnitude(i));
    if (largest != kNan) continue;
    for (std::size_t i = begin; i < end; ++i) {
      if (magnitude(i) == kNan) return i;
    }
  }
  return std::nullopt;
}

float e8m0_to_float(std::uint8_t code) {
  if (code == 255) return std::bit_cast<float>(0x7fc00000u);
  if (code == 0) return 0x1p-127f;
  return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 23);
}

std::uint8_t float_to_e2m1(float value) {
  const auto sign = static_cast<std::uint8_t>(std::signbit(value) ? 8 : 0);
  const float magnitude = std::fabs(value);
  std::uint8_t code = 7;
  if (magnitude <= 0.25f)
    code = 0;
  else if (magnitude < 0.75f)
    code = 1;
  else if (magnitude <= 1.25f)
    code = 2;
  else if (magnitude < 1.75f)
    code = 3;
  else if (magnitude <= 2.5f)
    code = 4;
  else if (magnitude < 3.5f)
    code = 5;
  else if (magnitude <= 5.0f)
    code = 6;
  return sign | code;
}

}  // namespace fathom
