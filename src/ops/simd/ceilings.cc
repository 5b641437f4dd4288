#include "ops/simd/ceilings.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/units.h"
#include "ops/simd/targets.h"
#include "tensor/buffer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/simd/ceilings.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "ops/simd/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {

// Reads [begin, end) once; the sum keeps the loads alive.
float read_floats(const float* begin, const float* end) {
  const FloatTag d;
  FloatVec a = hn::Zero(d), b = a, c = a, e = a;
  for (const float* p = begin; p + 4 * kLanes <= end; p += 4 * kLanes) {
    a = hn::Add(a, hn::Load(d, p));
    b = hn::Add(b, hn::Load(d, p + kLanes));
    c = hn::Add(c, hn::Load(d, p + 2 * kLanes));
    e = hn::Add(e, hn::Load(d, p + 3 * kLanes));
  }
  return reduce_one(hn::Add(hn::Add(a, b), hn::Add(c, e)));
}

constexpr int kChains = 12;

// `steps` fused multiply-adds on each of kChains registers.
float multiply_add(std::int64_t steps, float x) {
  const FloatTag d;
  FloatVec acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = hn::Set(d, x * static_cast<float>(i));
  const FloatVec factor = hn::Set(d, 0.999f), addend = hn::Set(d, x);
  for (std::int64_t step = 0; step < steps; ++step) {
    for (int i = 0; i < kChains; ++i) acc[i] = hn::MulAdd(acc[i], factor, addend);
  }
  FloatVec sum = acc[0];
  for (int i = 1; i < kChains; ++i) sum = hn::Add(sum, acc[i]);
  return reduce_one(sum);
}
std::int64_t flops_of_step() { return 2 * kChains * static_cast<std::int64_t>(kLanes); }

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom {
HWY_EXPORT(read_floats);
HWY_EXPORT(multiply_add);
HWY_EXPORT(flops_of_step);
namespace simd {
namespace {

constexpr std::int64_t kMemoryBytes = 256 * kMiB;
constexpr std::int64_t kCacheBytes = 8 * kMiB;
// Slices of a few milliseconds: other load on the machine misses some of them.
constexpr std::int64_t kSliceBytes = 16 * kMiB;
constexpr int kSlices = 16;
constexpr std::int64_t kFmaSteps = 100'000;

// Seconds of one body(part) on every thread.
template <typename Body>
double time_parts(ThreadPool& threads, Body&& body) {
  const auto begin = std::chrono::steady_clock::now();
  threads.run(threads.num_threads(), body);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

Ceilings measure_ceilings(ThreadPool& threads, int rounds) {
  const std::int64_t parts = threads.num_threads();
  Buffer buffer(kMemoryBytes);
  buffer.fill_zero();
  const auto* floats = reinterpret_cast<const float*>(buffer.data());
  std::vector<float> sums(static_cast<std::size_t>(parts));
  const auto read = [&](std::int64_t offset, std::int64_t bytes) {
    return time_parts(threads, [&](std::int64_t part) {
      const float* begin = floats + offset / 4;
      const std::int64_t count = bytes / 4;
      sums[static_cast<std::size_t>(part)] = HWY_DYNAMIC_DISPATCH(read_floats)(
          begin + count * part / parts / 64 * 64, begin + count * (part + 1) / parts / 64 * 64);
    });
  };
  Ceilings best;
  for (int round = 0; round < rounds; ++round) {
    // Each slice was evicted by the rest of the buffer since it was last read.
    for (std::int64_t offset = 0; offset < kMemoryBytes; offset += kSliceBytes) {
      const double rate = static_cast<double>(kSliceBytes) / read(offset, kSliceBytes);
      best.memory_bytes_per_s = std::max(best.memory_bytes_per_s, rate);
    }
    read(0, kCacheBytes);
    for (int slice = 0; slice < kSlices; ++slice) {
      const double rate = static_cast<double>(kCacheBytes) / read(0, kCacheBytes);
      best.cache_bytes_per_s = std::max(best.cache_bytes_per_s, rate);
      const double time = time_parts(threads, [&](std::int64_t part) {
        sums[static_cast<std::size_t>(part)] = HWY_DYNAMIC_DISPATCH(multiply_add)(kFmaSteps, 1e-3f);
      });
      const double flops = static_cast<double>(kFmaSteps * parts * HWY_DYNAMIC_DISPATCH(flops_of_step)());
      best.flops_per_s = std::max(best.flops_per_s, flops / time);
    }
  }
  return best;
}

}  // namespace simd
}  // namespace fathom
#endif  // HWY_ONCE
