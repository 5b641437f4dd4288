// For tests: what `fathom bench draft` does on a card, on a virtual clock. Runs that answer the same requests, `batch`
// at once; prompts among the steps, fewer and fewer sequences towards a run's end; first some runs to warm up.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "engine/speculation_bench.h"

namespace fathom {

struct DraftRuns {
  std::int32_t batch = 1;
  std::int64_t num_answers = 1;  // of a run
  int num_runs = 7;              // measured, behind the ones that warm up
  int most_warm_ups = 8;
};
// As many answers as take `run_us` without drafts.
DraftRuns plan_draft_runs(const DraftWorld& world, std::int32_t batch, double run_us);

// Where adaptive depth's time went. An expected loss is that of a step against the depth with the most tokens per
// microsecond at its batch, by the world's own times and rates.
struct DraftRunsTime {
  double us = 0;
  std::int64_t num_tokens = 0;
  double first_uses_us = 0;
  int num_first_uses = 0;
  double tried_us = 0, num_tried = 0;  // expected losses of steps that tried a depth
  double wrong_us = 0;                 // and of those where a depth was taken for the best that is not
  double tokens_per_us() const { return static_cast<double>(num_tokens) / us; }
};

namespace draft_runs_detail {

inline constexpr std::int64_t kAnswerTokens[] = {160, 25,  40,  160, 30, 12, 14, 160, 30,  24, 22, 160,
                                                 160, 110, 160, 160, 90, 60, 60, 160, 130, 80, 75, 160};
inline constexpr std::int32_t kPromptRows = 25, kMostPrompts = 16;  // of one step
// Steps with rows of prompts are not captured.
inline constexpr double kLaunchesUs = 230, kDraftLaunchesUs = 60;

}  // namespace draft_runs_detail

class DraftRunsClock {
 public:
  // depth -1: adaptive, at most 5.
  DraftRunsClock(const DraftWorld& world, const DraftProfile& profile, std::int32_t depth, const DraftNoise& noise,
                 std::uint64_t seed)
      : world_(world), profile_(profile), depth_(depth), noise_(noise), random_(seed) {}

  DraftRunsTime measure(const DraftRuns& runs) {
    std::int64_t steps = 0;
    for (int time = 0; time < runs.most_warm_ups; ++time) {
      if (time > 0 && is_steady_ && (depth_ >= 0 || steps >= 300)) break;
      run(runs);
      steps += num_steps_;
    }
    total_ = {};
    for (int i = 0; i < runs.num_runs; ++i) run(runs);
    return total_;
  }

 private:
  struct Running {
    std::int64_t id = 0, position = 0, left = 0;
    std::int32_t num_drafts = 0;
    bool is_new = true;  // its prompt is computed in this step
    Acceptance acceptance{DepthPolicy::kRequestTrials};
  };

  double disturbance() {
    if (noise_.spread == 0) return 1.0;
    const double longer = std::exp(noise_.spread * std::abs(normal_(random_)));
    return longer * (static_cast<double>(random_() % 1000) < 1000 * noise_.often ? noise_.times : 1.0);
  }
  double first_us(int& uses) {
    ++uses;
    const double us = uses == 1 ? world_.launched_us : uses == 2 ? world_.captured_us : 0.0;
    total_.first_uses_us += us;
    total_.num_first_uses += us > 0 ? 1 : 0;
    num_first_ += us > 0 ? 1 : 0;
    return us;
  }

  // Expected microseconds a token at a depth.
  double us_of_step(std::int32_t batch, std::int32_t depth) const {
    return world_.verify_us(batch, batch * (1 + depth)) + world_.propose_us(batch, depth);
  }
  double tokens_of_step(std::int32_t batch, std::int32_t depth) const {
    double sum = 0, right = 1;
    for (std::int32_t place = 0; place <= depth; ++place) {
      sum += right;
      right *= profile_.rate(0, 0, place);
    }
    return batch * sum;
  }
  void account(std::int32_t batch, std::int32_t asked) {
    double best = 1e18;
    for (std::int32_t depth = 0; depth <= 5; ++depth)
      best = std::min(best, us_of_step(batch, depth) / tokens_of_step(batch, depth));
    const double loss_us = us_of_step(batch, asked) - tokens_of_step(batch, asked) * best;
    if (policy_.choice().loss_us > 0) {
      total_.tried_us += loss_us, ++total_.num_tried;
    } else {
      total_.wrong_us += loss_us;
    }
  }

  void run(const DraftRuns& runs) {
    num_steps_ = num_first_ = 0;
    std::int64_t num_admitted = 0;
    std::vector<Running> running;
    while (num_admitted < runs.num_answers || !running.empty()) {
      std::int32_t num_new = 0;
      while (num_admitted < runs.num_answers && std::cmp_less(running.size(), runs.batch) &&
             num_new < draft_runs_detail::kMostPrompts) {
        Running& fresh = running.emplace_back();
        fresh.id = next_id_++;
        fresh.left = draft_runs_detail::kAnswerTokens[num_admitted++ % 24];
        ++num_new;
      }
      step(running, num_new);
      std::erase_if(running, [](const Running& request) { return request.left == 0; });
    }
    is_steady_ = num_first_ <= 0.005 * static_cast<double>(num_steps_);
  }

  void step(std::vector<Running>& running, std::int32_t num_new) {
    ++num_steps_;
    const auto batch = static_cast<std::int32_t>(running.size());
    std::int32_t asked = depth_;
    if (depth_ < 0 && policy_.is_known(batch, next_id_)) {
      asked = policy_.choose_known(5);
    } else if (depth_ < 0) {
      acceptances_.clear();
      for (const Running& request : running) acceptances_.push_back(&request.acceptance);
      asked = policy_.choose(acceptances_, 5);
    }
    if (depth_ < 0) account(batch, asked);
    DraftedStep step;
    step.batch = batch, step.num_proposals = asked;
    for (const Running& request : running) {
      step.num_drafts += request.num_drafts;
      step.num_verified += request.num_drafts > 0 ? 1 : 0;
    }
    step.decodes_only = num_new == 0;
    const std::int32_t num_rows = batch + step.num_drafts + num_new * (draft_runs_detail::kPromptRows - 1);
    double verify_us = world_.verify_us(batch, num_rows), propose_us = world_.propose_us(batch, asked);
    if (num_new > 0) {
      verify_us += draft_runs_detail::kLaunchesUs, propose_us += draft_runs_detail::kDraftLaunchesUs * asked;
    }
    verify_us *= disturbance(), propose_us *= disturbance();
    if (num_new == 0) {
      const std::int32_t filled = filled_batch(batch), verified = step.num_drafts / batch;
      const bool alike = std::all_of(running.begin(), running.end(),
                                     [&](const Running& request) { return request.num_drafts == verified; });
      const double verify_first = first_us(verify_uses_[{step.num_drafts == 0 || !alike ? batch : filled,
                                                         alike ? verified : step.num_drafts, alike ? 1 : 0}]);
      const double propose_first = asked > 0 ? first_us(propose_uses_[{filled, verified, asked}]) : 0.0;
      verify_us += verify_first, propose_us += propose_first;
      step.is_first_verify = verify_first > 0, step.is_first_propose = propose_first > 0;
    }
    step.us = verify_us + propose_us, step.propose_us = propose_us;
    total_.us += step.us;
    for (Running& request : running) {
      const std::int32_t accepted = num_right_drafts(request, profile_);
      request.acceptance.fade();
      request.acceptance.add(request.num_drafts, accepted);
      const std::int64_t got = std::min<std::int64_t>(accepted + 1, request.left);
      if (request.num_drafts > 0) {
        policy_.add_drafts(request.num_drafts, static_cast<std::int32_t>(got) - 1);
        step.num_verified_tokens += static_cast<std::int32_t>(got);
      }
      step.num_tokens += static_cast<std::int32_t>(got);
      request.position += got, request.left -= got;
      request.num_drafts = asked;
      total_.num_tokens += got;
    }
    policy_.add_step(step);
  }

  const DraftWorld& world_;
  const DraftProfile& profile_;
  const std::int32_t depth_;
  const DraftNoise noise_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::map<std::array<std::int32_t, 3>, int> verify_uses_, propose_uses_;
  DepthPolicy policy_;
  std::vector<const Acceptance*> acceptances_;
  std::int64_t next_id_ = 0, num_steps_ = 0, num_first_ = 0;
  bool is_steady_ = false;
  DraftRunsTime total_;
};

inline DraftRuns plan_draft_runs(const DraftWorld& world, std::int32_t batch, double run_us) {
  const DraftProfile none{"0", [](std::int64_t, std::int64_t, std::int32_t) { return 0.0; }};
  DraftRuns runs{batch, batch, 1, 1};
  const double us = DraftRunsClock(world, none, 0, {}, 1).measure(runs).us;
  runs.num_answers = batch * std::max<std::int64_t>(1, std::lround(run_us / us));
  runs.num_runs = 7, runs.most_warm_ups = 8;
  return runs;
}

}  // namespace fathom
