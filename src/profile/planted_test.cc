// Honesty: planted truths through the attribution, the exposed time and the comparison that real steps go through.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "engine/engine.h"
#include "engine/scripted_executor.h"
#include "profile/compare.h"
#include "profile/findings.h"
#include "profile/testing/planted_step.h"

namespace fathom {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr double kNoise = 0.02;
constexpr std::int32_t kRepeats = 6, kSteps = 20;

// A step of about 1 ms: 900 us of calls one after the other and 55 us of the host.
PlantedPlan plain_plan() {
  PlantedPlan plan;
  plan.add({"sparse_attention", 300}).add({"linear", 200}).add({"moe_experts", 300}).add({"lm_head", 100});
  return plan;
}

ProfileReport virtual_report(const PlantedPlan& plan, std::uint64_t seed) {
  VirtualStep step(plan, kNoise, seed);
  return planted_report(step, kRepeats, kSteps);
}

double summed_share(const ProfileReport& report, const std::string& operation) {
  double own = 0, all = 0;
  for (const ReportRow& row : report.rows) {
    all += row.total_us();
    if (row.operation == operation) own += row.total_us();
  }
  return own / all;
}

double critical_us(const ProfileReport& report, const std::string& operation) {
  double us = 0;
  for (const ReportRow& row : report.rows) us += row.operation == operation ? row.total_critical_us() : 0;
  return us / static_cast<double>(report.total_steps());
}

ExposedTime measure(RepeatableStep& step, const std::string& operation, double summed_us, std::int32_t num_rounds) {
  const std::vector<ExposedTarget> targets = {{"planted", operation, {operation}, summed_us, true}};
  ExposedOptions options;
  options.num_rounds = num_rounds;
  const Result<ExposedResult> result = measure_exposed(step, targets, options);
  EXPECT_TRUE(result.ok()) << result.status().message();
  EXPECT_FALSE(result->entries.empty());
  return result->entries.at(0).exposed;
}

std::vector<std::string> labels(const std::vector<const ComparedRow*>& rows) {
  std::vector<std::string> out;
  for (const ComparedRow* row : rows) out.push_back(row->label());
  return out;
}

TEST(Planted, AParallelStreamsKernelHasALargeShareAndNoExposedTime) {
  PlantedPlan plan = plain_plan();
  plan.work.insert(plan.work.begin() + 1, {"index_scores", 420, 1});
  const ProfileReport report = virtual_report(plan, 1);
  EXPECT_GT(summed_share(report, "index_scores"), 0.3);
  EXPECT_EQ(critical_us(report, "index_scores"), 0) << "by the timeline";
  EXPECT_NEAR(report.accounted_us(), report.total_step_us(), 0.01 * report.total_step_us());

  VirtualStep step(plan, kNoise, 2);
  const ExposedTime exposed = measure(step, "index_scores", 420, 25);
  EXPECT_NEAR(exposed.us, 0, 8) << "as measured";
  EXPECT_FALSE(is_resolved(exposed));

  // And what follows from it: halving that kernel is worth nothing, whatever its share.
  ProfileReport with_exposed = report;
  with_exposed.exposed = {{"indexer", "index_scores", exposed}};
  const WhatIf what = *predict_what_if(with_exposed, "index_scores=0x");
  EXPECT_NEAR(what.tokens_per_s, what.now_tokens_per_s, 0.01 * what.now_tokens_per_s);
}

TEST(Planted, TheSameKernelOnTheCriticalPathIsPredictedWithinATenth) {
  PlantedPlan plan = plain_plan();
  plan.add({"index_scores", 420});
  VirtualStep with(plan, kNoise, 3);
  const ExposedTime exposed = measure(with, "index_scores", 420, 25);
  ASSERT_TRUE(is_resolved(exposed));
  ProfileReport report = virtual_report(plan, 4);
  report.exposed = {{"indexer", "index_scores", exposed}};
  const double predicted = predict_what_if(report, "index_scores=0x")->saved_us;
  const double measured = report.mean_step_us() - virtual_report(plain_plan(), 5).mean_step_us();
  EXPECT_NEAR(predicted, measured, 0.1 * measured);
  EXPECT_NEAR(critical_us(report, "index_scores"), measured, 0.1 * measured) << "the timeline agrees";
}

TEST(Planted, AParallelKernelThatIsWaitedForIsExposedByWhatItSticksOut) {
  PlantedPlan plan;
  plan.add({"sparse_attention", 300}).add({"index_scores", 500, 1}).add({"moe_experts", 400, 0, /*joins=*/true});
  PlantedPlan without = plan;
  without.work.erase(without.work.begin() + 1);
  const double saved = virtual_report(plan, 6).mean_step_us() - virtual_report(without, 7).mean_step_us();
  EXPECT_NEAR(saved, 200, 20) << "the truth: 500 less the 300 beside it";
  // Repeating tells what more of it costs, all 500: so the report has the critical path beside it, and leaving out
  // where outputs allow. Never the share.
  VirtualStep step(plan, kNoise, 8);
  EXPECT_NEAR(measure(step, "index_scores", 500, 25).us, 500, 50);
  EXPECT_NEAR(critical_us(virtual_report(plan, 6), "sparse_attention"), 0, 1);
}

TEST(Planted, ACastBeforeAGemmIsNamedAsWhatRose) {
  PlantedPlan before = plain_plan(), after = plain_plan();
  before.work[1] = {"linear", 400, 0, false, "gemm_f32"};
  after.work[1] = {"linear", 200, 0, false, "gemm_bf16"};
  after.work.insert(after.work.begin() + 1, {"cast", 124, 0, false, "widen"});  // the campaign's 310 of 505
  const Comparison c = compare_reports(virtual_report(before, 9), virtual_report(after, 10), "before", "after");
  EXPECT_EQ(c.verdict, Verdict::kFaster);
  EXPECT_THAT(labels(c.risen()), testing::Contains("cast"));
  EXPECT_EQ(labels(c.risen()).front(), "cast");
  EXPECT_EQ(labels(c.fallen()).front(), "linear");
  EXPECT_EQ(c.risen().front()->category, "copies");
  EXPECT_THAT(comparison_text(c, 10), HasSubstr("rose   cast +0.12"));
  // The finding says why less was gained than the GEMM alone gave.
  FindingWords words;
  words.hypothesis = "the GEMM is 40 % of the step";
  words.change = "tensor cores";
  words.predicted_percent = -100.0 * 200 / c.step.before_us;
  const std::string entry = *finding_entry(c, words, "2026-11-29");
  EXPECT_THAT(entry, HasSubstr("Verdict: less than predicted"));
  EXPECT_THAT(entry, HasSubstr("rose cast"));
}

TEST(Planted, AHostStallIsARowOfItsOwn) {
  PlantedPlan stalled = plain_plan();
  stalled.schedule_us += 150;
  const ProfileReport report = virtual_report(stalled, 11);
  for (const HostGap& gap : report.host_gaps) {
    if (gap.name != "schedule") continue;
    EXPECT_NEAR(gap.total_critical_us() / (kRepeats * kSteps), 170, 1);
  }
  const Comparison c = compare_reports(virtual_report(plain_plan(), 12), report, "before", "after");
  EXPECT_EQ(c.verdict, Verdict::kSlower);
  EXPECT_EQ(labels(c.risen()).front(), "schedule");
}

TEST(Planted, ASlowerClockIsAWarningAndNoWin) {
  PlantedPlan fast = plain_plan();
  for (PlantedWork& work : fast.work) work.us *= 0.8;
  ProfileReport before = virtual_report(plain_plan(), 13), after = virtual_report(fast, 14);
  before.run.core_clock_mhz = 1600;
  after.run.core_clock_mhz = 2000;
  const Comparison told = compare_reports(before, after, "slow", "fast");
  EXPECT_EQ(told.verdict, Verdict::kNotComparable);
  EXPECT_THAT(comparison_text(told, 5), HasSubstr("WARNING     clocks: 1600 MHz against 2000 MHz"));
  EXPECT_THAT(comparison_text(told, 5), Not(HasSubstr("FASTER")));
  // Nobody read the clock, but the ceilings were measured under it.
  before.run.core_clock_mhz = after.run.core_clock_mhz = 0;
  before.ceilings.flops_per_s = 8e10;
  after.ceilings.flops_per_s = 1e11;
  EXPECT_EQ(compare_reports(before, after, "slow", "fast").verdict, Verdict::kNotComparable);
}

TEST(Planted, AnotherBatchIsAWarningAndNoWin) {
  PlantedPlan half = plain_plan();
  for (PlantedWork& work : half.work) work.us *= 0.6;
  ProfileReport before = virtual_report(plain_plan(), 15), after = virtual_report(half, 16);
  after.run.batch_sequences = 2;
  const Comparison c = compare_reports(before, after, "four", "two");
  EXPECT_EQ(c.verdict, Verdict::kNotComparable);
  EXPECT_FALSE(c.may_claim());
  EXPECT_THAT(comparison_text(c, 5), HasSubstr("WARNING     batch: 4 sequences against 2"));
}

// The same truths on the CPU backend's two threads, through run_operation. Time is the threads' own: other programs on
// the machine do not enter. planted_long_test.cc has them by the wall's clock.
PlantedPlan threaded_plan() {
  PlantedPlan plan;
  plan.add({"sparse_attention", 300}).add({"moe_experts", 600});
  return plan;
}

TEST(PlantedOnThreads, AParallelThreadsOperationHasALargeShareAndNoExposedTime) {
  PlantedPlan plan = threaded_plan();
  plan.add({"index_scores", 400, 1});
  ThreadedStep step(plan, PlantedClock::kThreadCpu);
  const ProfileReport report = planted_report(step, 3, 8);
  EXPECT_GT(summed_share(report, "index_scores"), 0.25);
  EXPECT_LT(critical_us(report, "index_scores"), 0.05 * 400) << "by the timeline";
  EXPECT_NEAR(report.accounted_us(), report.total_step_us(), 0.01 * report.total_step_us());
  const ExposedTime exposed = measure(step, "index_scores", 400, 15);
  EXPECT_LT(std::fabs(exposed.us), 0.1 * 400) << "as measured";
  EXPECT_TRUE(exposed.output_unchanged);
}

TEST(PlantedOnThreads, OnTheCriticalPathTheSavingIsPredictedWithinATenth) {
  PlantedPlan plan = threaded_plan();
  plan.add({"index_scores", 400});
  ThreadedStep with(plan, PlantedClock::kThreadCpu), without(threaded_plan(), PlantedClock::kThreadCpu);
  const ExposedTime exposed = measure(with, "index_scores", 400, 25);
  std::vector<double> saved;
  for (int i = 0; i < 25; ++i) saved.push_back(with.next().total_us - without.next().total_us);
  const double measured = median_interval(saved, 0.95).us;
  EXPECT_TRUE(is_resolved(exposed)) << exposed.low_us << " to " << exposed.high_us;
  EXPECT_NEAR(exposed.us, measured, 0.1 * measured);
  EXPECT_NEAR(measured, 400, 40);
}

ScriptedOptions scripted_on(VirtualClock& clock) {
  ScriptedOptions options;
  options.clock = &clock;
  return options;
}

// An executor whose commit stalls, in the real engine on a virtual clock: the stall comes back through the engine's own
// trace.
class StallingExecutor final : public Executor {
 public:
  StallingExecutor(VirtualClock& clock, std::int64_t stall_us)
      : clock_(clock), inner_(scripted_on(clock)), stall_us_(stall_us) {}
  const ExecutorLimits& limits() const override { return inner_.limits(); }
  Status launch(const StepPlan& plan) override { return inner_.launch(plan); }
  Result<StepResult> wait() override { return inner_.wait(); }
  void commit(SequenceId id, std::int64_t length) override {
    clock_.advance_us(stall_us_);
    inner_.commit(id, length);
  }

 private:
  VirtualClock& clock_;
  ScriptedExecutor inner_;
  const std::int64_t stall_us_;
};

ProfileReport engine_report(std::int64_t stall_us) {
  constexpr std::int32_t kCaptured = 60;
  VirtualClock clock;
  EngineOptions options;
  options.clock = &clock;
  options.eos_id = 1;
  options.prefix_cache = false;
  auto engine = Engine::make(options, std::make_unique<StallingExecutor>(clock, stall_us), nullptr);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_TRUE((*engine)->start_capture(kCaptured).ok());
  Request request;
  request.prompt = {5, 6, 7};
  request.max_tokens = kCaptured + 5;
  request.ignore_eos = true;
  auto stream = (*engine)->submit(std::move(request));
  EXPECT_TRUE(stream.ok()) << stream.status().message();
  while (!(*stream)->finished()) (*stream)->wait(std::chrono::milliseconds(50));
  const std::vector<TracedStep> traces = (*engine)->stop_capture();
  EXPECT_EQ(traces.size(), static_cast<std::size_t>(kCaptured));
  std::vector<std::vector<TimelineStep>> repeats(5);
  for (std::size_t i = 10; i < traces.size(); ++i) repeats[(i - 10) / 10].push_back(step_of_trace(traces[i]));
  ProfileReport report;
  report.run.num_repeats = 5;
  report.run.num_steps = 10;
  attribute_repeats(repeats, {}, report);
  return report;
}

TEST(PlantedInTheEngine, AHostStallIsTheRowThatRose) {
  const ProfileReport plain = engine_report(0), stalled = engine_report(400);
  EXPECT_TRUE(check_report(stalled).ok()) << check_report(stalled).message();
  EXPECT_NEAR(stalled.accounted_us(), stalled.total_step_us(), 0.01 * stalled.total_step_us());
  const Comparison c = compare_reports(plain, stalled, "plain", "stalled");
  EXPECT_EQ(c.verdict, Verdict::kSlower);
  ASSERT_FALSE(c.risen().empty());
  EXPECT_EQ(c.risen().front()->label(), "commit");
  EXPECT_NEAR(c.risen().front()->critical.difference.mean, 400, 1);
}

}  // namespace
}  // namespace fathom
