#include "profile/machine.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>

#include "ops/simd/ceilings.h"

namespace fathom {

namespace {

constexpr double kUndisturbedShare = 0.9;
constexpr int kMostTries = 4;

double process_cpu_s() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Processor time that the threads get while all of them want it, by threads x wall time; 1 on an idle machine.
double processor_share(ThreadPool& threads) {
  const double cpu_begin = process_cpu_s();
  const auto begin = std::chrono::steady_clock::now();
  const auto end = begin + std::chrono::milliseconds(40);
  threads.run(threads.num_threads(), [&](std::int64_t) {
    while (std::chrono::steady_clock::now() < end) {
    }
  });
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  return std::min(1.0, (process_cpu_s() - cpu_begin) / (static_cast<double>(threads.num_threads()) * wall.count()));
}

}  // namespace

CpuCeilings measure_cpu_ceilings(ThreadPool& threads) {
  CpuCeilings result;
  Ceilings& out = result.figures;
  double share = processor_share(threads), worst_share = share;
  for (int attempt = 0; attempt < kMostTries; ++attempt) {
    const simd::Ceilings measured = simd::measure_ceilings(threads);
    out.memory_bytes_per_s = std::max(out.memory_bytes_per_s, measured.memory_bytes_per_s);
    out.flops_per_s = std::max(out.flops_per_s, measured.flops_per_s);
    const double share_before = share;
    share = processor_share(threads);
    worst_share = std::min(worst_share, share);
    if (std::min(share_before, share) >= kUndisturbedShare) break;
  }
  if (worst_share < kUndisturbedShare) {
    char text[200];
    std::snprintf(text, sizeof text,
                  "the machine was loaded: the threads got %.0f %% of the processors while the ceilings were measured; "
                  "ceilings and times are of a shared machine",
                  100 * worst_share);
    result.note = text;
  }
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
  return result;
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
