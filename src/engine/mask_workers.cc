#include "engine/mask_workers.h"

#include <algorithm>
#include <utility>

#include "base/thread_time.h"

namespace fathom::engine_detail {

void fill_constraint_masks(TokenConstraint& constraint, std::span<const TokenId> drafts, bool in_reasoning,
                           std::optional<TokenId> reasoning_end, std::span<std::uint32_t> masks) {
  const std::size_t words = masks.size() / (drafts.size() + 1);
  std::int32_t num_accepted = 0;  // drafts shown to the constraint, taken back below
  for (std::size_t i = 0; i <= drafts.size(); ++i) {
    const std::span<std::uint32_t> mask = masks.subspan(words * i, words);
    if (!in_reasoning && !constraint.next_mask(mask)) std::fill(mask.begin(), mask.end(), ~0u);
    if (i == drafts.size()) break;
    const TokenId draft = drafts[i];
    if ((mask[static_cast<std::size_t>(draft) / 32] >> (draft % 32) & 1) == 0) break;  // it will not be drawn
    if (in_reasoning) {
      in_reasoning = draft != *reasoning_end;
    } else {
      if (!constraint.accept(draft).ok()) break;
      ++num_accepted;
    }
  }
  if (num_accepted > 0) constraint.rollback(num_accepted);
}

MaskWorkers::MaskWorkers(std::function<void()> on_late) : on_late_(std::move(on_late)) {
  const unsigned num_threads = std::clamp(std::thread::hardware_concurrency() / 4, 2u, 8u);
  for (unsigned i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
}

MaskWorkers::~MaskWorkers() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    waiting_.clear();
  }
  posted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void MaskWorkers::post(std::shared_ptr<MaskJob> job) {
  {
    const std::lock_guard lock(mutex_);
    job->done = false;
    job->is_awaited = !job->is_long;
    waiting_.push_back(std::move(job));
  }
  posted_.notify_one();
}

bool MaskWorkers::is_done(const MaskJob& job) const {
  const std::lock_guard lock(mutex_);
  return job.done;
}

void MaskWorkers::drop(const MaskJob& job) {
  const std::lock_guard lock(mutex_);
  std::erase_if(waiting_, [&job](const auto& one) { return one.get() == &job; });
}

bool MaskWorkers::has_awaited() const {
  const auto is_awaited = [](const auto& job) { return job->is_awaited; };
  return std::any_of(waiting_.begin(), waiting_.end(), is_awaited) ||
         std::any_of(running_.begin(), running_.end(), is_awaited);
}

void MaskWorkers::wait_for_short(std::chrono::microseconds budget) {
  std::unique_lock lock(mutex_);
  if (done_.wait_for(lock, budget, [this] { return !has_awaited(); })) return;
  for (const auto& job : waiting_) job->is_awaited = false;
  for (const auto& job : running_) job->is_awaited = false, job->is_long = true;
}

// Short ones first; long ones leave a thread to them.
std::shared_ptr<MaskJob> MaskWorkers::take_next() {
  const auto is_long = [](const auto& job) { return job->is_long; };
  auto next = std::find_if_not(waiting_.begin(), waiting_.end(), is_long);
  if (next == waiting_.end()) {
    const auto num_long = std::count_if(running_.begin(), running_.end(), is_long);
    if (waiting_.empty() || static_cast<std::size_t>(num_long) + 1 >= threads_.size()) return nullptr;
    next = waiting_.begin();
  }
  std::shared_ptr<MaskJob> job = std::move(*next);
  waiting_.erase(next);
  running_.push_back(job);
  return job;
}

void MaskWorkers::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    std::shared_ptr<MaskJob> job;
    posted_.wait(lock, [&] { return stopping_ || (job = take_next()) != nullptr; });
    if (job == nullptr) return;
    lock.unlock();
    const double begin_us = thread_time_us();
    fill_constraint_masks(*job->constraint, job->drafts, job->in_reasoning, job->reasoning_end, job->masks);
    const double us = thread_time_us() - begin_us;
    lock.lock();
    job->us = us;
    job->done = true;
    const bool was_long = job->is_long, is_late = !job->is_awaited;
    std::erase(running_, job);
    done_.notify_all();
    lock.unlock();
    // Nobody waits for it: its constraint goes here.
    job.reset();
    if (was_long) posted_.notify_one();  // another long one may begin
    if (is_late) on_late_();
    lock.lock();
  }
}

}  // namespace fathom::engine_detail
