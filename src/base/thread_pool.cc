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
    workers_.emplace_back([this] { worker(); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_.store(true);
    job_parts_.store(0);
    claim_.store(std::uint64_t{generation_of(claim_.load()) + 1u} << 32);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

// Claims parts of job `generation` until none is left. A thread that comes late finds the claim word of
// another generation, or no parts: it never calls into a job that has ended, because a part can only be
// claimed while its job waits for it.
void ThreadPool::run_claimed_parts(std::uint32_t generation) {
  std::uint64_t claim = claim_.load(std::memory_order_acquire);
  while (generation_of(claim) == generation) {
    const auto part = static_cast<std::int64_t>(claim & 0xffffffffu);
    const std::int64_t num_parts = job_parts_.load(std::memory_order_relaxed);
    void* const context = job_context_.load(std::memory_order_relaxed);
    const Erased call = job_call_.load(std::memory_order_relaxed);
    if (part >= num_parts) return;
    if (!claim_.compare_exchange_weak(claim, claim + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    call(context, part);
    done_parts_.fetch_add(1, std::memory_order_release);
    claim = claim_.load(std::memory_order_acquire);
  }
}

void ThreadPool::run_erased(std::int64_t num_parts, void* context, Erased call) {
  if (num_parts <= 0) return;
  if (num_threads_ == 1 || num_parts == 1) {
    for (std::int64_t part = 0; part < num_parts; ++part) call(context, part);
    return;
  }
  FATHOM_CHECK(num_parts < (std::int64_t{1} << 32), "parts are counted in 32 bits");
  // First close the last job: a worker still on its way out of it would otherwise find this job's parts under the
  // old claim word, run one too early and count it twice. No later store may pass the exchange.
  claim_.exchange(std::uint64_t{generation_of(claim_.load(std::memory_order_relaxed))} << 32 | 0xffffffffu,
                  std::memory_order_acq_rel);
  job_parts_.store(num_parts, std::memory_order_relaxed);
  job_context_.store(context, std::memory_order_relaxed);
  job_call_.store(call, std::memory_order_relaxed);
  done_parts_.store(0, std::memory_order_relaxed);
  const std::uint32_t generation = generation_of(claim_.load(std::memory_order_relaxed)) + 1;
  claim_.store(std::uint64_t{generation} << 32);  // sequentially consistent with sleeping_: no lost wake-up
  if (sleeping_.load() > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  run_claimed_parts(generation);
  int spins = 0;
  while (done_parts_.load(std::memory_order_acquire) != num_parts) {
    if (++spins < kSpins)
      pause_briefly();
    else
      std::this_thread::yield();
  }
}

void ThreadPool::worker() {
  std::uint32_t seen = 0;
  for (;;) {
    int spins = 0;
    while (generation_of(claim_.load(std::memory_order_acquire)) == seen && spins < kSpins) {
      pause_briefly();
      ++spins;
    }
    if (generation_of(claim_.load(std::memory_order_acquire)) == seen) {
      std::unique_lock lock(mutex_);
      sleeping_.fetch_add(1);
      wake_.wait(lock, [&] { return generation_of(claim_.load()) != seen; });
      sleeping_.fetch_sub(1);
    }
    seen = generation_of(claim_.load(std::memory_order_acquire));
    if (stopping_.load()) return;
    run_claimed_parts(seen);
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
