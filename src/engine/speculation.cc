#include "engine/speculation.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/draft_streams.h"
#include "engine/filled_batch.h"

namespace fathom {
namespace {

// A batch twice or half as large may be off by this share, those between by less.
constexpr double kFarBatch = 0.3;
// One at most twice or half as large, scaled as another depth is, at most by this.
constexpr double kScaledBatch = 0.15;
// A time seen once may have met cold caches or a graph's capture.
constexpr double kSeenOnce = 0.7;
// Seen a few times or long ago.
constexpr double kDoubtful = 0.9;
constexpr std::int32_t kFewTimes = 4;
constexpr std::int64_t kStaleAfter = 1024;  // measurements of the whole table
constexpr std::int64_t kAway = 16;          // measurements of the whole table
// What disturbs a step makes it longer. Low times count for more than high ones, so that a depth seen a few times and
// one in use, whose times are many, are judged by the same part of them.
constexpr double kShorterWeight = 0.15, kLongerWeight = 0.05;
constexpr double kMostLonger = 0.3;    // of a time far above the others, so much counts
constexpr std::int32_t kFresh = 4;     // measurements after the first four, or after a time away: they count thrice
constexpr std::int32_t kSettled = 60;  // from so many measurements on, a time's changes are the machine's
constexpr double kJitterUs = 20;       // a time of a few microseconds tells nothing of others
constexpr double kGuessedSlope = 0.5;  // of a draft's rows, against the undrafted step

constexpr double kClearlyWins = 1.05;    // by so much at least where drafting has lost as much as it may
constexpr double kUndraftedTrial = 0.5;  // of its time: a step without drafts may be tried at this price
constexpr double kMostSteps = 10;        // that may be saved up for trying out, in their time
constexpr double kMostFirstUses = 5;     // likewise, of shapes: a try has up to five
constexpr double kGainedSteps = 40;      // of what drafting gained, that may be lost again before it counts as a loss

// Where shapes are slow at first, they are of use later:
constexpr double kFirstUseShare = 0.4;  // so much of it a try costs
constexpr double kChoiceUses = 100;     // among so many steps it is divided where a depth is chosen
constexpr double kOtherDepth = 0.02;    // by so much one that is neither in use nor measured has to win
constexpr std::int32_t kFirstTry = 2;   // the deepest while nothing is known of drafts: a few places tell of the rest
constexpr std::int32_t kMoreTries = 2;  // of a depth whose shapes are new: its first uses are not measured

constexpr std::int32_t kMostKnown = 4;  // steps until acceptances have faded enough to look at them again
// Before a decision: from then on the drafter keeps what it needs, as much as it can keep.
constexpr auto kCatchUpSteps = static_cast<std::int32_t>(DraftStreams::kKept);

constexpr double kPriorTrials = 2, kRequestPriorTrials = 8;
constexpr double kFade = 1.0 - 1.0 / 1024;

// Tokens of a step of `depth` that could be, where drafts of depth `in_use` are verified: those places are known.
double could_bring(const ExpectedTokens& tokens, std::size_t depth, std::size_t in_use) {
  if (in_use == 0) return tokens.hoped[depth];
  if (depth < in_use) return tokens.mean[depth];
  // Behind them as hoped for.
  const double right = tokens.mean[in_use] - tokens.mean[in_use - 1];
  const double hoped_right = tokens.hoped[in_use] - tokens.hoped[in_use - 1];
  if (hoped_right <= 0) return tokens.mean[in_use];
  return tokens.mean[in_use] + (tokens.hoped[depth] - tokens.hoped[in_use]) * right / hoped_right;
}

}  // namespace

DepthTimes::DepthTimes()
    : cells_(static_cast<std::size_t>((kMaxBatch + 1) * (kMaxDraft + 1))),
      runs_(static_cast<std::size_t>(kMaxBatch + 1)) {}

bool DepthTimes::is_stale(const Cell& cell) const { return num_added_ - cell.seen > kStaleAfter; }

void DepthTimes::add(std::int32_t batch, std::int32_t depth, double us) {
  batch = std::clamp(batch, 1, kMaxBatch);
  const auto row = static_cast<std::size_t>(batch * (kMaxDraft + 1));
  Cell& own = cells_[row + static_cast<std::size_t>(depth)];
  if (is_stale(own)) own.count = 0;
  if (num_added_ - own.seen > kAway) own.age = 0;
  own.seen = ++num_added_;
  Run& run = runs_[static_cast<std::size_t>(batch)];
  run = {depth, run.depth == depth ? std::min(run.length + 1, kFresh + 1) : 1};
  ++own.count;
  measured_[static_cast<std::size_t>(depth)].set(batch, true);
  if (own.count <= 4) {
    own.us = own.count == 1 ? us : std::min(own.us, us);
    own.age = 0;
    return;
  }
  const double before = own.us;
  const double weight = (us < own.us ? kShorterWeight : kLongerWeight) * (own.age < kFresh ? 3 : 1);
  own.us += weight * std::min(us - own.us, kMostLonger * own.us);
  const bool settled = own.age == kSettled;
  own.age = std::min(own.age + 1, kSettled);
  // Contexts grow and machines get busy: that changes the times of all depths. It is seen in the depth that is in use;
  // one tried in between differs for reasons of its own, or the ratio of two would stay as first measured.
  if (before <= 0 || !settled || run.length <= kFresh) return;
  const double change = (own.us + kJitterUs) / (before + kJitterUs);
  for (std::int32_t other = 0; other <= kMaxDraft; ++other) {
    if (other != depth) cells_[row + static_cast<std::size_t>(other)].us *= change;
  }
}

std::int32_t DepthTimes::BatchSet::below(std::int32_t batch) const {
  std::int32_t word = batch / 64;
  std::uint64_t bits = words_[static_cast<std::size_t>(word)] & ((std::uint64_t{1} << (batch % 64)) - 1);
  while (bits == 0 && word > 0) bits = words_[static_cast<std::size_t>(--word)];
  return bits == 0 ? 0 : word * 64 + 63 - std::countl_zero(bits);
}

std::int32_t DepthTimes::BatchSet::above(std::int32_t batch) const {
  std::int32_t word = batch / 64;
  std::uint64_t bits = words_[static_cast<std::size_t>(word)] & (~std::uint64_t{1} << (batch % 64));
  while (bits == 0 && word < kMaxBatch / 64) bits = words_[static_cast<std::size_t>(++word)];
  return bits == 0 ? kMaxBatch + 1 : word * 64 + std::countr_zero(bits);
}

DepthTimes::NearBatches DepthTimes::near_batches(std::int32_t batch, std::int32_t depth) const {
  const BatchSet& batches = measured_[static_cast<std::size_t>(depth)];
  const std::int32_t below = batches.below(batch), above = batches.above(batch);
  const bool has_below = below > 0, has_above = above <= kMaxBatch;
  NearBatches found;
  if (!has_below && !has_above) return found;
  found.nearest = has_below && (!has_above || batch * batch <= below * above) ? below : above;
  found.is_far = batch > 2 * found.nearest || found.nearest > 2 * batch;
  if (!has_below || !has_above || above > 4 * below) return found;
  const double share = static_cast<double>(batch - below) / (above - below);
  found.us_between = cell(below, depth).us + share * (cell(above, depth).us - cell(below, depth).us);
  return found;
}

double DepthTimes::likely_us(std::int32_t batch, std::int32_t depth) const {
  if (cell(batch, depth).count >= 2) return cell(batch, depth).us;
  const NearBatches near = near_batches(batch, depth);
  if (near.us_between > 0) return near.us_between;
  if (near.nearest == 0 || near.is_far) return 0;
  return cell(near.nearest, depth).us * std::sqrt(static_cast<double>(batch) / near.nearest);
}

std::optional<DepthTimes::Estimate> DepthTimes::of_near_batches(std::int32_t batch, std::int32_t depth) const {
  const NearBatches near = near_batches(batch, depth);
  if (near.nearest == 0) return std::nullopt;
  const double distance = std::abs(std::log2(static_cast<double>(near.nearest) / batch));
  const double doubt = kFarBatch * std::min(1.0, distance);
  if (near.us_between > 0) return Estimate{near.us_between, near.us_between * (1.0 - doubt)};
  // Scaled as the nearest depth is that is known of both batches.
  double scale = 0;
  for (std::int32_t other_by = 1; scale == 0 && other_by <= kMaxDraft; ++other_by) {
    for (const std::int32_t other : {depth - other_by, depth + other_by}) {
      if (other < 0 || other > kMaxDraft || scale > 0) continue;
      const double there = likely_us(near.nearest, other), here = there > 0 ? likely_us(batch, other) : 0;
      if (here > 0) scale = here / there;
    }
  }
  const double us = cell(near.nearest, depth).us;
  if (scale > 0)
    return Estimate{us * scale, us * scale * (1.0 - (near.is_far ? doubt : std::min(doubt, kScaledBatch)))};
  if (near.is_far) return std::nullopt;
  scale = std::sqrt(static_cast<double>(batch) / near.nearest);
  return Estimate{us * scale, us * scale * (1.0 - doubt)};
}

std::optional<DepthTimes::Estimate> DepthTimes::of_depth(std::int32_t batch, std::int32_t depth) const {
  const Cell& own = cell(batch, depth);
  if (own.count >= 2) {
    return Estimate{own.us, own.us * (own.count < kFewTimes || is_stale(own) ? kDoubtful : 1.0), false, true};
  }
  const auto near = of_near_batches(batch, depth);
  if (near || own.count == 0 || depth == 0) return near;
  return Estimate{own.us, own.us * kSeenOnce};
}

std::optional<DepthTimes::Estimate> DepthTimes::estimate(std::int32_t batch, std::int32_t depth) const {
  return estimates(batch, depth, kMaxDraft)[static_cast<std::size_t>(depth)];
}

DepthTimes::Estimates DepthTimes::estimates(std::int32_t batch, std::int32_t first, std::int32_t last) const {
  batch = std::clamp(batch, 1, kMaxBatch);
  Estimates alone, found;
  for (std::int32_t depth = 0; depth <= last; ++depth) {
    alone[static_cast<std::size_t>(depth)] = of_depth(batch, depth);
  }
  for (std::int32_t depth = first; depth <= last; ++depth) {
    found[static_cast<std::size_t>(depth)] = among_depths(alone, batch, depth);
  }
  return found;
}

std::optional<DepthTimes::Estimate> DepthTimes::among_depths(const Estimates& alone, std::int32_t batch,
                                                             std::int32_t depth) const {
  const auto at = [&alone](std::int32_t other) -> const std::optional<Estimate>& {
    return alone[static_cast<std::size_t>(other)];
  };
  std::int32_t left_depth = depth - 1, right_depth = depth + 1;
  while (left_depth >= 0 && !at(left_depth)) --left_depth;
  if (auto own = at(depth)) {
    if (left_depth >= 0 && cell(batch, depth).count < 2)
      own->least_us = std::max(own->least_us, at(left_depth)->least_us);
    // A deeper one has more rows: where it took less, these times met something.
    while (right_depth <= kMaxDraft && cell(batch, right_depth).count < 2) ++right_depth;
    if (right_depth <= kMaxDraft) {
      own->us = std::min(own->us, cell(batch, right_depth).us);
      own->least_us = std::min(own->least_us, own->us);
    }
    return own;
  }
  if (left_depth < 0) return std::nullopt;
  const Estimate& left = *at(left_depth);
  const std::int32_t more = depth - left_depth;
  while (right_depth <= kMaxDraft && !at(right_depth)) ++right_depth;
  if (right_depth <= kMaxDraft) {
    const double share = static_cast<double>(more) / (right_depth - left_depth);
    return Estimate{left.us + share * std::max(0.0, at(right_depth)->us - left.us), left.least_us};
  }
  if (left_depth == 0) return Estimate{left.us * (1 + kGuessedSlope * more), left.least_us, true};
  std::int32_t first_depth = left_depth - 1;
  while (first_depth >= 0 && !at(first_depth)) --first_depth;
  if (first_depth < 0) return std::nullopt;
  const double slope = std::max(0.0, left.us - at(first_depth)->us) / (left_depth - first_depth);
  return Estimate{left.us + slope * more, left.least_us};
}

void StepTimes::add_verify(std::int32_t batch, std::int32_t num_drafts, double us) {
  const double mean = static_cast<double>(num_drafts) / batch;
  const double depth = std::round(mean);
  if (std::abs(mean - depth) <= 0.1) verify.add(batch, static_cast<std::int32_t>(depth), us);
}

void Acceptance::add(std::int32_t num_drafts, std::int32_t num_accepted) {
  const std::int32_t num_trials = std::min(num_accepted + 1, num_drafts);
  for (std::int32_t i = 0; i < num_trials; ++i) {
    Place& place = places_[static_cast<std::size_t>(i)];
    place.trials += 1;
    place.hits += i < num_accepted ? 1 : 0;
    if (place.trials <= most_trials_) continue;
    place.hits *= most_trials_ / place.trials;
    place.trials = most_trials_;
  }
}

void Acceptance::fade() {
  for (Place& place : places_) {
    place.trials *= kFade;
    place.hits *= kFade;
  }
}

Acceptance::Rate Acceptance::rate_of(const Place& place, double prior, double prior_trials) {
  const double trials = place.trials + prior_trials;
  Rate rate;
  rate.mean = (place.hits + prior_trials * prior) / trials;
  rate.hoped = std::min(1.0, rate.mean + std::sqrt(rate.mean * (1 - rate.mean) / trials) + 1 / trials);
  return rate;
}

Acceptance::Rates Acceptance::rates() const {
  Rates rates;
  double before = kPrior;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    rates[i] = rate_of(places_[i], before, kPriorTrials);
    before = rates[i].mean;
  }
  return rates;
}

Acceptance::Rates Acceptance::rates(const Rates& of_all, std::int32_t num_places) const {
  Rates rates;
  double before = 1;
  for (std::size_t i = 0; std::cmp_less(i, num_places); ++i) {
    // Those who get far are the good ones: of one whose first drafts are wrong they say nothing.
    rates[i] = rate_of(places_[i], std::min(of_all[i].mean, before), kRequestPriorTrials);
    before = rates[i].mean;
  }
  return rates;
}

void ExpectedTokens::add(const Acceptance::Rates& request, std::int32_t most) {
  double sum = 0, hoped_sum = 0, right = 1, hoped_right = 1;
  for (std::size_t depth = 0; std::cmp_less_equal(depth, most); ++depth) {
    mean[depth] += sum += right;
    hoped[depth] += hoped_sum += hoped_right;
    if (std::cmp_equal(depth, most)) break;
    right *= request[depth].mean;
    hoped_right *= request[depth].hoped;
  }
}

DepthChoice choose_depth(const StepTimes& times, std::int32_t batch, const ExpectedTokens& tokens,
                         std::int32_t max_depth, double budget_us, double margin, const NewShapes& shapes) {
  DepthTimes::Estimates steps = times.verify.estimates(batch, 0, max_depth);
  const DepthTimes::Estimates proposals = times.propose.estimates(batch, 0, max_depth);
  DepthChoice best;
  double best_speed = 0, best_charged = 0;
  for (std::int32_t depth = 0; depth <= max_depth; ++depth) {
    const auto at_depth = static_cast<std::size_t>(depth);
    auto& step = steps[at_depth];
    if (!step) {
      if (depth == 0) return {};
      continue;
    }
    if (const auto& propose = proposals[at_depth]) {
      step->us += propose->us;
      step->least_us += propose->least_us;
    }
    if (step->guessed) continue;
    double tokens_for_it = tokens.mean[at_depth] * (depth == 0 ? margin : 1.0);
    if (shapes.matter && shapes.in_use > 0 && depth != shapes.in_use && !step->measured) {
      tokens_for_it *= 1 - kOtherDepth;
    }
    const double charged = tokens_for_it / (step->us + shapes.first_use_us[at_depth] / kChoiceUses);
    if (charged <= best_charged) continue;
    best.depth = depth;
    best_charged = charged;
    best_speed = tokens_for_it / step->us;
  }
  best.off_us = steps[0]->measured ? steps[0]->us : steps[0]->least_us;
  best.off_measured = steps[0]->measured;
  best.may_draft = best.depth > 0;
  DepthChoice tried = best;
  double tried_speed = best_speed;
  for (std::int32_t depth = 0; depth <= max_depth; ++depth) {
    const auto at_depth = static_cast<std::size_t>(depth);
    const auto& step = steps[at_depth];
    if (depth == best.depth || !step) continue;
    if (shapes.matter && step->guessed && depth > kFirstTry) continue;
    // Whoever does not draft yet has to learn what drafts cost, whatever their shapes take at first.
    const double once_us = best.depth > 0 ? kFirstUseShare * shapes.first_use_us[at_depth] : 0.0;
    const double step_loss_us = step->us - tokens.mean[at_depth] / best_speed;
    const double loss_us = once_us + (once_us > 0 && step_loss_us > 0 ? 1 + kMoreTries : 1) * step_loss_us;
    const std::size_t known_to = shapes.matter ? static_cast<std::size_t>(best.depth) : 0;
    const double speed = could_bring(tokens, at_depth, known_to) / step->least_us;
    if (depth > 0 && speed > best_speed) {
      best.may_draft = true;
      if (best.depth == 0 && (best.wanted_us == 0 || loss_us < best.wanted_us))
        best.wanted_us = std::max(loss_us, 1e-9);
    }
    const double most_us = depth == 0 ? std::max(budget_us, kUndraftedTrial * step->us) : budget_us;
    if (speed <= tried_speed || loss_us > most_us) continue;
    tried.depth = depth;
    tried.loss_us = std::max(0.0, loss_us);
    tried_speed = speed;
  }
  tried.may_draft = best.may_draft;
  tried.wanted_us = best.wanted_us;
  return tried;
}

bool DepthPolicy::is_known(std::int32_t batch, std::int64_t newest) {
  if (newest == newest_ && batch == known_batch_ && num_known_ > 0) {
    --num_known_;
    return true;
  }
  newest_ = newest;
  known_batch_ = batch;
  num_known_ = 0;
  return false;
}

std::int32_t DepthPolicy::choose(std::span<const Acceptance* const> requests, std::int32_t max_depth) {
  tokens_ = {};
  const Acceptance::Rates of_all = all_.rates();
  for (const Acceptance* request : requests) tokens_.add(request->rates(of_all, max_depth), max_depth);
  known_batch_ = static_cast<std::int32_t>(requests.size());
  num_known_ = kMostKnown;
  return choose_known(max_depth);
}

std::int32_t DepthPolicy::choose_known(std::int32_t max_depth) {
  // Drafting that has lost as much as it may goes on where it wins clearly, by times measured; nothing is tried out.
  const bool has_lost = loss_us_ > 0;
  const std::int32_t filled = filled_batch(std::min(known_batch_, DepthTimes::kMaxBatch));
  if (num_tries_left_ > 0 && filled == tried_batch_ && !has_lost && now_.depth <= max_depth) {
    --num_tries_left_;
    now_.loss_us = 0;
    return now_.depth;
  }
  const NewShapes shapes = new_shapes();
  now_ = choose_depth(times_, known_batch_, tokens_, max_depth,
                      has_lost ? -std::numeric_limits<double>::infinity() : trial_budget_us_,
                      has_lost ? kClearlyWins : kDraftingWins, shapes);
  // Twice as much: whatever the rates promise.
  if (has_lost && (!now_.off_measured || loss_us_ > kStartLossSteps * now_.off_us)) now_.depth = 0;
  trial_budget_us_ -= now_.loss_us;
  const bool tries_new =
      now_.loss_us > 0 && now_.depth > 0 && shapes.first_use_us[static_cast<std::size_t>(now_.depth)] > 0;
  num_tries_left_ = tries_new ? kMoreTries : 0;
  tried_batch_ = filled;
  return now_.depth;
}

DrafterFeed DepthPolicy::feed() const {
  if (now_.depth > 0) return DrafterFeed::kRows;
  if (!now_.may_draft) return DrafterFeed::kNothing;
  if (now_.off_us <= 0) return DrafterFeed::kStreams;
  const double soon_us = kCatchUpSteps * now_.off_us;
  const bool soon = std::max(loss_us_, now_.wanted_us - trial_budget_us_) <= kTrialShare * soon_us;
  return soon ? DrafterFeed::kStreams : DrafterFeed::kNothing;
}

// What drafting lost in this step, by what it took and brought.
void DepthPolicy::account_loss(const DraftedStep& step) {
  // What a shape's first uses take longer is not drafting's loss: they come twice a shape.
  if (step.num_proposals > 0) {
    const auto usual = times_.propose.estimate(step.batch, step.num_proposals);
    loss_us_ += !step.is_first_propose ? step.propose_us : usual ? usual->us : 0.0;
  }
  if (step.num_drafts == 0) return;
  const auto depth_of = [&](std::int32_t batch) {
    return static_cast<std::int32_t>(std::lround(static_cast<double>(step.num_drafts) / batch));
  };
  if (step.decodes_only) {
    if (now_.off_us <= 0) return;
    double verify_us = step.is_first_verify ? now_.off_us : step.us - step.propose_us;
    // Single times are noisy.
    const auto usual = times_.verify.estimate(step.batch, depth_of(step.batch));
    if (usual && !usual->guessed) verify_us = step.is_first_verify ? usual->us : std::min(verify_us, usual->us);
    loss_us_ += verify_us - now_.off_us * step.num_tokens / step.batch;
    return;
  }
  // Among rows of prompts: what verifying takes longer in steps of those sequences alone.
  const auto off = times_.verify.estimate(step.num_verified, 0);
  const auto usual = times_.verify.estimate(step.num_verified, depth_of(step.num_verified));
  if (!off || !usual || usual->guessed) return;
  const double gained_us = off->us * (step.num_verified_tokens - step.num_verified) / step.num_verified;
  loss_us_ += std::max(0.0, usual->us - off->us) - gained_us;
}

NewShapes DepthPolicy::new_shapes() const {
  NewShapes shapes;
  shapes.matter = shapes_matter_;
  shapes.in_use = num_proposed_;
  if (first_use_us_ <= 0) return shapes;
  const std::int32_t batch = std::min(known_batch_, DepthTimes::kMaxBatch);
  const KnownShapes& known = known_shapes_[static_cast<std::size_t>(filled_batch(batch))];
  const KnownShapes& undrafted = known_shapes_[static_cast<std::size_t>(batch)];
  for (std::int32_t depth = 0; depth <= kMaxDraft; ++depth) {
    const bool is_verified = depth == 0 ? undrafted.undrafted : (known.verified >> depth & 1) != 0;
    // Launched, captured; the pass between two depths comes once.
    int num_uses = is_verified ? 0 : 2;
    if (depth > 0 && !known.has_proposed(depth, depth)) num_uses += 2;
    if (depth > 0 && depth != num_proposed_ && !known.has_proposed(num_proposed_, depth)) ++num_uses;
    shapes.first_use_us[static_cast<std::size_t>(depth)] = first_use_us_ * num_uses;
  }
  return shapes;
}

void DepthPolicy::learn_shapes(const DraftedStep& step) {
  num_proposed_ = step.num_proposals;
  if (!step.decodes_only) return;
  const std::int32_t depth = step.num_drafts / step.batch, batch = std::min(step.batch, DepthTimes::kMaxBatch);
  if (step.is_first_verify || step.is_first_propose) {
    shapes_matter_ = true;
    const auto verify = times_.verify.estimate(step.batch, depth);
    const auto propose = times_.propose.estimate(step.batch, step.num_proposals);
    if (!verify || !propose) return;
    const double longer_us = step.us - verify->us - propose->us;
    if (longer_us > 0) first_use_us_ += (first_use_us_ > 0 ? 0.1 : 1.0) * (longer_us - first_use_us_);
  }
  if (step.num_drafts != depth * step.batch) return;
  if (depth == 0 && !step.is_first_verify) known_shapes_[static_cast<std::size_t>(batch)].undrafted = true;
  KnownShapes& known = known_shapes_[static_cast<std::size_t>(filled_batch(batch))];
  if (!step.is_first_verify) known.verified |= 1u << depth;
  if (!step.is_first_propose) known.proposed[static_cast<std::size_t>(depth)] |= 1u << step.num_proposals;
}

void DepthPolicy::add_step(const DraftedStep& step) {
  if (step.decodes_only) {
    if (!step.is_first_verify) times_.add_verify(step.batch, step.num_drafts, step.us - step.propose_us);
    if (!step.is_first_propose) times_.propose.add(step.batch, step.num_proposals, step.propose_us);
  }
  account_loss(step);
  learn_shapes(step);
  if (step.num_drafts > 0) num_known_ = 0;
  all_.fade();
  // To begin with nothing is known: a few steps' time.
  if (!started_ && step.decodes_only && !step.is_first_verify && !step.is_first_propose) {
    started_ = true;
    trial_budget_us_ = kStartTrialSteps * step.us;
    loss_us_ = -kStartLossSteps * step.us;
  }
  const double most_us = std::max(kMostSteps * step.us, kMostFirstUses * first_use_us_);
  trial_budget_us_ = std::min(trial_budget_us_ + kTrialShare * step.us, most_us);
  loss_us_ = std::max(loss_us_ - kTrialShare * step.us, -kGainedSteps * step.us);
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
  // Half of a small share is within what a hundred drafts vary by.
  constexpr double kLeastFall = 0.15;
  const bool low = num_drafts_ >= 500 && recent_ < 0.5 * history_ && recent_ < history_ - kLeastFall;
  const bool rises = low && !raised_;
  // Stays until the acceptance is near its history again.
  raised_ = low || (raised_ && recent_ < 0.75 * history_);
  return rises;
}

}  // namespace fathom
