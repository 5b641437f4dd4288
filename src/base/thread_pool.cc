#include "base/thread_pool.h"

#include <sched.h>

#include "base/check.h"

namespace fathom {
namespace {

// Spinning bridges the gap between two operations of one step; beyond it a worker sleeps.
constexpr int kSpins = 20000;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {
  FATHOM_CHECK(num_threads >= 1, "a pool has at least the calling thread");
  workers_.reserve(static_cast<std::size_t>(num_threads - 1));
  for (int thread = 1; thread < num_threads; ++thread) {
    workers_.emplace_back([this, thread] { worker(thread); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_.store(true);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_share(int thread, std::int64_t num_parts, void* context, Erased call) const {
  const std::int64_t n = num_threads_;
  // Part p belongs to thread floor(p * n / num_parts): thread t starts at ceil(t * num_parts / n).
  const std::int64_t begin = (thread * num_parts + n - 1) / n;
  const std::int64_t end = ((thread + 1) * num_parts + n - 1) / n;
  for (std::int64_t part = begin; part < end; ++part) call(context, part);
}

void ThreadPool::run_erased(std::int64_t num_parts, void* context, Erased call) {
  if (num_parts <= 0) return;
  if (num_threads_ == 1 || num_parts == 1) {
    for (std::int64_t part = 0; part < num_parts; ++part) call(context, part);
    return;
  }
  job_parts_ = num_parts;
  job_context_ = context;
  job_call_ = call;
  running_.store(num_threads_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1);  // sequentially consistent with sleeping_: no lost wake-up
  if (sleeping_.load() > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  run_share(0, num_parts, context, call);
  int spins = 0;
  while (running_.load(std::memory_order_acquire) != 0) {
    if (++spins < kSpins)
      pause_briefly();
    else
      std::this_thread::yield();
  }
}

void ThreadPool::worker(int thread) {
  std::uint64_t seen = 0;
  for (;;) {
    int spins = 0;
    while (generation_.load(std::memory_order_acquire) == seen && spins < kSpins) {
      pause_briefly();
      ++spins;
    }
    if (generation_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      sleeping_.fetch_add(1);
      wake_.wait(lock, [&] { return generation_.load() != seen; });
      sleeping_.fetch_sub(1);
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stopping_.load()) return;
    run_share(thread, job_parts_, job_context_, job_call_);
    running_.fetch_sub(1, std::memory_order_release);
  }
}

int ThreadPool::available_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  const int count = CPU_COUNT(&set);
  return count > 0 ? count : 1;
}

}  // namespace fathom
