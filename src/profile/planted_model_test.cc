// A truth planted in the real step: some time in each call of one operation of the embedded model. What exposed
// time says of that operation, with and without the plant, is held to what the step itself gains or loses.
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cpu/cpu_backend.h"
#include "base/thread_time.h"
#include "checkpoint/verify.h"
#include "ops/rms_norm/rms_norm.h"
#include "profile/model_step.h"
#include "profile/testing/planted_step.h"

namespace fathom {
namespace {

double plant_us = 0;  // of one call; set from the plain step's time
std::int64_t num_planted_calls = 0;
ErasedFn plain_rms_norm = nullptr;

void planted_rms_norm(ExecutionContext& context, const RmsNormPlan& plan, const RmsNormArgs& args) {
  reinterpret_cast<void (*)(ExecutionContext&, const RmsNormPlan&, const RmsNormArgs&)>(plain_rms_norm)(context, plan,
                                                                                                        args);
  ++num_planted_calls;
  const double end = thread_time_us() + plant_us;
  while (thread_time_us() < end) {
  }
}

// A model's step in the time of the one thread that it runs on: other programs on the machine do not enter.
class StepByThreadTime final : public RepeatableStep {
 public:
  StepByThreadTime(const Checkpoint& checkpoint, Backend& backend, const VariantTable& variants) {
    ModelOptions options;
    options.draft = false;
    auto model = Model::make(checkpoint, backend, variants, options);
    EXPECT_TRUE(model.ok()) << model.status().message();
    model_ = std::move(*model);
    auto step = ModelStep::make(*model_, {});
    EXPECT_TRUE(step.ok()) << step.status().message();
    step_ = std::move(*step);
  }
  Result<Run> run(std::span<const std::string> operations, std::int32_t num_repeats) override {
    const double begin = thread_time_us();
    FATHOM_ASSIGN_OR_RETURN(Run run, step_->run(operations, num_repeats));
    run.step_us = thread_time_us() - begin;
    return run;
  }

 private:
  std::unique_ptr<Model> model_;
  std::unique_ptr<ModelStep> step_;
};

ExposedTime exposed_of_rms_norm(RepeatableStep& step) {
  const std::vector<ExposedTarget> targets = {{"norms and rope", "rms_norm", {"rms_norm"}, 5000}};
  const Result<ExposedResult> result = measure_exposed(step, targets, {});
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result->entries.at(0).exposed;
}

TEST(PlantedInTheModel, ExposedTimePredictsWhatRemovingThePlantSaves) {
  const Result<Checkpoint> checkpoint = open_checkpoint(std::string(FATHOM_SOURCE_DIR) + "/models/mini-v4");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  CpuBackend backend(1);
  OpRegistry registry;
  register_cpu_variants(registry);
  const VariantTable plain = *VariantTable::choose(registry, BackendKind::kCpu);
  plain_rms_norm = plain[OpKind::kRmsNorm].run;
  registry.add(make_variant(OpKind::kRmsNorm, "planted", BackendKind::kCpu, planted_rms_norm));
  const VariantTable planted = *VariantTable::choose(registry, BackendKind::kCpu);

  StepByThreadTime with(*checkpoint, backend, planted), without(*checkpoint, backend, plain);
  // The plants of a step take half as long as the plain step, so that a slow build or a noisy machine, whose steps vary
  // by some of their own time, does not drown them.
  std::vector<double> plain_us;
  for (int i = 0; i < 5; ++i) {
    const auto step = without.run({}, 1);
    ASSERT_TRUE(step.ok());
    plain_us.push_back(step->step_us);
  }
  num_planted_calls = 0;
  ASSERT_TRUE(with.run({}, 1).ok());
  ASSERT_GT(num_planted_calls, 0);
  const double planted_us = 0.5 * median_interval(plain_us, 0.95).us;
  plant_us = planted_us / static_cast<double>(num_planted_calls);

  std::vector<double> saved;
  for (int i = 0; i < 21; ++i) {
    const auto a = with.run({}, 1), b = without.run({}, 1);
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(a->output_hash, b->output_hash);
    saved.push_back(a->step_us - b->step_us);
  }
  const ExposedTime measured = median_interval(saved, 0.95);
  EXPECT_GT(measured.us, 0.5 * planted_us);
  const ExposedTime before = exposed_of_rms_norm(with), after = exposed_of_rms_norm(without);
  EXPECT_TRUE(is_resolved(before)) << before.low_us << " to " << before.high_us;
  EXPECT_TRUE(before.output_unchanged);
  // Where other load leaves the figures less sure than 10 %, as sure as their intervals say; is_resolved bounds those.
  double half_widths_us = 0;
  for (const ExposedTime& time : {before, after, measured}) half_widths_us += 0.5 * (time.high_us - time.low_us);
  EXPECT_NEAR(before.us - after.us, measured.us, std::max(0.1 * measured.us, half_widths_us));
}

}  // namespace
}  // namespace fathom
