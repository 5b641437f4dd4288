// Adaptive depth on a virtual clock: every world, acceptance and load, with and without noise.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <vector>

#include "engine/speculation_bench.h"
#include "engine/speculation_runs_bench.h"

namespace fathom {
namespace {

// `most_over_off`: beyond the bound, by the noise of the two runs.
void compare_all(const DraftNoise& noise, double most_over_best, double most_over_off) {
  double worst_best = 0, worst_off = 0, worst_bound = -1;
  int num_cases = 0;
  for (const DraftWorld& world : draft_worlds()) {
    for (const DraftProfile& profile : draft_profiles()) {
      for (const DraftLoad& load : draft_loads(1)) {
        const DraftComparison found = compare_drafts(world, profile, load, noise);
        const std::string what = world.name + ", acceptance " + profile.name + ", load " + load.name;
        EXPECT_LE(found.over_best, most_over_best) << what << ": best depth " << found.best_depth;
        EXPECT_LE(found.over_bound, most_over_off) << what;
        worst_best = std::max(worst_best, found.over_best);
        worst_off = std::max(worst_off, found.over_off);
        worst_bound = std::max(worst_bound, found.over_bound);
        ++num_cases;
      }
    }
  }
  std::printf(
      "%d cases, noise %.2f: adaptive at most %.2f %% over the best fixed depth, %.2f %% over off; over off's bound "
      "%.2f %%\n",
      num_cases, noise.spread, 100 * worst_best, 100 * worst_off, 100 * worst_bound);
}

TEST(SpeculationFull, QuietMachine) { compare_all({}, 0.03, 0.0); }
TEST(SpeculationFull, NoisyMachine) { compare_all({0.05}, 0.03, 0.01); }

// Steps of the mini model as they were measured, on a machine that disturbs one step of five: one step that was lucky,
// or met something, must not decide for long.
TEST(SpeculationFull, MeasuredMachines) {
  constexpr int kMachines = 8;
  for (const DraftWorld& world : measured_draft_worlds()) {
    for (const DraftLoad& load : draft_loads(1)) {
      if (!load.steady()) continue;
      double over_best = 0, over_off = 0, worst = 0;
      for (std::uint64_t machine = 0; machine < kMachines; ++machine) {
        const DraftComparison found =
            compare_drafts(world, measured_draft_profile(), load, {0.1, 0.2, 1.6}, 9 + 100 * machine);
        over_best += found.over_best_later / kMachines;
        over_off += found.over_off / kMachines;
        worst = std::max(worst, found.over_best_later);
      }
      std::printf("%s, batch %s: %.2f %% over the best fixed depth, at most %.2f %%; %.2f %% over off\n",
                  world.name.c_str(), load.name.c_str(), 100 * over_best, 100 * worst, 100 * over_off);
      EXPECT_LE(over_best, 0.03) << world.name << ", batch " << load.name;
    }
  }
}

// Each shape of a step is launched and captured first, which takes several steps' time. New ones cost tries, so that
// less is tried out: over off little more is lost than without, and few cases find the best depth late.
TEST(SpeculationFull, NewShapes) {
  double worst_best = 0, worst_later = 0, worst_bound = -1, mean = 0;
  int num_cases = 0, num_late = 0;
  for (DraftWorld world : draft_worlds()) {
    world.launched_us = 500, world.captured_us = 2500;
    for (const DraftProfile& profile : draft_profiles()) {
      for (const DraftLoad& load : draft_loads(1)) {
        const DraftComparison found = compare_drafts(world, profile, load, {});
        const std::string what = world.name + ", acceptance " + profile.name + ", load " + load.name;
        EXPECT_LE(found.over_best_later, 0.05) << what << ": best depth " << found.best_depth;
        EXPECT_LE(found.over_bound, 0.007) << what;
        worst_best = std::max(worst_best, found.over_best);
        worst_later = std::max(worst_later, found.over_best_later);
        worst_bound = std::max(worst_bound, found.over_bound);
        mean += found.over_best;
        num_late += found.over_best_later > 0.03 ? 1 : 0;
        ++num_cases;
      }
    }
  }
  mean /= num_cases;
  EXPECT_LE(num_late, 4);
  EXPECT_LE(mean, 0.01);
  std::printf(
      "%d cases with new shapes: adaptive %.2f %% over the best fixed depth, at most %.2f %%; first uses left out at "
      "most %.2f %%, in %d cases over 3 %%; over off's bound %.2f %%\n",
      num_cases, 100 * mean, 100 * worst_best, 100 * worst_later, num_late, 100 * worst_bound);
}

// What `fathom bench draft` does on a card whose shapes are launched and captured first, by the steps it measured
// there: runs of 0.2 s, behind as many as warm up or from the first step on, where every shape is new.
void compare_runs(const DraftWorld& world, bool from_cold, double most_over_best) {
  constexpr int kMachines = 8;
  constexpr DraftNoise kNoise{0.03, 0.05, 1.4};
  const DraftProfile profile = measured_draft_profile();
  for (const std::int32_t batch : {1, 4, 16, 64}) {
    DraftRuns runs = plan_draft_runs(world, batch, 200'000);
    if (from_cold) runs.most_warm_ups = 0;
    std::array<std::array<DraftRunsTime, kMachines>, 7> times;  // the last: adaptive
    for (std::size_t depth = 0; depth < times.size(); ++depth) {
      for (std::size_t machine = 0; machine < kMachines; ++machine) {
        const auto fixed = depth + 1 < times.size() ? static_cast<std::int32_t>(depth) : -1;
        times[depth][machine] = DraftRunsClock(world, profile, fixed, kNoise, 100 * machine + depth).measure(runs);
      }
    }
    const auto mean = [&](std::size_t depth, auto&& value) {
      double sum = 0;
      for (const DraftRunsTime& time : times[depth]) sum += value(time) / kMachines;
      return sum;
    };
    const auto us_per_token = [](const DraftRunsTime& time) { return 1 / time.tokens_per_us(); };
    std::size_t best = 0;
    for (std::size_t depth = 1; depth + 1 < times.size(); ++depth) {
      if (mean(depth, us_per_token) < mean(best, us_per_token)) best = depth;
    }
    const std::size_t adaptive = times.size() - 1;
    const double over_best = mean(adaptive, us_per_token) / mean(best, us_per_token) - 1;
    const double over_off = mean(adaptive, us_per_token) / mean(0, us_per_token) - 1;
    const auto share = [](double DraftRunsTime::* part) {
      return [part](const DraftRunsTime& time) { return 100 * time.*part / time.us; };
    };
    std::printf(
        "%s, batch %d, %s: %.2f %% over the best fixed depth (%zu), %.1f %% over off; of its time first uses %.2f %% "
        "(%.0f; the best's %.2f %%), tries %.2f %%, wrong choices %.2f %%\n",
        world.name.c_str(), batch, from_cold ? "cold" : "warm", 100 * over_best, best, 100 * over_off,
        mean(adaptive, share(&DraftRunsTime::first_uses_us)),
        mean(adaptive, [](const DraftRunsTime& time) { return time.num_first_uses; }),
        mean(best, share(&DraftRunsTime::first_uses_us)), mean(adaptive, share(&DraftRunsTime::tried_us)),
        mean(adaptive, share(&DraftRunsTime::wrong_us)));
    EXPECT_LE(over_best, most_over_best) << world.name << ", batch " << batch << (from_cold ? ", cold" : ", warm");
    EXPECT_LE(over_off, 0.0) << world.name << ", batch " << batch;
  }
}

TEST(SpeculationFull, RunsOnAMeasuredCard) {
  const std::vector<DraftWorld> worlds = measured_draft_worlds();
  ASSERT_EQ(worlds.size(), 3u);
  for (std::size_t card = 1; card < worlds.size(); ++card) compare_runs(worlds[card], false, 0.03);
  compare_runs(worlds[1], true, 0.03);
  // At batch 64 depth 1 is best, at the few sequences of a run's end depth 2: both have shapes that are new.
  compare_runs(worlds[2], true, 0.045);
}

}  // namespace
}  // namespace fathom
