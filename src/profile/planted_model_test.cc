// A truth planted in the real step: a millisecond in each call of one operation of the embedded model. What exposed
// time says of that operation, with and without the plant, is held to what the step itself gains or loses.
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "checkpoint/verify.h"
#include "ops/rms_norm/rms_norm.h"
#include "profile/model_step.h"
#include "profile/testing/planted_step.h"

namespace fathom {
namespace {

constexpr double kPlant_us = 1000;
ErasedFn plain_rms_norm = nullptr;

void planted_rms_norm(ExecutionContext& context, const RmsNormPlan& plan, const RmsNormArgs& args) {
  reinterpret_cast<void (*)(ExecutionContext&, const RmsNormPlan&, const RmsNormArgs&)>(plain_rms_norm)(context, plan,
                                                                                                        args);
  const double end = planted_now_us(PlantedClock::kThreadCpu) + kPlant_us;
  while (planted_now_us(PlantedClock::kThreadCpu) < end) {
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
    const double begin = planted_now_us(PlantedClock::kThreadCpu);
    FATHOM_ASSIGN_OR_RETURN(Run run, step_->run(operations, num_repeats));
    run.step_us = planted_now_us(PlantedClock::kThreadCpu) - begin;
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
  std::vector<double> saved;
  for (int i = 0; i < 21; ++i) {
    const auto a = with.run({}, 1), b = without.run({}, 1);
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(a->output_hash, b->output_hash);
    saved.push_back(a->step_us - b->step_us);
  }
  const double measured = median_interval(saved, 0.95).us;
  EXPECT_GT(measured, 2 * kPlant_us);
  const ExposedTime before = exposed_of_rms_norm(with), after = exposed_of_rms_norm(without);
  EXPECT_TRUE(is_resolved(before)) << before.low_us << " to " << before.high_us;
  EXPECT_TRUE(before.output_unchanged);
  EXPECT_NEAR(before.us - after.us, measured, 0.1 * measured);
}

}  // namespace
}  // namespace fathom
