// Time as the engine sees it: the machine's, or a test's.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace fathom {

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic microseconds from an arbitrary start. Any thread may ask.
  virtual std::int64_t now_us() const = 0;
};

class SteadyClock final : public Clock {
 public:
  std::int64_t now_us() const override {
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

// Moves when told to.
class VirtualClock final : public Clock {
 public:
  std::int64_t now_us() const override { return now_us_.load(std::memory_order_relaxed); }
  void advance_us(std::int64_t us) { now_us_.fetch_add(us, std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> now_us_{0};
};

}  // namespace fathom
