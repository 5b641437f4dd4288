// Means with intervals, and differences of means, from few repeats.
#pragma once

#include <span>

namespace fathom {

struct Interval {
  double mean = 0;
  double low = 0;
  double high = 0;
  bool known = false;  // false: too few samples for an interval; low = high = mean

  bool excludes_zero() const { return known && (low > 0 || high < 0); }
};

// Two-sided quantile of Student's distribution: P(|T| <= result) = confidence. degrees_of_freedom > 0.
double student_t(double confidence, double degrees_of_freedom);

// The mean of independent samples. One sample has no interval.
Interval mean_interval(std::span<const double> samples, double confidence);

// mean(after) - mean(before) by Welch's method: the two may spread differently. Known with two samples or more on
// either side; without any spread the interval is the difference itself.
Interval difference_interval(std::span<const double> before, std::span<const double> after, double confidence);

}  // namespace fathom
