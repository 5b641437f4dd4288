// The planted truths by the wall's clock: for a machine that runs nothing else.
#include <gtest/gtest.h>

#include <cmath>

#include "profile/testing/planted_step.h"

namespace fathom {
namespace {

constexpr double kPlanted_us = 3500;

PlantedPlan plan_of_nine_ms() {
  PlantedPlan plan;
  plan.add({"sparse_attention", 3000}).add({"moe_experts", 6000});
  return plan;
}

ExposedTime measure(RepeatableStep& step) {
  const std::vector<ExposedTarget> targets = {{"planted", "index_scores", {"index_scores"}, kPlanted_us, true}};
  ExposedOptions options;
  options.num_rounds = 60;
  const Result<ExposedResult> result = measure_exposed(step, targets, options);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result->entries.at(0).exposed;
}

TEST(PlantedByTheWall, BesideLongerWorkNothingIsExposed) {
  PlantedPlan plan = plan_of_nine_ms();
  plan.add({"index_scores", kPlanted_us, 1});
  ThreadedStep step(plan, PlantedClock::kWall);
  const ExposedTime exposed = measure(step);
  EXPECT_LT(std::fabs(exposed.us), 0.1 * kPlanted_us) << exposed.low_us << " to " << exposed.high_us;
}

TEST(PlantedByTheWall, OnTheCriticalPathTheSavingIsPredictedWithinATenth) {
  PlantedPlan plan = plan_of_nine_ms();
  plan.add({"index_scores", kPlanted_us});
  ThreadedStep with(plan, PlantedClock::kWall), without(plan_of_nine_ms(), PlantedClock::kWall);
  const ExposedTime exposed = measure(with);
  std::vector<double> saved;
  for (int i = 0; i < 60; ++i) saved.push_back(with.next().total_us - without.next().total_us);
  const double measured = median_interval(saved, 0.95).us;
  EXPECT_TRUE(is_resolved(exposed)) << exposed.low_us << " to " << exposed.high_us;
  EXPECT_NEAR(exposed.us, measured, 0.1 * measured);
}

}  // namespace
}  // namespace fathom
