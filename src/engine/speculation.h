// How deep to draft: decided each step from measured step times and the running acceptance, by pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "ops/cache_view.h"

namespace fathom {

// Measured times of decode steps that verify `depth` drafts of each of `batch` sequences and propose as many.
class StepTimes {
 public:
  void add(std::int32_t batch, std::int32_t depth, double us);
  // None before two measurements: the first one may have met cold caches.
  std::optional<double> us(std::int32_t batch, std::int32_t depth) const;
  // Batches are counted in powers of two.
  static std::int32_t bucket_of(std::int32_t batch);

 private:
  struct Cell {
    double us = 0;
    std::int32_t count = 0;
  };
  static constexpr std::int32_t kNumBuckets = 12;
  std::array<std::array<Cell, kMaxDraft + 1>, kNumBuckets> cells_{};
};

// The chance that a request's next draft is right, those before it being right.
class Acceptance {
 public:
  static constexpr double kPrior = 0.7;

  double rate() const { return rate_; }
  // Of one verified step: the drafts behind the first wrong one say nothing.
  void add(std::int32_t num_drafts, std::int32_t num_accepted);
  // A step went by without drafts: what is known fades, so that a bad spell is tried again some day.
  void fade() { rate_ += (kPrior - rate_) / 1024; }

 private:
  double rate_ = kPrior;
};

// Tokens that a step of `depth` drafts brings on average: 1 + a + a^2 + ... + a^depth.
double expected_tokens(double rate, std::int32_t depth);

// The depth in [0, max_depth] with the most tokens per second for a batch of requests with these rates. A depth that
// was never measured counts as no slower than the next smaller one, and so is tried once it could win; 0 is measured
// first. Drafting has to win by 2 %.
std::int32_t choose_depth(const StepTimes& times, std::span<const double> rates, std::int32_t max_depth);

// Watches the acceptance of all requests together against its own history.
class AcceptanceAlarm {
 public:
  // True when this step raised the alarm.
  bool add(std::int32_t num_drafts, std::int32_t num_accepted);
  bool raised() const { return raised_; }
  double recent() const { return recent_; }
  double history() const { return history_; }

 private:
  std::int64_t num_drafts_ = 0;
  double recent_ = 0;   // of the last hundred drafts or so
  double history_ = 0;  // of the last ten thousand or so
  bool raised_ = false;
};

}  // namespace fathom
