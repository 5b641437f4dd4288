#include "profile/attribute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace fathom {
namespace {

TimelineCall call(const std::string& operation, double begin_us, double time_us, std::int32_t lane = 0,
                  std::int32_t layer = 0) {
  TimelineCall out;
  out.operation = operation;
  out.variant = "cpu";
  out.begin_us = begin_us;
  out.time_us = time_us;
  out.lane = lane;
  out.layer = layer;
  out.bytes = 1000;
  out.flops = 2000;
  return out;
}

double sum_of(const StepAttribution& attribution) {
  double sum = attribution.idle_us + attribution.unaccounted_us;
  for (const double us : attribution.call_us) sum += us;
  for (const auto& [name, us] : attribution.host_us) sum += us;
  return sum;
}

StepTrace trace_of(std::int64_t number) {
  StepTrace trace;
  trace.step = number;
  trace.num_tokens = 4;
  trace.num_sequences = 4;
  trace.num_committed = 4;
  trace.turn_us = 5;
  trace.schedule_us = 10;
  trace.launch_us = 100;
  trace.wait_us = 1;
  trace.commit_us = 3;
  trace.detokenise_us = 7;
  trace.step_us = 121;
  trace.prepare_us = 6;
  trace.forward_us = 80;
  trace.sample_us = 12;
  trace.collect_us = 2;
  trace.samples = {{{0, "linear", "cpu"}, 7, 30, {3000, 6000}},
                   {{0, "sparse_attention", "cpu"}, 40, 20, {1000, 500}},
                   {{1, "linear", "cpu"}, 62, 22, {3000, 6000}}};
  return trace;
}

TEST(Attribution, EveryMicrosecondOfACpuStepHasAName) {
  const TimelineStep step = step_of_trace(trace_of(1));
  EXPECT_DOUBLE_EQ(step.total_us, 126);
  const StepAttribution attribution = attribute_step(step);
  EXPECT_THAT(attribution.call_us, testing::ElementsAre(30, 20, 22));
  EXPECT_DOUBLE_EQ(attribution.host_us.at("turn"), 5);
  EXPECT_DOUBLE_EQ(attribution.host_us.at("schedule"), 10);
  EXPECT_DOUBLE_EQ(attribution.host_us.at("prepare"), 6);
  EXPECT_DOUBLE_EQ(attribution.host_us.at("sample"), 12);
  EXPECT_DOUBLE_EQ(attribution.host_us.at("detokenise"), 7);
  EXPECT_DOUBLE_EQ(attribution.host_us.at("collect"), 2);
  // 80 us of forward pass less 72 of calls, less 2 of collection; 1 of wait; 2 of launch beside its parts.
  EXPECT_NEAR(attribution.host_us.at("launch"), 80 - 72 - 2 + 1 + 2, 1e-9);
  EXPECT_NEAR(attribution.unaccounted_us, 0, 1e-9);
  EXPECT_NEAR(sum_of(attribution), step.total_us, 1e-9);
}

TEST(Attribution, AParallelLaneThatEndsBeforeTheJoinExplainsNothing) {
  TimelineStep step;
  step.total_us = 100;
  step.on_device = true;
  step.phases = {{"forward", 0, 100, true}};
  step.calls = {call("linear", 0, 50), call("moe_experts", 10, 60, 1), call("linear", 50, 50)};
  const StepAttribution attribution = attribute_step(step);
  EXPECT_THAT(attribution.call_us, testing::ElementsAre(50, 0, 50));
  EXPECT_NEAR(sum_of(attribution), 100, 1e-9);
}

TEST(Attribution, AParallelLaneThatIsWaitedForExplainsItsTime) {
  TimelineStep step;
  step.total_us = 100;
  step.on_device = true;
  step.phases = {{"forward", 0, 100, true}};
  // The last call begins when the other lane ends.
  step.calls = {call("linear", 0, 50), call("moe_experts", 10, 60, 1), call("linear", 70, 30)};
  const StepAttribution attribution = attribute_step(step);
  EXPECT_THAT(attribution.call_us, testing::ElementsAre(0, 60, 30));
  EXPECT_NEAR(attribution.idle_us, 10, 1e-9) << "before the call that is waited for";
  EXPECT_NEAR(sum_of(attribution), 100, 1e-9);
}

TEST(Attribution, ACallThatBeginsBeforeItsPredecessorEndsTakesItsOwnPartOnly) {
  TimelineStep step;
  step.total_us = 20;
  step.on_device = true;
  step.phases = {{"forward", 0, 20, true}};
  step.calls = {call("linear", 0, 10), call("rms_norm", 8, 12)};
  EXPECT_THAT(attribute_step(step).call_us, testing::ElementsAre(8, 12));
}

TEST(Attribution, GapsBetweenKernelsAreIdleAndHostStallsAreTheirPhases) {
  TimelineStep step;
  step.total_us = 100;
  step.on_device = true;
  step.phases = {{"schedule", 0, 30, false}, {"forward", 30, 50, true}, {"detokenise", 80, 15, false}};
  step.calls = {call("linear", 35, 10), call("linear", 55, 20)};
  const StepAttribution attribution = attribute_step(step);
  EXPECT_NEAR(attribution.host_us.at("schedule"), 30, 1e-9);
  EXPECT_NEAR(attribution.host_us.at("launch"), 5, 1e-9);
  EXPECT_NEAR(attribution.idle_us, 10, 1e-9);
  EXPECT_NEAR(attribution.host_us.at("wait"), 5, 1e-9);
  EXPECT_NEAR(attribution.host_us.at("detokenise"), 15, 1e-9);
  EXPECT_NEAR(attribution.unaccounted_us, 5, 1e-9);
  EXPECT_NEAR(sum_of(attribution), 100, 1e-9);
}

TEST(Attribution, CallsWithoutTimeEndTheWalkNowhere) {
  TimelineStep step;
  step.total_us = 10;
  step.calls = {call("linear", 5, 0), call("linear", 5, 0), call("linear", 0, 5), call("linear", 5, 0)};
  const StepAttribution attribution = attribute_step(step);
  EXPECT_DOUBLE_EQ(attribution.call_us[2], 5);
  EXPECT_NEAR(sum_of(attribution), 10, 1e-9);
}

TEST(Attribution, AStepWithoutCallsIsTheHosts) {
  TimelineStep step = step_of_trace(trace_of(1));
  step.calls.clear();
  const StepAttribution attribution = attribute_step(step);
  EXPECT_NEAR(sum_of(attribution), step.total_us, 1e-9);
  EXPECT_GT(attribution.host_us.at("launch"), 70);
}

TEST(Attribution, RowsOfARealReportSumToTheStep) {
  std::vector<std::vector<TimelineStep>> repeats(2);
  for (int r = 0; r < 2; ++r) {
    for (int i = 0; i < 5; ++i) repeats[static_cast<std::size_t>(r)].push_back(step_of_trace(trace_of(i)));
  }
  ProfileReport report;
  report.run.num_repeats = 2;
  report.run.num_steps = 5;
  const std::vector<double> http = {40, 50};
  attribute_repeats(repeats, http, report);
  EXPECT_TRUE(check_report(report).ok()) << check_report(report).message();
  EXPECT_EQ(report.total_steps(), 10);
  EXPECT_NEAR(report.accounted_us(), report.total_step_us(), 1e-6);
  EXPECT_EQ(report.rows.size(), 3u);
  EXPECT_DOUBLE_EQ(report.tokens_per_step, 4);
  EXPECT_DOUBLE_EQ(report.committed_tokens_per_step, 4);
  double http_us = 0, http_critical_us = 0;
  for (const HostGap& gap : report.host_gaps) {
    if (gap.name != "http") continue;
    http_us += gap.total_us();
    http_critical_us += gap.total_critical_us();
  }
  EXPECT_DOUBLE_EQ(http_us, 90);
  EXPECT_DOUBLE_EQ(http_critical_us, 0) << "other threads' work is on no critical path";
}

TEST(Steadiness, DriftAndSpreadAreSeen) {
  ProfileReport report;
  report.step_us = {{100, 101, 99, 100, 100, 101, 99, 100}};
  EXPECT_TRUE(judge_steadiness(report).steady);
  report.step_us = {{100, 100, 100, 100, 120, 120, 120, 120}};
  EXPECT_FALSE(judge_steadiness(report).steady);
  EXPECT_NEAR(judge_steadiness(report).drift, 0.2, 1e-9);
  report.step_us = {{100, 200, 100, 200, 100, 200, 100, 200}};
  EXPECT_FALSE(judge_steadiness(report).steady);
  report.step_us = {{100}};
  EXPECT_FALSE(judge_steadiness(report).steady) << "one step proves nothing";
}

}  // namespace
}  // namespace fathom
