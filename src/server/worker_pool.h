// The threads that parse, tokenise and render: everything between the I/O thread and the engine thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace fathom {

class WorkerPool {
 public:
  explicit WorkerPool(int num_threads);
  // stop().
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Runs `task` on some worker, soon. Dropped after stop().
  void post(std::function<void()> task);
  // Finishes the running tasks, drops the waiting ones, joins. Idempotent.
  void stop();
  // Time inside tasks, all threads together.
  double busy_us() const { return static_cast<double>(busy_ns_.load(std::memory_order_relaxed)) / 1e3; }

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::atomic<std::int64_t> busy_ns_{0};
  std::vector<std::thread> threads_;
};

}  // namespace fathom
