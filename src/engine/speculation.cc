#include "engine/speculation.h"

#include <algorithm>
#include <bit>

namespace fathom {

std::int32_t StepTimes::bucket_of(std::int32_t batch) {
  const auto width = static_cast<std::int32_t>(std::bit_width(static_cast<std::uint32_t>(std::max(batch, 1) - 1)));
  return std::min(kNumBuckets - 1, width);
}

void StepTimes::add(std::int32_t batch, std::int32_t depth, double us) {
  Cell& cell = cells_[static_cast<std::size_t>(bucket_of(batch))][static_cast<std::size_t>(depth)];
  ++cell.count;
  if (cell.count <= 2) {
    cell.us = us;
    return;
  }
  // What disturbs a step makes it longer, never shorter.
  cell.us += (us < cell.us ? 0.25 : 0.05) * (us - cell.us);
}

std::optional<double> StepTimes::us(std::int32_t batch, std::int32_t depth) const {
  const Cell& cell = cells_[static_cast<std::size_t>(bucket_of(batch))][static_cast<std::size_t>(depth)];
  if (cell.count < 2) return std::nullopt;
  return cell.us;
}

void Acceptance::add(std::int32_t num_drafts, std::int32_t num_accepted) {
  const std::int32_t num_trials = std::min(num_accepted + 1, num_drafts);
  for (std::int32_t i = 0; i < num_trials; ++i) rate_ += ((i < num_accepted ? 1.0 : 0.0) - rate_) / 16;
}

double expected_tokens(double rate, std::int32_t depth) {
  double tokens = 1, all_right = 1;
  for (std::int32_t i = 0; i < depth; ++i) tokens += all_right *= rate;
  return tokens;
}

std::int32_t choose_depth(const StepTimes& times, std::span<const double> rates, std::int32_t max_depth) {
  const auto batch = static_cast<std::int32_t>(rates.size());
  const std::optional<double> undrafted = times.us(batch, 0);
  if (batch == 0 || !undrafted) return 0;
  std::int32_t best = 0;
  double best_speed = 1.02 * batch / *undrafted;
  double least_us = *undrafted;
  for (std::int32_t depth = 1; depth <= max_depth; ++depth) {
    least_us = std::max(least_us, times.us(batch, depth).value_or(least_us));
    double tokens = 0;
    for (const double rate : rates) tokens += expected_tokens(rate, depth);
    const double speed = tokens / times.us(batch, depth).value_or(least_us);
    if (speed <= best_speed) continue;
    best = depth;
    best_speed = speed;
  }
  return best;
}

bool AcceptanceAlarm::add(std::int32_t num_drafts, std::int32_t num_accepted) {
  const std::int32_t num_trials = std::min(num_accepted + 1, num_drafts);
  for (std::int32_t i = 0; i < num_trials; ++i) {
    const double outcome = i < num_accepted ? 1.0 : 0.0;
    ++num_drafts_;
    // Plain means while they are young.
    recent_ += (outcome - recent_) / static_cast<double>(std::min<std::int64_t>(num_drafts_, 100));
    history_ += (outcome - history_) / static_cast<double>(std::min<std::int64_t>(num_drafts_, 10000));
  }
  const bool low = num_drafts_ >= 500 && recent_ < 0.5 * history_;
  const bool rises = low && !raised_;
  // Stays until the acceptance is near its history again.
  raised_ = low || (raised_ && recent_ < 0.75 * history_);
  return rises;
}

}  // namespace fathom
