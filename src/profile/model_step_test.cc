// The mini model under the profiler: outputs stay, rows sum up, on the CPU and on the emulated device.
#include "profile/model_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "profile/attribute.h"
#include "profile/device_timeline.h"
#include "profile/synthetic_load.h"
#include "profile/testing/mini_step.h"

namespace fathom {
namespace {

TEST(ModelStep, ARepeatOfAnyOperationLeavesTheOutputs) {
  const LoadedModel loaded = load_mini(DeviceChoice::kCpu);
  const auto step = make_mini_step(loaded, 3, 135);  // this step closes groups of 4; keys reach over a block
  const std::uint64_t hash = step->run({}, 1)->output_hash;
  ASSERT_TRUE(step->run_taking(Taking::kTrace).ok());
  std::set<std::string> operations;
  for (const OpSample& sample : step->trace().samples) operations.insert(std::string(sample.scope.operation));
  EXPECT_GE(operations.size(), 12u);
  for (const std::string& operation : operations) {
    const std::vector<std::string> one = {operation};
    EXPECT_EQ(step->run(one, 3)->output_hash, hash) << operation;
  }
  EXPECT_EQ(step->run({}, 1)->output_hash, hash);
  const std::vector<std::string> lost = {"sparse_attention"};
  EXPECT_NE(step->run(lost, 0)->output_hash, hash) << "the check sees a change";
  EXPECT_EQ(step->run({}, 1)->output_hash, hash);
}

TEST(ModelStep, WhatIsTakenBesideLeavesTheOutputs) {
  const LoadedModel loaded = load_mini(DeviceChoice::kCpu);
  const auto step = make_mini_step(loaded, 3, 20);
  const std::uint64_t hash = step->run_taking(Taking::kNothing)->output_hash;
  EXPECT_EQ(step->run_taking(Taking::kTimes)->output_hash, hash);
  EXPECT_EQ(step->run_taking(Taking::kTrace)->output_hash, hash);
  EXPECT_FALSE(step->trace().samples.empty());
  const auto cost = measure_taking(*step, 6);
  ASSERT_TRUE(cost.ok()) << cost.status().message();
  EXPECT_GT(cost->base_us, 0);
}

ProfileReport report_of(const std::vector<std::vector<TimelineStep>>& repeats) {
  ProfileReport report;
  report.run.num_repeats = static_cast<std::int64_t>(repeats.size());
  attribute_repeats(repeats, {}, report);
  return report;
}

TEST(SyntheticLoad, RowsSumToTheStepWithinOnePercent) {
  const LoadedModel loaded = load_mini(DeviceChoice::kCpu);
  SyntheticLoadOptions options;
  options.batch = 3;
  options.context_tokens = 30;
  options.num_steps = 6;
  options.num_warmup = 2;
  options.num_repeats = 2;
  options.chunk_tokens = 61;
  const auto repeats = run_synthetic_load(*loaded.model, nullptr, options);
  ASSERT_TRUE(repeats.ok()) << repeats.status().message();
  ASSERT_EQ(repeats->size(), 2u);
  for (const auto& steps : *repeats) EXPECT_EQ(steps.size(), 6u);
  const ProfileReport report = report_of(*repeats);
  EXPECT_NEAR(report.accounted_us(), report.total_step_us(), 0.01 * report.total_step_us());
  EXPECT_DOUBLE_EQ(report.committed_tokens_per_step, 3);
  EXPECT_GE(report.experts_hit_per_step, loaded.model->config().num_experts_per_tok);
  EXPECT_LE(report.experts_hit_per_step, 3 * loaded.model->config().num_experts_per_tok);
  double unaccounted = 0;
  for (const double us : report.unaccounted_us) unaccounted += us;
  EXPECT_LT(std::fabs(unaccounted), 0.01 * report.total_step_us());
  // Of the step in the middle: where other load holds the host up, a step or two are longer than all the others.
  std::vector<double> shares;
  for (const auto& steps : *repeats) {
    for (const TimelineStep& step : steps) {
      const StepAttribution attribution = attribute_step(step);
      shares.push_back(std::accumulate(attribution.call_us.begin(), attribution.call_us.end(), 0.0) / step.total_us);
    }
  }
  std::sort(shares.begin(), shares.end());
  EXPECT_GT(shares[shares.size() / 2], 0.5) << "most of a step is operations";
}

// Reads one clock after another.
class PlantedClocks final : public ClockSource {
 public:
  explicit PlantedClocks(std::vector<double> core_mhz) : core_mhz_(std::move(core_mhz)) {}
  Result<Clocks> read() override {
    if (next_ == core_mhz_.size()) return unavailable("no more clocks");
    return Clocks{core_mhz_[next_++], 3201};
  }

 private:
  std::vector<double> core_mhz_;
  std::size_t next_ = 0;
};

TEST(DeviceSteps, ClocksOfEachRepeatAndExpertsOfTheStep) {
  const LoadedModel loaded = load_mini(DeviceChoice::kEmulated);
  const auto step = make_mini_step(loaded, 3, 20);
  const std::uint64_t hash = step->run({}, 1)->output_hash;
  const double experts = *step->count_experts();
  EXPECT_GE(experts, loaded.model->config().num_experts_per_tok);
  EXPECT_LE(experts, 3 * loaded.model->config().num_experts_per_tok);
  EXPECT_EQ(*step->count_experts(), experts);
  EXPECT_EQ(step->run({}, 1)->output_hash, hash);
  DeviceLoadOptions options;
  options.num_steps = 1;
  options.num_warmup = 1;
  options.num_repeats = 3;
  PlantedClocks steady({1980, 1755, 1830});
  const auto steps = collect_device_steps(*loaded.model, *step, nullptr, options, &steady);
  ASSERT_TRUE(steps.ok()) << steps.status().message();
  EXPECT_EQ(steps->clocks.core_mhz, 1830);
  EXPECT_EQ(steps->clocks.memory_mhz, 3201);
  EXPECT_EQ(report_of(steps->repeats).experts_hit_per_step, experts);
  // A source that fails says so once, and what it read before stands.
  PlantedClocks breaks({1500});
  const auto broken = collect_device_steps(*loaded.model, *step, nullptr, options, &breaks);
  ASSERT_TRUE(broken.ok()) << broken.status().message();
  EXPECT_EQ(broken->clocks.core_mhz, 1500);
  EXPECT_THAT(broken->notes, ::testing::Contains(::testing::HasSubstr("no more clocks")));
  const auto without = collect_device_steps(*loaded.model, *step, nullptr, options);
  EXPECT_EQ(without->clocks.core_mhz, 0);
}

TEST(DeviceSteps, WhereNothingIsReplayedScopesSumToTheStep) {
  const LoadedModel loaded = load_mini(DeviceChoice::kEmulated);
  const auto step = make_mini_step(loaded, 3, 20);
  DeviceLoadOptions options;
  options.num_steps = 4;
  options.num_warmup = 3;
  options.num_repeats = 2;
  const auto steps = collect_device_steps(*loaded.model, *step, nullptr, options);
  ASSERT_TRUE(steps.ok()) << steps.status().message();
  EXPECT_EQ(steps->collector, "scopes");
  const ProfileReport report = report_of(steps->repeats);
  EXPECT_EQ(report.total_steps(), 8);
  EXPECT_NEAR(report.accounted_us(), report.total_step_us(), 0.01 * report.total_step_us());
  std::set<std::string> operations;
  std::set<std::int64_t> layers;
  for (const ReportRow& row : report.rows) {
    operations.insert(row.operation);
    layers.insert(row.layer);
    EXPECT_GT(row.bytes + row.flops, 0) << row.operation;
  }
  EXPECT_GE(operations.size(), 12u);
  EXPECT_GE(layers.size(), 5u);
}

TEST(DeviceSteps, RepeatsLeaveTheOutputs) {
  const LoadedModel loaded = load_mini(DeviceChoice::kEmulated);
  const auto step = make_mini_step(loaded, 3, 20);
  const std::uint64_t hash = step->run({}, 1)->output_hash;
  const std::vector<std::string> one = {"moe_experts"};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(step->run(one, 3)->output_hash, hash) << i;
}

}  // namespace
}  // namespace fathom
