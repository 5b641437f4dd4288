#include "tensor/scalar_formats.h"

#include <gtest/gtest.h>

#include <vector>

#include "tensor/block_quantise.h"

namespace fathom {
namespace {

TEST(ScalarFormats, EveryE4m3CodeRoundTrips) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<std::uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    EXPECT_EQ(float_to_e4m3(value), code) << value;
  }
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0f);
  EXPECT_EQ(e4m3_to_float(0x08), 0x1p-6f);
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9f);
}

// Nearest code, ties to the even code, against a search over all codes.
TEST(ScalarFormats, E4m3RoundsToNearestEven) {
  for (int step = -200000; step <= 200000; ++step) {
    const float value = static_cast<float>(step) * 0x1.0p-9f * 1.1484375f;
    if (std::fabs(value) > 448.0f) continue;
    const float got = e4m3_to_float(float_to_e4m3(value));
    for (int code = 0; code < 127; ++code) {
      const float candidate = std::copysign(e4m3_to_float(static_cast<std::uint8_t>(code)), value);
      ASSERT_LE(std::fabs(got - value), std::fabs(candidate - value)) << value;
      if (candidate != got && std::fabs(got - value) == std::fabs(candidate - value)) {
        ASSERT_EQ(float_to_e4m3(value) & 1, 0) << value;
      }
    }
  }
}

TEST(ScalarFormats, E2m1Ties) {
  const std::vector<std::pair<float, float>> ties = {{0.25f, 0.0f}, {0.75f, 1.0f}, {1.25f, 1.0f}, {1.75f, 2.0f},
                                                     {2.5f, 2.0f},  {3.5f, 4.0f},  {5.0f, 4.0f}};
  for (const auto& [value, expected] : ties) {
    EXPECT_EQ(kE2m1Values[float_to_e2m1(value)], expected);
    EXPECT_EQ(kE2m1Values[float_to_e2m1(-value)], -expected);
    EXPECT_TRUE(std::signbit(kE2m1Values[float_to_e2m1(-value)]));
  }
}

TEST(ScalarFormats, Bf16RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(round_to_bf16(1.00390625f), 1.0f);       // half way, even below
  EXPECT_EQ(round_to_bf16(1.01171875f), 1.015625f);  // half way, even above
  EXPECT_EQ(round_to_bf16(0.10009766f), 0.10009765625f);
  EXPECT_TRUE(std::isnan(round_to_bf16(std::nanf(""))));
}

TEST(ScalarFormats, E8m0) {
  EXPECT_EQ(e8m0_to_float(127), 1.0f);
  EXPECT_EQ(e8m0_to_float(0), 0x1p-127f);
  EXPECT_EQ(e8m0_to_float(254), 0x1p127f);
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

std::vector<float> bf16_values(std::initializer_list<float> values) {
  std::vector<float> rounded;
  for (float value : values) rounded.push_back(round_to_bf16(value));
  return rounded;
}

// Spec section 12, "AQ/FQ".
TEST(BlockQuantise, SpecGoldens) {
  const std::vector<float> first =
      bf16_values({0.10009766f, -0.25f, 1.0f, 3.140625f, -7.3125f, 0.00090026855f, 12.5f, -100.0f});
  const std::vector<float> second = bf16_values({0.30078125f, 0.69921875f, -1.1015625f, 2.59375f, -5.0f, 4.90625f});
  std::vector<std::uint8_t> codes(8);
  EXPECT_EQ(quantise_e4m3_block(first, codes), -2);
  EXPECT_EQ(quantise_e2m1_block(first, codes), 5);
  codes.resize(6);
  EXPECT_EQ(quantise_e4m3_block(second, codes), -6);
  EXPECT_EQ(quantise_e2m1_block(second, codes), 0);

  std::vector<float> values = first;
  simulate_e4m3(values, 128);
  EXPECT_EQ(values, (std::vector<float>{0.1015625f, -0.25f, 1.0f, 3.25f, -7.5f, 0.0009765625f, 12.0f, -96.0f}));
  values = first;
  simulate_e2m1(values, 32);
  EXPECT_EQ(values, (std::vector<float>{0, 0, 0, 0, 0, 0, 16, -96}));
  EXPECT_TRUE(std::signbit(values[1]));
  values = second;
  simulate_e4m3(values, 128);
  EXPECT_EQ(values, (std::vector<float>{0.3125f, 0.6875f, -1.125f, 2.5f, -5.0f, 5.0f}));
  values = second;
  simulate_e2m1(values, 32);
  EXPECT_EQ(values, (std::vector<float>{0.5f, 0.5f, -1.0f, 3.0f, -4.0f, 4.0f}));
}

TEST(BlockQuantise, AmaxFloorAndEdges) {
  std::vector<float> zeros(4, 0.0f);
  std::vector<std::uint8_t> codes(4);
  // t = fp32(1e-4 / 448) lies between 2^-23 and 2^-22.
  EXPECT_EQ(quantise_e4m3_block(zeros, codes), -22);
  EXPECT_EQ(codes, (std::vector<std::uint8_t>(4, 0)));
  EXPECT_EQ(ceil_log2(1.0f), 0);
  EXPECT_EQ(ceil_log2(std::nextafter(1.0f, 2.0f)), 1);
  EXPECT_EQ(ceil_log2(0x1p-126f), -126);
}

TEST(E4m3, FindsTheFirstNan) {
  std::vector<std::byte> codes(10000, std::byte{0x7e});
  codes[17] = std::byte{0xfe};
  EXPECT_EQ(find_e4m3_nan(codes), std::nullopt);
  EXPECT_EQ(find_e4m3_nan({}), std::nullopt);
  for (const std::size_t place : {9999, 4096, 4095, 16, 0}) {
    codes[place] = place % 2 == 0 ? std::byte{0x7f} : std::byte{0xff};
    EXPECT_EQ(find_e4m3_nan(codes), place);
  }
}

}  // namespace
}  // namespace fathom
