// The checks that operation tests rest on must be able to fail.
#include "ops/testing/run.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>

namespace fathom::testing {
namespace {

TEST(Checks, RelativeL2SeesErrorsNanAndLength) {
  const std::vector<float> b = {3.0f, 4.0f};
  EXPECT_TRUE(within(b, b, 0.0));
  EXPECT_DOUBLE_EQ(relative_l2(std::vector<float>{3.0f, 4.5f}, b), 0.1);
  EXPECT_FALSE(within(std::vector<float>{3.0f, 4.5f}, b, 0.09));
  EXPECT_FALSE(within(std::vector<float>{3.0f, NAN}, b, 1.0));
  EXPECT_FALSE(within(std::vector<float>{3.0f}, b, 1.0));
  EXPECT_FALSE(within(std::vector<float>{1e-9f}, std::vector<float>{0.0f}, 1.0));
}

TEST(Checks, RoundingAllowsAFewSingleSteps) {
  std::vector<float> b(1000, 1.0f);
  std::vector<float> a = b;
  EXPECT_TRUE(within_rounding(a, b));
  a[7] = 1.0f + 0x1p-7f;
  EXPECT_TRUE(within_rounding(a, b)) << "one ulp";
  a[7] = 1.0f + 0x1p-6f;
  EXPECT_FALSE(within_rounding(a, b)) << "two ulps";
  a = b;
  for (std::size_t i = 0; i < 20; ++i) a[i] = 1.0f + 0x1p-7f;
  EXPECT_FALSE(within_rounding(a, b)) << "too many";
  a = b;
  a[0] = NAN;
  EXPECT_FALSE(within_rounding(a, b));
}

TEST(Checks, SameBitsTellsZerosApart) {
  EXPECT_TRUE(same_bits(std::vector<float>{0.0f}, std::vector<float>{0.0f}));
  EXPECT_FALSE(same_bits(std::vector<float>{0.0f}, std::vector<float>{-0.0f}));
  EXPECT_FALSE(same_bits(std::vector<float>{1.0f}, std::vector<float>{std::nextafter(1.0f, 2.0f)}));
}

// Variants whose rows know how many there are, which thread pool they run on, or where they stand.
std::vector<float> rows_plus_count(const std::string&, int, std::span<const std::int32_t> rows) {
  std::vector<float> out;
  for (std::int32_t row : rows) out.push_back(static_cast<float>(row) + 1e-3f * static_cast<float>(rows.size() % 2));
  return out;
}
std::vector<float> rows_plus_threads(const std::string&, int threads, std::span<const std::int32_t> rows) {
  std::vector<float> out;
  for (std::int32_t row : rows) out.push_back(static_cast<float>(row) + (threads == 3 ? 1e-3f : 0.0f));
  return out;
}
std::vector<float> rows_plus_place(const std::string&, int, std::span<const std::int32_t> rows) {
  std::vector<float> out;
  for (std::int32_t row : rows) out.push_back(static_cast<float>(row) + 1e-3f * static_cast<float>(out.size() % 2));
  return out;
}

TEST(Checks, RowInvarianceBites) {
  for (const RowRunner& broken :
       {RowRunner(rows_plus_count), RowRunner(rows_plus_threads), RowRunner(rows_plus_place)}) {
    ::testing::TestPartResultArray failures;
    {
      const ::testing::ScopedFakeTestPartResultReporter reporter(
          ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
      expect_row_invariance(OpKind::kRmsNorm, 7, broken);
    }
    EXPECT_GT(failures.size(), 0);
  }
}

}  // namespace
}  // namespace fathom::testing
