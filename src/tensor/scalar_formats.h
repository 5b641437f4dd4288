// Scalar number formats of spec section 6, exactly, one value at a time.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

namespace fathom {

using Bf16 = std::uint16_t;  // storage of a bfloat16

constexpr float bf16_to_float(Bf16 bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

// Round to nearest even; NaN stays NaN.
constexpr Bf16 float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<Bf16>((bits >> 16) | 0x40u);
  return static_cast<Bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// The fp32 value nearest in bfloat16: the rounding points of `serve` numerics.
constexpr float round_to_bf16(float value) { return bf16_to_float(float_to_bf16(value)); }

// E4M3FN: 1-4-3, bias 7, no infinities, 0x7f / 0xff NaN, largest 448.
float e4m3_to_float(std::uint8_t code);
// Round to nearest even of a value already clamped to [-448, 448].
std::uint8_t float_to_e4m3(float value);

// Index of the first NaN among e4m3 codes; nothing when there is none. As fast as memory is read.
std::optional<std::size_t> find_e4m3_nan(std::span<const std::byte> codes);

// E8M0: 2^(code - 127); 255 is NaN; 0 is 2^-127.
float e8m0_to_float(std::uint8_t code);

// E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives (bit 3 is the sign).
inline constexpr float kE2m1Values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                          -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
// Round to nearest even of a value already clamped to [-6, 6] (ties: 0.25 -> 0, 0.75 -> 1, 1.25 -> 1,
// 1.75 -> 2, 2.5 -> 2, 3.5 -> 4, 5 -> 4); negative values that round to zero give -0.
std::uint8_t float_to_e2m1(float value);

}  // namespace fathom
