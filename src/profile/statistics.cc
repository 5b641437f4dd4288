#include "profile/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace fathom {
namespace {

struct Moments {
  double mean = 0;
  double variance_of_mean = 0;
  double freedom = 0;
};

Moments moments_of(std::span<const double> samples) {
  Moments m;
  if (samples.empty()) return m;
  const double n = static_cast<double>(samples.size());
  m.mean = std::accumulate(samples.begin(), samples.end(), 0.0) / n;
  if (samples.size() < 2) return m;
  double squares = 0;
  for (const double x : samples) squares += (x - m.mean) * (x - m.mean);
  m.freedom = n - 1;
  m.variance_of_mean = squares / (n - 1) / n;
  return m;
}

// Lentz's continued fraction of the incomplete beta function.
double beta_fraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300;
  const auto guarded = [](double value) { return std::fabs(value) < kTiny ? kTiny : value; };
  double c = 1;
  double d = 1 / guarded(1 - (a + b) * x / (a + 1));
  double result = d;
  for (int m = 1; m <= 500; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    d = 1 / guarded(1 + even * d);
    c = guarded(1 + even / c);
    result *= d * c;
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    d = 1 / guarded(1 + odd * d);
    c = guarded(1 + odd / c);
    result *= d * c;
    if (std::fabs(d * c - 1) < 1e-14) break;
  }
  return result;
}

double regularised_beta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double front =
      std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x));
  if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(a, b, x) / a;
  return 1 - front * beta_fraction(b, a, 1 - x) / b;
}

}  // namespace

double student_t(double confidence, double degrees_of_freedom) {
  FATHOM_CHECK(confidence > 0 && confidence < 1 && degrees_of_freedom > 0, "a confidence and a freedom");
  // P(|T| > t) = I_{v / (v + t^2)}(v / 2, 1 / 2), falling in t: bisection between bounds found by doubling.
  const double v = degrees_of_freedom;
  const auto outside = [v](double t) { return regularised_beta(v / 2, 0.5, v / (v + t * t)); };
  double low = 0, high = 1;
  while (outside(high) > 1 - confidence && high < 1e12) high *= 2;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (outside(middle) > 1 - confidence ? low : high) = middle;
  }
  return (low + high) / 2;
}

Interval mean_interval(std::span<const double> samples, double confidence) {
  const Moments m = moments_of(samples);
  Interval interval{m.mean, m.mean, m.mean, m.freedom > 0};
  if (!interval.known) return interval;
  const double half = student_t(confidence, m.freedom) * std::sqrt(m.variance_of_mean);
  interval.low -= half;
  interval.high += half;
  return interval;
}

Interval difference_interval(std::span<const double> before, std::span<const double> after, double confidence) {
  const Moments a = moments_of(before), b = moments_of(after);
  const double difference = b.mean - a.mean;
  Interval interval{difference, difference, difference, a.freedom > 0 && b.freedom > 0};
  const double variance = a.variance_of_mean + b.variance_of_mean;
  if (!interval.known || variance <= 0) return interval;
  const double freedom =
      variance * variance /
      (a.variance_of_mean * a.variance_of_mean / a.freedom + b.variance_of_mean * b.variance_of_mean / b.freedom);
  const double half = student_t(confidence, std::max(1.0, freedom)) * std::sqrt(variance);
  interval.low -= half;
  interval.high += half;
  return interval;
}

}  // namespace fathom
