// The threads that parse, tokenise and render: everything between the I/O thread and the engine thread.
#pragma once

#include <condition_variable>
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

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace fathom
