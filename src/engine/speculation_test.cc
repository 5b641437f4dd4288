// Depth by numbers, and on a virtual clock; the alarm.
#include "engine/speculation.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/scripted_answer.h"
#include "engine/scripted_executor.h"
#include "engine/speculation_bench.h"

namespace fathom {
namespace {

// Measured times of one batch by depth; proposals are free.
StepTimes times_of(std::int32_t batch, std::initializer_list<double> us_by_depth) {
  StepTimes times;
  std::int32_t depth = 0;
  for (const double us : us_by_depth) {
    for (int i = 0; i < 4; ++i) times.verify.add(batch, depth, us);
    ++depth;
  }
  return times;
}

// `batch` requests whose every draft is right with the chance `rate`, hoped for as `hoped`.
ExpectedTokens tokens_of(std::int32_t batch, double rate, double hoped) {
  ExpectedTokens tokens;
  double right = 1, hoped_right = 1, sum = 0, hoped_sum = 0;
  for (std::size_t depth = 0; depth < tokens.mean.size(); ++depth) {
    tokens.mean[depth] = batch * (sum += right);
    tokens.hoped[depth] = batch * (hoped_sum += hoped_right);
    right *= rate;
    hoped_right *= hoped;
  }
  return tokens;
}
ExpectedTokens tokens_of(std::int32_t batch, double rate) { return tokens_of(batch, rate, rate); }

TEST(Speculation, ExpectedTokensByHand) {
  // One request, right 6 of 8 times at place 0 and 3 of 6 at place 1; what is known of all is the same.
  Acceptance all(1e9), request(1e9);
  for (Acceptance* acceptance : {&all, &request}) {
    for (int i = 0; i < 3; ++i) acceptance->add(2, 2);
    for (int i = 0; i < 3; ++i) acceptance->add(2, 1);
    for (int i = 0; i < 2; ++i) acceptance->add(2, 0);
  }
  // All: (6 + 2 * 0.7) / 10 = 0.74, (3 + 2 * 0.74) / 8 = 0.56. One: (6 + 8 * 0.74) / 16, (3 + 8 * 0.56) / 14.
  EXPECT_DOUBLE_EQ(all.rates()[0].mean, 0.74);
  EXPECT_DOUBLE_EQ(all.rates()[1].mean, 0.56);
  EXPECT_DOUBLE_EQ(request.rates(all.rates())[0].mean, 11.92 / 16);
  EXPECT_DOUBLE_EQ(request.rates(all.rates())[1].mean, 7.48 / 14);
  EXPECT_GT(request.rates(all.rates())[1].hoped, request.rates(all.rates())[1].mean);
  ExpectedTokens tokens;
  tokens.add(request.rates(all.rates()));
  EXPECT_DOUBLE_EQ(tokens.mean[0], 1.0);
  EXPECT_DOUBLE_EQ(tokens.mean[1], 1.745);
  EXPECT_DOUBLE_EQ(tokens.mean[2], 1.745 + 0.745 * 7.48 / 14);
  tokens.add(request.rates(all.rates()));
  EXPECT_DOUBLE_EQ(tokens.mean[1], 2 * 1.745) << "summed over the batch";
}

TEST(Speculation, TheFastestDepthIsChosen) {
  // Tokens per ms at rate 0.5: 1/10, 1.5/11, 1.75/12, 1.875/13.5: the second wins.
  const StepTimes times = times_of(1, {10, 11, 12, 13.5});
  const auto choose = [&](double rate, std::int32_t most) {
    return choose_depth(times, 1, tokens_of(1, rate), most, 0).depth;
  };
  EXPECT_EQ(choose(0.5, 3), 2);
  EXPECT_EQ(choose(0.5, 1), 1) << "the bound holds";
  EXPECT_EQ(choose(1.0, 3), 3);
  EXPECT_EQ(choose(0.05, 3), 0);
  EXPECT_EQ(choose_depth(times_of(1, {10, 19, 28, 40}), 1, tokens_of(1, 0.5), 3, 0).depth, 0)
      << "drafting that loses is off";
  // Proposals cost as well.
  StepTimes costly = times;
  for (int i = 0; i < 3; ++i) {
    for (const std::int32_t depth : {0, 1, 2, 3}) costly.propose.add(1, depth, 6.0 * depth);
  }
  EXPECT_EQ(choose_depth(costly, 1, tokens_of(1, 0.5), 3, 0).depth, 0);
}

TEST(Speculation, UnknownTimesAreTriedWithinTheBudget) {
  EXPECT_EQ(choose_depth({}, 1, tokens_of(1, 0.5), 3, 1e9).depth, 0) << "0 is measured first";
  const StepTimes undrafted = times_of(1, {10});
  // Depth 1 is guessed at 15 us: one step of it brings 1.5 tokens, worth 15 us, so nothing is lost by the guess.
  EXPECT_EQ(choose_depth(undrafted, 1, tokens_of(1, 0.4), 1, 0).depth, 0) << "nothing to spend";
  const DepthChoice tried = choose_depth(undrafted, 1, tokens_of(1, 0.4), 1, 2);
  EXPECT_EQ(tried.depth, 1);
  EXPECT_NEAR(tried.loss_us, 15 - 1.4 * 10 / 1.01, 1e-9);
  EXPECT_EQ(choose_depth(undrafted, 1, tokens_of(1, 0.005), 1, 100).depth, 0) << "could not win";
  // With two depths known the third is likely on their line, and at least as slow as the second.
  const StepTimes two = times_of(1, {10, 11});
  EXPECT_EQ(choose_depth(two, 1, tokens_of(1, 0.9), 2, 0).depth, 2);
  EXPECT_EQ(choose_depth(two, 1, tokens_of(1, 0.05), 2, 0).depth, 0);
}

TEST(Speculation, HopeIsTriedWithinTheBudget) {
  const StepTimes times = times_of(1, {10, 12});
  EXPECT_EQ(choose_depth(times, 1, tokens_of(1, 0.1, 0.5), 1, 0).depth, 0);
  const DepthChoice tried = choose_depth(times, 1, tokens_of(1, 0.1, 0.5), 1, 2);
  EXPECT_EQ(tried.depth, 1);
  EXPECT_NEAR(tried.loss_us, 12 - 1.1 * 10 / 1.01, 1e-9);
}

TEST(Speculation, BatchesHaveTimesOfTheirOwn) {
  StepTimes times = times_of(1, {10, 11});
  for (int i = 0; i < 2; ++i) {
    times.verify.add(40, 0, 50);
    times.verify.add(40, 1, 100);
    times.verify.add(20, 1, 60);
  }
  EXPECT_EQ(choose_depth(times, 1, tokens_of(1, 0.9), 1, 0).depth, 1);
  EXPECT_EQ(choose_depth(times, 40, tokens_of(40, 0.9), 1, 0).depth, 0);
  EXPECT_DOUBLE_EQ(times.verify.estimate(30, 1)->us, 80) << "on the line between 20 and 40";
  EXPECT_LT(times.verify.estimate(30, 1)->least_us, 80);
  EXPECT_DOUBLE_EQ(times.verify.estimate(40, 1)->us, 100);
  EXPECT_FALSE(times.verify.estimate(200, 0)) << "nothing is near";
}

TEST(Speculation, TimesDriftTogether) {
  StepTimes times = times_of(1, {10000, 20000});
  for (int i = 0; i < 100; ++i) times.verify.add(1, 0, 10000);  // until its changes are not noise
  for (int i = 0; i < 500; ++i) times.verify.add(1, 0, 15000);
  EXPECT_NEAR(times.verify.estimate(1, 0)->us, 15000, 100);
  EXPECT_NEAR(times.verify.estimate(1, 1)->us, 30000, 200) << "was not measured, but its machine is slower now";
}

TEST(Speculation, FirstTimesDoNotSettleARatio) {
  // A shape's first steps are launched one by one, and captured.
  StepTimes times;
  for (const double us : {6000, 4000}) times.verify.add(1, 0, us);
  for (const double us : {9000, 7000}) times.verify.add(1, 1, us);
  for (int i = 0; i < 40; ++i) times.verify.add(1, 0, 1000);
  const auto expect_after_trials = [&](double tried_us) {
    for (int trial = 0; trial < 20; ++trial) {
      times.verify.add(1, 1, tried_us);
      for (int i = 0; i < 20; ++i) times.verify.add(1, 0, 1000);
    }
    EXPECT_NEAR(times.verify.estimate(1, 0)->us, 1000, 10);
    EXPECT_NEAR(times.verify.estimate(1, 1)->us, tried_us, 0.03 * tried_us);
  };
  expect_after_trials(1200);
  // What is tried now and then may change while what is in use does not.
  expect_after_trials(1700);
  expect_after_trials(1100);
}

// Low times of a depth that was seen a few times, and those of one in use, which met what disturbs a machine: neither
// looks faster for it.
TEST(Speculation, DisturbedTimesAreComparedAlike) {
  std::mt19937_64 random(1);
  const auto disturbed = [&random](double us) {
    return random() % 4 == 0 ? 1.4 * us : us * (1 + 0.001 * static_cast<double>(random() % 50));
  };
  constexpr int kMachines = 40;
  double mean = 0;
  for (int machine = 0; machine < kMachines; ++machine) {
    StepTimes times;
    for (int i = 0; i < 500; ++i) times.verify.add(4, 2, disturbed(1000));
    for (int i = 0; i < 6; ++i) times.verify.add(4, 1, disturbed(1000));
    mean += times.verify.estimate(4, 1)->us / times.verify.estimate(4, 2)->us / kMachines;
  }
  EXPECT_NEAR(mean, 1, 0.04);
}

TEST(Speculation, ADeeperTimeCorrectsAShallowerOne) {
  StepTimes times = times_of(1, {1000});
  times.verify.add(1, 1, 3000);  // met something, and is seen no more
  for (int i = 0; i < 4; ++i) times.verify.add(1, 2, 1200);
  EXPECT_DOUBLE_EQ(times.verify.estimate(1, 1)->us, 1200);
  EXPECT_DOUBLE_EQ(times.verify.estimate(1, 0)->us, 1000);
}

TEST(Speculation, AClocksJitterScalesNothing) {
  StepTimes times;
  for (int i = 0; i < 6; ++i) times.propose.add(1, 1, 300);
  for (int i = 0; i < 500; ++i) times.propose.add(1, 0, i % 7 == 0 ? 1 : 4);
  EXPECT_NEAR(times.propose.estimate(1, 1)->us, 300, 60);
}

TEST(Speculation, AcceptanceLearnsFromTheFirstWrongDraftAndFades) {
  Acceptance all(512);
  Acceptance acceptance(DepthPolicy::kRequestTrials);
  for (int i = 0; i < 400; ++i) acceptance.add(3, 3);
  EXPECT_GT(acceptance.rates(all.rates())[0].mean, 0.9);
  for (int i = 0; i < 400; ++i) acceptance.add(8, 0);  // one trial each
  EXPECT_LT(acceptance.rates(all.rates())[0].mean, 0.15);
  for (int i = 0; i < 20000; ++i) acceptance.fade();
  EXPECT_NEAR(acceptance.rates(all.rates())[0].mean, Acceptance::kPrior, 0.01);
}

// The demand: at most 3 % over the best fixed depth. Over off only what trying out costs, which is bounded.
TEST(Speculation, AdaptiveAgainstFixedDepths) {
  double worst_best = 0, worst_off = 0;
  int num_cases = 0;
  for (const DraftWorld& world : draft_worlds()) {
    for (const DraftProfile& profile : draft_profiles()) {
      for (const DraftLoad& load : draft_loads(1)) {
        if (load.name != "1" && load.name != "4" && load.name != "4, 6, 5") continue;  // the others: tier full
        const DraftComparison found = compare_drafts(world, profile, load, {});
        const std::string what = world.name + ", acceptance " + profile.name + ", load " + load.name;
        EXPECT_LE(found.over_best, 0.03) << what << ": best depth " << found.best_depth;
        EXPECT_LE(found.over_bound, 0.0) << what;
        worst_best = std::max(worst_best, found.over_best);
        worst_off = std::max(worst_off, found.over_off);
        ++num_cases;
      }
    }
  }
  std::printf("%d cases: adaptive at most %.2f %% over the best fixed depth, %.2f %% over off\n", num_cases,
              100 * worst_best, 100 * worst_off);
}

// The check bites: a policy that never learns acceptance loses by far more.
TEST(Speculation, APolicyThatAlwaysDraftsIsSeen) {
  const DraftWorld world = draft_worlds()[2];
  const DraftProfile never = draft_profiles()[0];
  const DraftLoad load = draft_loads(1)[0];
  EXPECT_GT(simulate_drafts(world, never, load, 5, {}, 1).us, 1.5 * simulate_drafts(world, never, load, 0, {}, 1).us);
}

// A step of one sequence that verifies one draft and asks for another, as the policy is told of it.
DraftedStep step_of(std::int32_t num_drafts, std::int32_t num_proposals, std::int32_t num_tokens, double us) {
  DraftedStep step;
  step.batch = 1;
  step.num_drafts = num_drafts, step.num_proposals = num_proposals, step.num_tokens = num_tokens;
  step.us = us;
  return step;
}

// Where shapes are slow at first the depth in use stays until another one is better by more than its new shapes cost,
// shared among the steps to come.
TEST(Speculation, NewShapesCountWhereADepthIsChosen) {
  const StepTimes times = times_of(1, {1000, 1000, 1060});
  const auto choose = [&](double rate, double first_use_us) {
    NewShapes shapes;
    shapes.matter = true;
    shapes.in_use = 1;
    shapes.first_use_us[2] = first_use_us;
    return choose_depth(times, 1, tokens_of(1, rate), 2, 0, kDraftingWins, shapes).depth;
  };
  // 2.19 tokens in 1060 us against 1.7 in 1000: 2.066 to 1.7 a ms. With 30 ms of first uses in 100 steps 1.610.
  EXPECT_EQ(choose(0.7, 0), 2);
  EXPECT_EQ(choose(0.7, 20'000), 2) << "1.738 to 1.7";
  EXPECT_EQ(choose(0.7, 30'000), 1);
}

// A depth that was not measured has to win by 2 % over the one in use, and only where shapes matter.
TEST(Speculation, AnEstimateHasToWinOverTheDepthInUse) {
  const StepTimes times = times_of(1, {1000, 1300});  // depth 2 is likely to take 1600
  const auto choose = [&](bool matter, double rate) {
    NewShapes shapes;
    shapes.matter = matter;
    shapes.in_use = 1;
    return choose_depth(times, 1, tokens_of(1, rate), 2, -1e9, kDraftingWins, shapes).depth;
  };
  // At rate 0.73: 2.2629 / 1600 = 1.414 tokens a ms against 1.73 / 1300 = 1.331; at 0.69 1.354 to 1.300; at 0.63 1.267
  // to 1.254, 1 % more.
  EXPECT_EQ(choose(true, 0.73), 2);
  EXPECT_EQ(choose(true, 0.63), 1);
  EXPECT_EQ(choose(false, 0.63), 2);
}

// What is verified anyway is known: hope for it is no reason to try a shallower depth. Behind it there is.
TEST(Speculation, HopeCountsBehindThePlacesInUse) {
  const StepTimes times = times_of(1, {1000, 1100, 1200, 1300});
  NewShapes shapes;
  shapes.matter = true;
  const auto tried = [&](bool matter, const ExpectedTokens& tokens) {
    shapes.matter = matter;
    return choose_depth(times, 1, tokens, 3, 1e6, kDraftingWins, shapes).depth;
  };
  // Depth 1: 1.5 / 1.1 = 1.36; 2: 1.6 / 1.2 = 1.33; 3: 1.6 / 1.3.
  ExpectedTokens tokens = tokens_of(1, 0.0);
  tokens.mean = {1, 1.5, 1.6, 1.6};
  tokens.hoped = {1, 1.9, 2.0, 2.0};  // only the first place is hoped to be better
  EXPECT_EQ(tried(true, tokens), 1);
  EXPECT_EQ(tried(false, tokens), 2) << "2.0 / 1.2 is more than 1.36";
  tokens.hoped = {1, 1.5, 2.0, 2.2};  // 1.5 + 0.5 and + 0.7
  EXPECT_EQ(tried(true, tokens), 3);
}

TEST(Speculation, TheFirstDraftsAreFewWhereShapesAreNew) {
  const StepTimes undrafted = times_of(1, {10});
  NewShapes shapes;
  EXPECT_EQ(choose_depth(undrafted, 1, tokens_of(1, 0.7, 1), 5, 1e3, kDraftingWins, shapes).depth, 5);
  shapes.matter = true;
  EXPECT_EQ(choose_depth(undrafted, 1, tokens_of(1, 0.7, 1), 5, 1e3, kDraftingWins, shapes).depth, 2);
}

// A batch that is far from all measured ones of a depth, but not of another: the ratio of the two is taken over.
TEST(Speculation, FarBatchesAreScaledAsAnotherDepthIs) {
  DepthTimes times;
  for (int i = 0; i < 4; ++i) {
    times.add(64, 0, 800);
    times.add(64, 2, 1600);
    times.add(12, 2, 700);
  }
  EXPECT_DOUBLE_EQ(times.estimate(12, 0)->us, 350);
  EXPECT_DOUBLE_EQ(times.estimate(12, 0)->least_us, 0.7 * 350);
  EXPECT_FALSE(times.estimate(12, 0)->measured);
  EXPECT_FALSE(times.estimate(256, 0)) << "no depth is near";
  times.add(20, 0, 500);  // one time is enough for its neighbours
  EXPECT_NEAR(times.estimate(16, 0)->us, 500 * times.estimate(16, 2)->us / times.estimate(20, 2)->us, 1e-9);
}

// A shape's first uses are not measured: a try of one goes on until it is.
TEST(Speculation, ATryOfNewShapesIsOfAFewSteps) {
  DepthPolicy policy;
  Acceptance acceptance(DepthPolicy::kRequestTrials);
  const Acceptance* const request = &acceptance;
  std::int32_t drafts = 0;
  std::array<int, 3> uses{};
  std::vector<std::int32_t> depths;
  for (int i = 0; i < 3000; ++i) {
    const std::int32_t depth = policy.choose({&request, 1}, 2);
    DraftedStep step = step_of(drafts, depth, 1 + std::min(drafts, 1), 1000 + 100.0 * drafts);
    step.is_first_verify = uses[static_cast<std::size_t>(drafts)]++ < 2;
    if (step.is_first_verify) step.us += 2000;
    policy.add_step(step);
    policy.add_drafts(drafts, std::min(drafts, 1));
    acceptance.add(drafts, std::min(drafts, 1));
    depths.push_back(depth);
    drafts = depth;
  }
  // The first draft is always right, the second never: depth 1 is best.
  int num_others = 0, num_changes = 0;
  for (std::size_t i = 1000; i < depths.size(); ++i) {
    num_others += depths[i] != 1 ? 1 : 0;
    num_changes += depths[i] != depths[i - 1] ? 1 : 0;
  }
  EXPECT_LE(num_others, 40);
  EXPECT_LE(num_changes, 40);
  EXPECT_GT(uses[2], 2) << "the second depth was measured too";
}

// Drafts of 400 steps of one sequence, all of them right, in which drafting pays; `disturb(step)` says what else
// befalls each step.
template <typename Disturb>
int drafts_where_they_pay(const Disturb& disturb) {
  DepthPolicy policy;
  Acceptance acceptance(DepthPolicy::kRequestTrials);
  const Acceptance* const request = &acceptance;
  std::int32_t drafts = 0;
  int num_drafted = 0;
  for (int i = 0; i < 400; ++i) {
    const std::int32_t depth = policy.choose({&request, 1}, 1);
    DraftedStep step = step_of(drafts, depth, 1 + drafts, drafts > 0 ? 1100 : 1000);
    disturb(step);
    policy.add_step(step);
    policy.add_drafts(drafts, drafts);
    acceptance.add(drafts, drafts);
    num_drafted += drafts;
    drafts = depth;
  }
  return num_drafted;
}

// A shape's first uses say nothing of its time: what seems a hundred times slower than it is would never be tried
// again.
TEST(Speculation, FirstUsesAreNotMeasured) {
  std::array<int, 2> uses{};
  const int num_drafted = drafts_where_they_pay([&](DraftedStep& step) {
    step.is_first_verify = uses[static_cast<std::size_t>(step.num_drafts)]++ < 2;
    if (step.is_first_verify) step.us = 100'000;
  });
  EXPECT_GT(num_drafted, 380);
}

// The parts of a step are known apart: where the trunk's shape is known and the draft pass's is new, and the other way
// round.
TEST(Speculation, FirstUsesOfOnePartLeaveTheOtherMeasured) {
  const int num_drafted = drafts_where_they_pay([](DraftedStep& step) {
    step.is_first_propose = step.num_proposals > 0;  // always another shape
    if (step.is_first_propose) step.us += step.propose_us = 5000;
  });
  EXPECT_GT(num_drafted, 380);
}

// Every draft is right, but only the first token of a step is the answer's: its rate says that drafting wins, what the
// answers grow by that it loses. The loss is bounded all the same.
TEST(Speculation, WhatDraftingLosesIsBoundedByWhatItBrings) {
  DepthPolicy policy;
  Acceptance acceptance(DepthPolicy::kRequestTrials);
  const Acceptance* const request = &acceptance;
  std::int32_t drafts = 0;
  double us = 0;
  constexpr int kSteps = 5000;
  for (int i = 0; i < kSteps; ++i) {
    const std::int32_t depth = policy.choose({&request, 1}, 1);
    const DraftedStep step = step_of(drafts, depth, 1, drafts > 0 ? 1800 : 1000);
    policy.add_step(step);
    policy.add_drafts(drafts, drafts);
    acceptance.add(drafts, drafts);
    us += step.us;
    drafts = depth;
  }
  const double off_us = 1000.0 * kSteps;
  std::printf("drafting that brings nothing and looks as if it did: %.2f %% over off\n", 100 * (us / off_us - 1));
  EXPECT_LE(us, off_us * (1 + DepthPolicy::kTrialShare) + 1000 * kStartSteps);
}

TEST(Speculation, TheAlarmComparesWithItsOwnHistory) {
  AcceptanceAlarm alarm;
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(alarm.add(1, i % 10 != 0 ? 1 : 0));
  int raised = 0;
  for (int i = 0; i < 200; ++i) raised += alarm.add(1, i % 5 == 0 ? 1 : 0) ? 1 : 0;
  EXPECT_EQ(raised, 1) << "once";
  EXPECT_TRUE(alarm.raised());
  for (int i = 0; i < 400; ++i) alarm.add(1, 1);
  EXPECT_FALSE(alarm.raised());
  AcceptanceAlarm always_low;
  for (int i = 0; i < 2000; ++i) EXPECT_FALSE(always_low.add(1, i % 5 == 0 ? 1 : 0));
}

// A drafter that never was of much use comes to half of that by chance again and again.
TEST(Speculation, ChanceRaisesNoAlarm) {
  std::uint64_t state = 5;
  for (const int percent : {1, 5, 10, 20, 50, 90}) {
    AcceptanceAlarm alarm;
    for (int i = 0; i < 50'000; ++i) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      ASSERT_FALSE(alarm.add(1, static_cast<int>((state >> 33) % 100) < percent ? 1 : 0)) << percent << " % at " << i;
    }
  }
}

// Virtual microseconds for `batch` answers of kAnswer tokens through the engine. depth -1: adaptive.
constexpr std::int64_t kAnswer = 600;
struct Profile {
  std::int64_t step_us, row_us;
  double acceptance;
};
std::int64_t virtual_us(const Profile& profile, std::int32_t batch, std::int32_t depth) {
  VirtualClock clock;
  ScriptedOptions scripted;
  scripted.limits.vocab_size = 300;
  scripted.step_us = profile.step_us;
  scripted.row_us = profile.row_us;
  scripted.acceptance = profile.acceptance;
  scripted.clock = &clock;
  EngineOptions options;
  options.num_drafts = depth < 0 ? 5 : depth;
  options.adaptive_drafts = depth < 0;
  options.eos_id = 1;
  options.max_pending_deltas = 1 << 20;  // nobody is paused: the batch stays
  options.clock = &clock;
  // After its first step the engine waits until all have come: else their number would follow from the threads' luck.
  std::atomic<bool> all_came{false};
  options.on_step = [&all_came](const StepTrace&) {
    while (!all_came) std::this_thread::yield();
  };
  auto engine = Engine::make(options, std::make_unique<ScriptedExecutor>(scripted), nullptr);
  EXPECT_TRUE(engine.ok());
  std::vector<std::unique_ptr<Stream>> streams;
  for (std::int32_t i = 0; i < batch; ++i) {
    Request request;
    request.prompt = scripted_prompt(static_cast<std::uint64_t>(i), 5, 0, 300);
    request.sampling.temperature = 0.0f;
    request.max_tokens = kAnswer;
    streams.push_back(std::move(*(*engine)->submit(request)));
  }
  all_came = true;
  SamplingOptions greedy;
  greedy.temperature = 0.0f;
  for (std::int32_t i = 0; i < batch; ++i) {
    const auto tokens = read_all(*streams[static_cast<std::size_t>(i)]).at(0).tokens;
    EXPECT_EQ(tokens,
              scripted_answer(scripted, scripted_prompt(static_cast<std::uint64_t>(i), 5, 0, 300), greedy, kAnswer));
  }
  EXPECT_TRUE((*engine)->drain(std::chrono::seconds(120)));
  return clock.now_us();
}

TEST(Speculation, AdaptiveThroughTheEngine) {
  for (const Profile& profile :
       {Profile{10000, 10, 0.9}, Profile{1000, 400, 0.7}, Profile{100, 1000, 0.5}, Profile{10000, 10, 0.0}}) {
    for (const std::int32_t batch : {1, 8}) {
      std::int64_t off = 0, best = 0;
      std::printf("step %lld us + %lld a row, acceptance %.1f, batch %d:", static_cast<long long>(profile.step_us),
                  static_cast<long long>(profile.row_us), profile.acceptance, batch);
      for (std::int32_t depth = 0; depth <= 5; ++depth) {
        const std::int64_t us = virtual_us(profile, batch, depth);
        if (depth == 0) off = best = us;
        best = std::min(best, us);
        std::printf(" %.0f", 1e6 * kAnswer * batch / static_cast<double>(us));
      }
      const std::int64_t adaptive = virtual_us(profile, batch, -1);
      std::printf(" | adaptive %.0f tok/s\n", 1e6 * kAnswer * batch / static_cast<double>(adaptive));
      // Nothing is known at the start: some steps go by until it is.
      const double start_us = 8.0 * static_cast<double>(profile.step_us + profile.row_us * batch);
      EXPECT_LE(static_cast<double>(adaptive), 1.03 * static_cast<double>(best) + start_us);
      EXPECT_LE(static_cast<double>(adaptive), 1.01 * static_cast<double>(off) + start_us);
    }
  }
}

}  // namespace
}  // namespace fathom
