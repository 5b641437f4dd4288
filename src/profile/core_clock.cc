#include "profile/core_clock.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

namespace fathom {
namespace {

constexpr int kMultiplications = 20'000;  // 60,000 cycles: about 20 us, short enough to be left alone by other threads
constexpr int kRuns = 400;
constexpr double kCyclesEach = 3;

std::uint64_t multiply_in_a_chain(std::uint64_t x) {
  for (int i = 0; i < kMultiplications; ++i) {
    x *= 0x9e3779b97f4a7c15ull;
    asm volatile("" : "+r"(x));  // one multiplication after the other, none folded
  }
  return x;
}

}  // namespace

double measure_core_clock_mhz() {
  double best_us = std::numeric_limits<double>::max();
  std::uint64_t x = 1;
  for (int run = 0; run < kRuns; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    x = multiply_in_a_chain(x | 1);
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    best_us = std::min(best_us, time.count());
  }
  return kCyclesEach * kMultiplications / best_us;
}

}  // namespace fathom
