// Masks of constrained choices, made beside the engine's thread: one that takes long holds up nobody else's step.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "engine/request.h"

namespace fathom::engine_detail {

// masks [1 + drafts, words], all ones at entry: row i says what may come behind the first i drafts. Rows behind a draft
// that may not come stay as they are. In reasoning, the constraint begins behind `reasoning_end`.
void fill_constraint_masks(TokenConstraint& constraint, std::span<const TokenId> drafts, bool in_reasoning,
                           std::optional<TokenId> reasoning_end, std::span<std::uint32_t> masks);

// The masks of a choice's next step.
struct MaskJob {
  // Set before post(); the constraint is the job's until it is done.
  std::unique_ptr<TokenConstraint> constraint;
  std::vector<TokenId> drafts;
  bool in_reasoning = false;
  std::optional<TokenId> reasoning_end;
  bool is_long = false;              // expected to take long
  std::vector<std::uint32_t> masks;  // [1 + drafts, words], all ones
  bool is_awaited = false;           // theirs: somebody waits for it, or will
  // Read when is_done().
  double us = 0;
  bool done = false;
};

class MaskWorkers {
 public:
  // on_late is called by a worker when a job is done that nobody waits for.
  explicit MaskWorkers(std::function<void()> on_late);
  // Lets go of what has not begun, and waits for what has.
  ~MaskWorkers();
  MaskWorkers(const MaskWorkers&) = delete;
  MaskWorkers& operator=(const MaskWorkers&) = delete;

  void post(std::shared_ptr<MaskJob> job);
  bool is_done(const MaskJob& job) const;
  // Not begun: it never will be. Begun: it ends unseen.
  void drop(const MaskJob& job);
  // Until no short job is left, at most `budget`: what is left then is not waited for again, and long if it has begun.
  void wait_for_short(std::chrono::microseconds budget);

 private:
  void run();
  std::shared_ptr<MaskJob> take_next();
  bool has_awaited() const;

  const std::function<void()> on_late_;
  mutable std::mutex mutex_;
  std::condition_variable posted_, done_;
  std::deque<std::shared_ptr<MaskJob>> waiting_;
  std::vector<std::shared_ptr<MaskJob>> running_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace fathom::engine_detail
