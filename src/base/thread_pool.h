// A fork-join pool with a static partition: which thread does which part depends on the part count
// alone, and no operation's result depends on it (architecture: row invariance).
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

  // Calls body(part) for part in [0, num_parts); returns when all are done. Part p runs on thread
  // p * num_threads / num_parts. Not reentrant; one caller at a time; no allocation.
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
  void run_share(int thread, std::int64_t num_parts, void* context, Erased call) const;
  void worker(int thread);

  int num_threads_;
  std::vector<std::thread> workers_;

  // One job at a time: fields are written before generation_ is released and read after it is acquired.
  std::int64_t job_parts_ = 0;
  void* job_context_ = nullptr;
  Erased job_call_ = nullptr;
  std::atomic<std::uint64_t> generation_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<int> sleeping_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace fathom
