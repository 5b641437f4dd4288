// A fork-join pool whose threads claim parts one by one: a thread that the system does not run holds nobody
// up. Which thread does a part is left open, so no result may depend on it (architecture: row invariance).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace fathom {

class ThreadPool {
 public:
  // num_threads >= 1 counts the calling thread; num_threads - 1 workers are started.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls body(part) for part in [0, num_parts), ascending, on any thread; returns when all are done.
  // Not reentrant; one caller at a time; no allocation.
  template <typename Body>
  void run(std::int64_t num_parts, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run_erased(num_parts, const_cast<void*>(static_cast<const void*>(std::addressof(body))),
               [](void* context, std::int64_t part) { (*static_cast<Plain*>(context))(part); });
  }

  // Splits [0, count) into at most num_threads contiguous ranges whose bounds are multiples of
  // `grain` (the last may be shorter) and calls body(begin, end) for each non-empty one.
  template <typename Body>
  void run_ranges(std::int64_t count, std::int64_t grain, Body&& body) {
    if (count <= 0) return;
    const std::int64_t units = (count + grain - 1) / grain;
    const std::int64_t parts = units < num_threads_ ? units : num_threads_;
    run(parts, [&](std::int64_t part) {
      const std::int64_t begin = units * part / parts * grain;
      const std::int64_t end = units * (part + 1) / parts * grain;
      body(begin, end < count ? end : count);
    });
  }

  // CPUs this process may run on (affinity respected), at least 1.
  static int available_cpus();

 private:
  using Erased = void (*)(void*, std::int64_t);
  void run_erased(std::int64_t num_parts, void* context, Erased call);
  void run_claimed_parts(std::uint32_t generation);
  void worker();
  static constexpr std::uint32_t generation_of(std::uint64_t claim) { return static_cast<std::uint32_t>(claim >> 32); }

  int num_threads_;
  std::vector<std::thread> workers_;

  // One job at a time: its fields are written before its generation is published in claim_.
  std::atomic<std::int64_t> job_parts_{0};
  std::atomic<void*> job_context_{nullptr};
  std::atomic<Erased> job_call_{nullptr};
  std::atomic<std::uint64_t> claim_{0};  // generation, then the next part that nobody has claimed
  std::atomic<std::int64_t> done_parts_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<int> sleeping_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace fathom
