// The mini model under the profiler: outputs stay, rows sum up, on the CPU and on the emulated device.
#include "profile/model_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "engine/load_model.h"
#include "profile/attribute.h"
#include "profile/device_timeline.h"
#include "profile/synthetic_load.h"

namespace fathom {
namespace {

LoadedModel load_mini(DeviceChoice device) {
  LoadOptions options;
  options.device = device;
  options.num_threads = 2;
  options.max_step_tokens = 64;
  options.max_logit_rows = 8;
  Result<LoadedModel> loaded = load_model(std::string(FATHOM_SOURCE_DIR) + "/models/mini-v4", options);
  FATHOM_CHECK(loaded.ok(), "the embedded model loads");
  return std::move(*loaded);
}

std::unique_ptr<ModelStep> make_step(const LoadedModel& loaded, std::int64_t context_tokens) {
  ModelStepOptions options;
  options.batch = 3;
  options.context_tokens = context_tokens;
  options.chunk_tokens = 64;
  auto step = ModelStep::make(*loaded.model, options);
  FATHOM_CHECK(step.ok(), "a step of three sequences");
  return std::move(*step);
}

TEST(ModelStep, ARepeatOfAnyOperationLeavesTheOutputs) {
  const LoadedModel loaded = load_mini(DeviceChoice::kCpu);
  const auto step = make_step(loaded, 135);  // this step closes groups of 4; keys reach over a block
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
  const auto step = make_step(loaded, 20);
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
  double unaccounted = 0, attributed = 0;
  for (const double us : report.unaccounted_us) unaccounted += us;
  for (const ReportRow& row : report.rows) attributed += row.total_critical_us();
  EXPECT_LT(std::fabs(unaccounted), 0.01 * report.total_step_us());
  EXPECT_GT(attributed, 0.5 * report.total_step_us()) << "most of a step is operations";
}

TEST(DeviceSteps, WhereNothingIsReplayedScopesSumToTheStep) {
  const LoadedModel loaded = load_mini(DeviceChoice::kEmulated);
  const auto step = make_step(loaded, 20);
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
  const auto step = make_step(loaded, 20);
  const std::uint64_t hash = step->run({}, 1)->output_hash;
  const std::vector<std::string> one = {"moe_experts"};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(step->run(one, 3)->output_hash, hash) << i;
}

}  // namespace
}  // namespace fathom
