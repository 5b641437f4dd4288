// The planted truths by the wall's clock: for a machine that runs nothing else.
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/verify.h"
#include "ops/rms_norm/rms_norm.h"
#include "profile/model_step.h"
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

// The embedded model with 100 us planted into each call of one operation, on the CPU backend with two threads: what
// the exposed time says that operation costs is what the step loses when the plant is gone.
constexpr double kPlant_us = 100;
ErasedFn plain_rms_norm = nullptr;

void planted_rms_norm(ExecutionContext& context, const RmsNormPlan& plan, const RmsNormArgs& args) {
  reinterpret_cast<void (*)(ExecutionContext&, const RmsNormPlan&, const RmsNormArgs&)>(plain_rms_norm)(context, plan,
                                                                                                        args);
  const double end = planted_now_us(PlantedClock::kWall) + kPlant_us;
  while (planted_now_us(PlantedClock::kWall) < end) {
  }
}

TEST(PlantedInTheModel, ExposedTimePredictsWhatRemovingThePlantSaves) {
  Result<Checkpoint> checkpoint = open_checkpoint(std::string(FATHOM_SOURCE_DIR) + "/models/mini-v4");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  CpuBackend backend(2);
  OpRegistry registry;
  register_cpu_variants(registry);
  const VariantTable plain = *VariantTable::choose(registry, BackendKind::kCpu);
  plain_rms_norm = plain[OpKind::kRmsNorm].run;
  registry.add(make_variant(OpKind::kRmsNorm, "planted", BackendKind::kCpu, planted_rms_norm));
  const VariantTable planted = *VariantTable::choose(registry, BackendKind::kCpu);

  ModelOptions options;
  options.draft = false;
  auto model_with = Model::make(*checkpoint, backend, planted, options);
  auto model_without = Model::make(*checkpoint, backend, plain, options);
  ASSERT_TRUE(model_with.ok() && model_without.ok());
  auto with = ModelStep::make(**model_with, {}), without = ModelStep::make(**model_without, {});
  ASSERT_TRUE(with.ok() && without.ok());
  std::vector<double> saved;
  for (int i = 0; i < 60; ++i) {
    const auto a = (*with)->run({}, 1), b = (*without)->run({}, 1);
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(a->output_hash, b->output_hash);
    saved.push_back(a->step_us - b->step_us);
  }
  const double measured = median_interval(saved, 0.95).us;
  const auto exposed_of = [](RepeatableStep& step) {
    const std::vector<ExposedTarget> targets = {{"norms and rope", "rms_norm", {"rms_norm"}, 1000, true}};
    ExposedOptions exposed;
    exposed.num_rounds = 60;
    const Result<ExposedResult> result = measure_exposed(step, targets, exposed);
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result->entries.at(0).exposed;
  };
  const ExposedTime before = exposed_of(**with), after = exposed_of(**without);
  EXPECT_TRUE(is_resolved(before)) << before.low_us << " to " << before.high_us;
  EXPECT_NEAR(before.us - after.us, measured, 0.1 * measured);
}

}  // namespace
}  // namespace fathom
