#include "profile/machine.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>

#include "ops/simd/ceilings.h"

namespace fathom {

Ceilings measure_cpu_ceilings(ThreadPool& threads) {
  const simd::Ceilings measured = simd::measure_ceilings(threads);
  Ceilings out;
  out.memory_bytes_per_s = measured.memory_bytes_per_s;
  out.flops_per_s = measured.flops_per_s;
  // An operation without work: waking the pool and joining it.
  constexpr int kRuns = 200;
  double best_us = 1e9;
  for (int slice = 0; slice < 10; ++slice) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kRuns; ++i) threads.run(threads.num_threads(), [](std::int64_t) {});
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    best_us = std::min(best_us, time.count() / kRuns);
  }
  out.launch_us = best_us;
  return out;
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

}  // namespace fathom
