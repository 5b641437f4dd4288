#include "profile/statistics.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace fathom {
namespace {

TEST(Statistics, StudentQuantilesAreTheTables) {
  EXPECT_NEAR(student_t(0.95, 1), 12.7062, 1e-3);
  EXPECT_NEAR(student_t(0.95, 4), 2.7764, 1e-4);
  EXPECT_NEAR(student_t(0.99, 9), 3.2498, 1e-4);
  EXPECT_NEAR(student_t(0.95, 1e6), 1.95996, 1e-4);
  EXPECT_NEAR(student_t(0.95, 2.5), 3.5747, 1e-3);
}

TEST(Statistics, OneSampleHasNoInterval) {
  const std::vector<double> one{3}, two{5, 7};
  EXPECT_FALSE(mean_interval(one, 0.95).known);
  EXPECT_FALSE(difference_interval(one, two, 0.95).known);
  EXPECT_EQ(difference_interval(one, two, 0.95).mean, 3);
  EXPECT_FALSE(difference_interval({}, two, 0.95).excludes_zero());
  const Interval known = mean_interval(two, 0.95);
  EXPECT_NEAR(known.high - known.mean, 12.7062 * 1.0, 1e-3);
}

TEST(Statistics, WithoutSpreadTheDifferenceIsExact) {
  const std::vector<double> a{2, 2, 2}, b{3, 3, 3};
  const Interval d = difference_interval(a, b, 0.95);
  EXPECT_EQ(d.low, 1);
  EXPECT_EQ(d.high, 1);
  EXPECT_TRUE(d.excludes_zero());
  EXPECT_FALSE(difference_interval(a, a, 0.95).excludes_zero());
}

// Draws of the same distribution are called different about as often as 1 - confidence says.
TEST(Statistics, WelchIsWrongAsOftenAsItSays) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> narrow(10, 1), wide(10, 3);
  int wrong = 0;
  constexpr int kTrials = 4000;
  for (int i = 0; i < kTrials; ++i) {
    std::vector<double> a, b;
    for (int k = 0; k < 6; ++k) a.push_back(narrow(random));
    for (int k = 0; k < 5; ++k) b.push_back(wide(random));
    wrong += difference_interval(a, b, 0.95).excludes_zero() ? 1 : 0;
  }
  EXPECT_GT(wrong, kTrials * 0.03);
  EXPECT_LT(wrong, kTrials * 0.07);
}

}  // namespace
}  // namespace fathom
