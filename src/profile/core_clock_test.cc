#include "profile/core_clock.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(CoreClock, IsAClockAndTheSameTwice) {
  const double first = measure_core_clock_mhz(), second = measure_core_clock_mhz();
  EXPECT_GT(first, 200);
  EXPECT_LT(first, 10'000);
  EXPECT_GT(second, 0.7 * first);
  EXPECT_LT(second, 1.4 * first);
}

}  // namespace
}  // namespace fathom
