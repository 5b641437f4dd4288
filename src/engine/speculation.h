// How deep to draft: decided each step from measured step times and the running acceptance, by pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ops/cache_view.h"

namespace fathom {

// Measured times of one part of decode steps, by batch (sequences) and depth (drafts of each).
class DepthTimes {
 public:
  static constexpr std::int32_t kMaxBatch = 256;  // larger ones count as this

  struct Estimate {
    double us = 0;         // likely
    double least_us = 0;   // could be as little by what is known
    bool guessed = false;  // of depth 0 alone: good for a try, not for a choice
  };

  DepthTimes();
  void add(std::int32_t batch, std::int32_t depth, double us);
  // Measured twice and lately: that. Else from the nearest batches of the same depth, at most twice as far; else from
  // the depths below and above at this batch, where a deeper one takes at least as long. None where nothing is near.
  std::optional<Estimate> estimate(std::int32_t batch, std::int32_t depth) const;

 private:
  struct Cell {
    double us = 0;
    std::int32_t count = 0;
    std::int64_t seen = 0;   // num_added_ when measured last
    std::int32_t fresh = 0;  // measurements left in which its time is its own business
  };
  const Cell& cell(std::int32_t batch, std::int32_t depth) const {
    return cells_[static_cast<std::size_t>(batch * (kMaxDraft + 1) + depth)];
  }
  bool is_stale(const Cell& cell) const;
  std::optional<Estimate> of_depth(std::int32_t batch, std::int32_t depth) const;
  std::optional<Estimate> of_near_batches(std::int32_t batch, std::int32_t depth) const;

  // Of a batch: the depth measured last, how often in a row.
  struct Run {
    std::int32_t depth = -1, length = 0;
  };

  std::vector<Cell> cells_;  // [1 + kMaxBatch, 1 + kMaxDraft]
  std::vector<Run> runs_;    // [1 + kMaxBatch]
  std::int64_t num_added_ = 0;
};

// A decode step verifies drafts (one forward over batch * (1 + depth) rows, and drawing), then proposes new ones.
struct StepTimes {
  DepthTimes verify, propose;

  // Of a step of decodes only, in which `batch` sequences verified num_drafts together and each was asked for
  // `num_proposals`. A step whose sequences differ in depth by more than a tenth on average tells nothing.
  void add(std::int32_t batch, std::int32_t num_drafts, std::int32_t num_proposals, double verify_us,
           double propose_us);
};

// How often the drafts at each place of a block were right, those before being right. Counts fade: what was not seen
// for long is forgotten.
class Acceptance {
 public:
  static constexpr double kPrior = 0.7;

  explicit Acceptance(double most_trials) : most_trials_(most_trials) {}
  // Of one verified step: the drafts behind the first wrong one say nothing.
  void add(std::int32_t num_drafts, std::int32_t num_accepted);
  // Once a step.
  void fade();

  struct Rate {
    double mean = kPrior;
    double hoped = 1;  // could be as much by what was seen
  };
  // By place: the chance that the draft there is right, those before being right. Of all requests together: what is
  // not known is the chance at the place before.
  using Rates = std::array<Rate, kMaxDraft>;
  Rates rates() const;
  // Of one request: what is not known is what is known of all.
  Rates rates(const Rates& of_all) const;

 private:
  struct Place {
    double trials = 0, hits = 0;
  };
  static Rate rate_of(const Place& place, double prior, double prior_trials);
  double most_trials_;
  std::array<Place, kMaxDraft> places_{};
};

// Tokens that a step of a batch brings, by the number of drafts it verifies of each sequence.
struct ExpectedTokens {
  std::array<double, kMaxDraft + 1> mean{};   // 1 + q0 + q0 q1 + ..., summed over the requests
  std::array<double, kMaxDraft + 1> hoped{};  // with the hoped rates
  void add(const Acceptance::Rates& request);
};

struct DepthChoice {
  std::int32_t depth = 0;
  double loss_us = 0;  // expected against the best choice, where something is tried out
};

// The depth in [0, max_depth] with the most tokens per second by the likely times and mean rates; drafting has to win
// by 1 %. Depth 0 is measured first. Where another depth could be faster by its least time and hoped rates, and trying
// it is expected to cost at most `budget_us`, that one.
DepthChoice choose_depth(const StepTimes& times, std::int32_t batch, const ExpectedTokens& tokens,
                         std::int32_t max_depth, double budget_us);

// What a decision needs to know, kept up step by step. The share of time for trying out is bounded: kTrialShare.
class DepthPolicy {
 public:
  static constexpr double kTrialShare = 0.004;
  static constexpr double kRequestTrials = 48;  // an Acceptance of one request

  // Of the requests that this step draws a token for.
  std::int32_t choose(std::span<const Acceptance* const> requests, std::int32_t max_depth);
  // After each step that verified drafts of a request.
  void add_drafts(std::int32_t num_drafts, std::int32_t num_accepted) { all_.add(num_drafts, num_accepted); }
  // After each step of decodes only.
  void add_step(std::int32_t batch, std::int32_t num_drafts, std::int32_t num_proposals, double verify_us,
                double propose_us);

 private:
  StepTimes times_;
  Acceptance all_{512};
  double budget_us_ = 0;
  bool started_ = false;
};

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
