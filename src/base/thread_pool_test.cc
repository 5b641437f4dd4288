#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <vector>

namespace fathom {
namespace {

TEST(ThreadPool, EveryPartRunsOnce) {
  for (int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    for (std::int64_t parts : {0, 1, 2, 3, 7, 64, 1000}) {
      std::vector<int> hits(static_cast<std::size_t>(parts), 0);
      for (int round = 0; round < 50; ++round)
        pool.run(parts, [&](std::int64_t p) { ++hits[static_cast<std::size_t>(p)]; });
      EXPECT_EQ(hits, std::vector<int>(static_cast<std::size_t>(parts), 50));
    }
  }
}

TEST(ThreadPool, RangesCoverWithoutOverlap) {
  ThreadPool pool(3);
  for (std::int64_t count : {0, 1, 15, 16, 17, 100}) {
    std::vector<int> hits(static_cast<std::size_t>(count), 0);
    pool.run_ranges(count, 16, [&](std::int64_t begin, std::int64_t end) {
      EXPECT_EQ(begin % 16, 0);
      for (std::int64_t i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
    });
    EXPECT_EQ(hits, std::vector<int>(static_cast<std::size_t>(count), 1));
  }
}

TEST(ThreadPool, WakesAfterSleep) {
  ThreadPool pool(2);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> sum{0};
    pool.run(8, [&](std::int64_t p) { sum += static_cast<int>(p); });
    EXPECT_EQ(sum.load(), 28);
  }
}

}  // namespace
}  // namespace fathom
