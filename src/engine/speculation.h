// How deep to draft: decided each step from measured step times and the running acceptance, by pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/step.h"
#include "ops/cache_view.h"

namespace fathom {

// Measured times of one part of decode steps, by batch (sequences) and depth (drafts of each).
class DepthTimes {
 public:
  static constexpr std::int32_t kMaxBatch = 256;  // larger ones count as this

  struct Estimate {
    double us = 0;          // likely
    double least_us = 0;    // could be as little by what is known
    bool guessed = false;   // of depth 0 alone: good for a try, not for a choice
    bool measured = false;  // with this batch and depth
  };

  DepthTimes();
  void add(std::int32_t batch, std::int32_t depth, double us);
  // Measured twice and lately: that. Else from the nearest batches of the same depth, scaled as another depth is or at
  // most twice as far; else from the depths below and above at this batch, where a deeper one takes at least as long.
  // None where nothing is near.
  // Never more than a deeper one was measured at.
  std::optional<Estimate> estimate(std::int32_t batch, std::int32_t depth) const;
  // Of the depths [first, last], by those up to `last` alone; at the price of one.
  using Estimates = std::array<std::optional<Estimate>, kMaxDraft + 1>;
  Estimates estimates(std::int32_t batch, std::int32_t first, std::int32_t last) const;

 private:
  struct Cell {
    double us = 0;
    std::int32_t count = 0;
    std::int64_t seen = 0;  // num_added_ when measured last
    std::int32_t age = 0;   // measurements after the first four, or after a time away; at most kSettled
  };
  const Cell& cell(std::int32_t batch, std::int32_t depth) const {
    return cells_[static_cast<std::size_t>(batch * (kMaxDraft + 1) + depth)];
  }
  bool is_stale(const Cell& cell) const;
  struct NearBatches {
    std::int32_t nearest = 0;  // with this depth measured; 0: none
    bool is_far = false;       // it is less than half or more than twice as large
    double us_between = 0;     // on the line between those below and above; 0: not close enough
  };
  NearBatches near_batches(std::int32_t batch, std::int32_t depth) const;
  // Measured twice, or by the nearest batches; 0: not known.
  double likely_us(std::int32_t batch, std::int32_t depth) const;
  std::optional<Estimate> of_depth(std::int32_t batch, std::int32_t depth) const;
  std::optional<Estimate> among_depths(const Estimates& alone, std::int32_t batch, std::int32_t depth) const;
  std::optional<Estimate> of_near_batches(std::int32_t batch, std::int32_t depth) const;

  // Of a batch: the depth measured last, how often in a row.
  struct Run {
    std::int32_t depth = -1, length = 0;
  };

  // Asked at each step, of many batches.
  class BatchSet {
   public:
    void set(std::int32_t batch, bool in) {
      std::uint64_t& word = words_[static_cast<std::size_t>(batch / 64)];
      const std::uint64_t bit = std::uint64_t{1} << (batch % 64);
      word = in ? word | bit : word & ~bit;
    }
    // The nearest one in it; none: 0, or kMaxBatch + 1.
    std::int32_t below(std::int32_t batch) const;
    std::int32_t above(std::int32_t batch) const;

   private:
    std::array<std::uint64_t, kMaxBatch / 64 + 1> words_{};
  };

  std::vector<Cell> cells_;                       // [1 + kMaxBatch, 1 + kMaxDraft]
  std::vector<Run> runs_;                         // [1 + kMaxBatch]
  std::array<BatchSet, kMaxDraft + 1> measured_;  // batches with a time of the depth
  std::int64_t num_added_ = 0;
};

// A decode step verifies drafts (one forward over batch * (1 + depth) rows, and drawing), then proposes new ones.
struct StepTimes {
  DepthTimes verify, propose;

  // Of a step of decodes only, in which `batch` sequences verified num_drafts together. Where they differ in depth by
  // more than a tenth on average it tells nothing.
  void add_verify(std::int32_t batch, std::int32_t num_drafts, double us);
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
  // Of one request, the first num_places: what is not known is what is known of all.
  Rates rates(const Rates& of_all, std::int32_t num_places = kMaxDraft) const;

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
  void add(const Acceptance::Rates& request, std::int32_t most = kMaxDraft);  // depths up to `most`
};

struct DepthChoice {
  std::int32_t depth = 0;
  double loss_us = 0;         // expected against the best choice, where something is tried out
  double off_us = 0;          // of a step without drafts, at least where it was not measured; 0: not known
  bool off_measured = false;  // with this batch
  bool may_draft = true;      // false: even by the least times and hoped rates no drafts are faster than none
  double wanted_us = 0;       // what the cheapest try of drafts that could be faster is expected to lose; 0: none could
};

inline constexpr double kDraftingWins = 1.01;

// Where each batch and depth is a shape that is slow at first.
struct NewShapes {
  bool matter = false;      // some were seen to be
  std::int32_t in_use = 0;  // depth of the drafts that the step to come verifies
  // By depth: what its shapes will take longer before they are as fast as later on.
  std::array<double, kMaxDraft + 1> first_use_us{};
};

// The depth in [0, max_depth] with the most tokens per second by the likely times and mean rates; drafting has to win
// by `margin`. Depth 0 is measured first. Where another depth could be faster by its least time and hoped rates, and
// trying it is expected to cost at most `budget_us`, that one.
// Where shapes matter, those that are new count: among many steps where a depth is chosen, some of it where one is
// tried and drafting is on. Then the depth in use stays where another is hardly better by times that are estimated, the
// first drafts of all are few, and of the places that are verified anyway nothing else is hoped for.
DepthChoice choose_depth(const StepTimes& times, std::int32_t batch, const ExpectedTokens& tokens,
                         std::int32_t max_depth, double budget_us, double margin = kDraftingWins,
                         const NewShapes& shapes = {});

// A step as the policy sees it.
struct DraftedStep {
  std::int32_t batch = 0;                // sequences
  std::int32_t num_drafts = 0;           // verified, of all together
  std::int32_t num_proposals = 0;        // asked for, of each
  std::int32_t num_tokens = 0;           // that answers grew by; what is drafted past an answer's end is none
  std::int32_t num_verified = 0;         // sequences that had drafts
  std::int32_t num_verified_tokens = 0;  // that those's answers grew by
  double us = 0;                         // from its plan to the next one's: the host's part too
  double propose_us = 0;                 // of that, drafting
  bool decodes_only = true;              // else rows of prompts stand in it, and its time tells nothing
  // Its time, or that of drafting, is not that of later ones (StepResult).
  bool is_first_verify = false, is_first_propose = false;
};

// What a decision needs to know, kept up step by step. What it may cost is bounded twice:
// - trying out is expected to take at most kTrialShare of the time, and kStartTrialSteps steps' time at the start,
//   against the best choice known;
// - drafting, wherever it was chosen, loses at most kTrialShare of the time, and kStartLossSteps steps' time, against
//   no drafts, by times measured and tokens gained. Beyond that it has to win clearly by what is known, and nothing is
//   tried out; beyond kStartLossSteps steps' time more it is off until the share has made up for it.
class DepthPolicy {
 public:
  static constexpr double kTrialShare = 0.004;
  static constexpr double kStartTrialSteps = 3, kStartLossSteps = 6;
  static constexpr double kRequestTrials = 48;  // an Acceptance of one request

  // Once a step: true where choose() was told lately of these `batch` requests, the newest of which is this one, and
  // choose_known() will do.
  bool is_known(std::int32_t batch, std::int64_t newest);
  std::int32_t choose_known(std::int32_t max_depth);
  // Of the requests that this step draws a token for.
  std::int32_t choose(std::span<const Acceptance* const> requests, std::int32_t max_depth);
  // What the step decided on goes by.
  const DepthChoice& choice() const { return now_; }
  // What the drafter needs of the step decided on.
  DrafterFeed feed() const;
  // After each step that verified drafts of a request: of those accepted, what its answer grew by.
  void add_drafts(std::int32_t num_drafts, std::int32_t num_accepted) { all_.add(num_drafts, num_accepted); }
  // After each step, behind its choose().
  void add_step(const DraftedStep& step);

 private:
  void account_loss(const DraftedStep& step);
  void learn_shapes(const DraftedStep& step);
  NewShapes new_shapes() const;

  StepTimes times_;
  Acceptance all_{512};
  // Depths, a bit each, whose shapes are known, by filled_batch(): of verifying steps, and of draft passes behind each
  // depth verified. Steps without drafts are not filled up: by batch.
  struct KnownShapes {
    std::uint16_t verified = 0;
    bool undrafted = false;
    std::array<std::uint16_t, kMaxDraft + 1> proposed{};
    bool has_proposed(std::int32_t verified_depth, std::int32_t depth) const {
      return (proposed[static_cast<std::size_t>(verified_depth)] >> depth & 1) != 0;
    }
  };
  std::vector<KnownShapes> known_shapes_ = std::vector<KnownShapes>(DepthTimes::kMaxBatch * 3 / 2 + 1);
  bool shapes_matter_ = false;
  double first_use_us_ = 0;        // of one shape, longer than later ones; 0: shapes make no difference here
  std::int32_t num_proposed_ = 0;  // of each sequence in the last step
  std::int32_t num_tries_left_ = 0, tried_batch_ = 0;  // of the depth tried last, whose shapes were new
  DepthChoice now_;                                    // of this step's proposals
  double trial_budget_us_ = 0;
  double loss_us_ = 0;                            // by drafting against none, less what it may be
  ExpectedTokens tokens_;                         // of the step decided on last
  std::int32_t known_batch_ = 0, num_known_ = 0;  // steps to come that may go by them
  std::int64_t newest_ = -1;
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
