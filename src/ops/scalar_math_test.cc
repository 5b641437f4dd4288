#include "ops/scalar_math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "ops/dequantise.h"
#include "ops/testing/tensors.h"

namespace fathom::testing {
namespace {

TEST(ScalarMath, DotOfEveryLength) {
  Random random;
  for (std::int64_t n = 0; n < 40; ++n) {
    std::vector<float> a(static_cast<std::size_t>(n)), b(static_cast<std::size_t>(n));
    double expected = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      a[i] = random.normal();
      b[i] = random.normal();
      expected += double{a[i]} * double{b[i]};
    }
    EXPECT_NEAR(dot(a.data(), b.data(), n), expected, 1e-12) << n;
  }
}

TEST(ScalarMath, SoftplusIsTheIdentityAbove20) {
  EXPECT_EQ(softplus(20.5), 20.5);
  EXPECT_NEAR(softplus(20.0), 20.0 + std::log1p(std::exp(-20.0)), 1e-14);
  EXPECT_NEAR(softplus(0.0), std::log(2.0), 1e-15);
  EXPECT_NEAR(softplus(-50.0), std::exp(-50.0), 1e-30);
  EXPECT_EQ(softplus(1e4), 1e4);
}

// Spec 2.1: y = H x / sqrt(n), H[i][j] = (-1)^popcount(i & j). Twice is the identity.
TEST(ScalarMath, HadamardIsSylvesters) {
  Random random;
  for (unsigned n : {1u, 2u, 32u, 128u}) {
    std::vector<float> x(n);
    for (float& value : x) value = random.normal();
    std::vector<float> y = x;
    hadamard(y);
    for (unsigned i = 0; i < n; ++i) {
      double sum = 0;
      for (unsigned j = 0; j < n; ++j) sum += std::popcount(i & j) % 2 == 0 ? double{x[j]} : -double{x[j]};
      EXPECT_NEAR(y[i], sum / std::sqrt(n), 2e-6);
    }
    hadamard(y);
    for (unsigned i = 0; i < n; ++i) EXPECT_NEAR(y[i], x[i], 2e-6);
  }
}

TEST(ScalarMath, InverseRotationUndoes) {
  Random random;
  std::vector<float> x(8);
  for (float& value : x) value = random.normal();
  std::vector<float> y = x;
  std::vector<float> cos_sin(8);
  const std::vector<float> frequencies = {1.0f, 0.3f, 0.1f, 0.01f};
  rope_angles(12345, frequencies, cos_sin);
  rotate_pairs(y, cos_sin.data(), Rotation::kForward, Numerics::plain());
  EXPECT_GT(std::fabs(y[0] - x[0]), 1e-4f);
  rotate_pairs(y, cos_sin.data(), Rotation::kInverse, Numerics::plain());
  for (std::size_t i = 0; i < 8; ++i) EXPECT_NEAR(y[i], x[i], 1e-6f);
}

TEST(Dequantise, EveryFormatAtEveryAlignment) {
  Random random;
  for (WeightFormat format : kAllFormats) {
    for (std::int64_t misalignment : {0, 1, 2, 3, 5}) {
      for (DType scale : {DType::kF8E8M0, DType::kF32}) {
        if (scale == DType::kF32 && format != WeightFormat::kFp8Block128) continue;
        const bool is_block = format == WeightFormat::kFp8Block128;
        const std::int64_t n = is_block ? 257 : 5;
        const std::int64_t k = is_block ? 130 : 96;
        const TestWeight weight = random_weight(random, format, n, k, misalignment, scale);
        check_linear_weight(weight.weight, n, k);
        const std::vector<double> exact = exact_weight(weight.weight);
        std::vector<float> row(static_cast<std::size_t>(k));
        for (std::int64_t i = 0; i < n; ++i) {
          dequantise_row(weight.weight, i, row);
          for (std::int64_t j = 0; j < k; ++j) {
            ASSERT_EQ(weight_element(weight.weight, i, j), row[static_cast<std::size_t>(j)]);
            const double expected = exact[static_cast<std::size_t>(i * k + j)];
            ASSERT_NEAR(row[static_cast<std::size_t>(j)], expected, 1e-7 * std::fabs(expected))
                << format_name(format) << " [" << i << ", " << j << "]";
          }
        }
      }
    }
  }
}

// Spec section 6: low nibble first, bit 3 the sign: a byte read as signed would smear it.
TEST(Dequantise, NibblesAndTheirSigns) {
  std::vector<std::byte> codes(16, std::byte{0});
  codes[0] = std::byte{0x1f};  // column 0: -6, column 1: 0.5
  codes[1] = std::byte{0x98};  // column 2: -0, column 3: -0.5
  std::byte scale{128};        // 2
  const LinearWeight weight{WeightFormat::kMxfp4,
                            1,
                            32,
                            make_view(codes.data(), DType::kI8, {1, 16}),
                            make_view(&scale, DType::kF8E8M0, {1, 1}),
                            1.0f,
                            {}};
  EXPECT_EQ(weight_element(weight, 0, 0), -12.0f);
  EXPECT_EQ(weight_element(weight, 0, 1), 1.0f);
  EXPECT_TRUE(std::signbit(weight_element(weight, 0, 2)));
  EXPECT_EQ(weight_element(weight, 0, 3), -1.0f);
}

// The constants of spec section 12, as the operations form them.
TEST(ScalarMath, Constants) {
  EXPECT_NEAR(1.0 / std::sqrt(512.0), 0.04419417382, 1e-11);
  EXPECT_NEAR(static_cast<float>(1.0 / std::sqrt(128.0 * 64.0)), 0.01104854346f, 1e-9f);
}

}  // namespace
}  // namespace fathom::testing
