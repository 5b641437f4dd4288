#include "profile/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "profile/testing/sample_report.h"

namespace fathom {
namespace {

using testing::HasSubstr;
using testing::Not;

// Five repeats of ten steps, each step made of the given rows and 2 % of spread between repeats.
class StepOf {
 public:
  StepOf() {
    report_.run = sample_report().run;
    report_.run.num_repeats = kRepeats;
    report_.run.num_steps = kSteps;
    report_.step_us.assign(kRepeats, std::vector<double>(kSteps, 0));
    report_.idle_us.assign(kRepeats, 0);
    report_.unaccounted_us.assign(kRepeats, 0);
    report_.tokens_per_step = report_.committed_tokens_per_step = 4;
    report_.experts_hit_per_step = 8;
  }
  // `critical` of the summed `us` stands on the critical path.
  StepOf& row(const char* category, const char* operation, const char* kernel, double us, double critical) {
    ReportRow row;
    row.category = category;
    row.operation = operation;
    row.kernel = row.variant = kernel;
    row.num_launches = kRepeats * kSteps;
    for (int r = 0; r < kRepeats; ++r) {
      row.time_us.push_back(kSteps * us * wobble(r));
      row.critical_us.push_back(kSteps * critical * wobble(r));
      for (double& step : report_.step_us[static_cast<std::size_t>(r)]) step += critical * wobble(r);
    }
    report_.rows.push_back(row);
    return *this;
  }
  StepOf& row(const char* category, const char* operation, const char* kernel, double us) {
    return row(category, operation, kernel, us, us);
  }
  StepOf& shift(double seed) {
    seed_ = seed;
    return *this;
  }
  ProfileReport report_;

 private:
  static constexpr int kRepeats = 5, kSteps = 10;
  double wobble(int repeat) const { return 1 + 0.01 * ((repeat * 7 + static_cast<int>(seed_) * 3) % 5 - 2) / 2; }
  double seed_ = 0;
};

Comparison compare(const StepOf& a, const StepOf& b, const CompareOptions& options = {}) {
  return compare_reports(a.report_, b.report_, "a", "b", options);
}

std::vector<std::string> labels(const std::vector<const ComparedRow*>& rows) {
  std::vector<std::string> out;
  for (const ComparedRow* row : rows) out.push_back(row->label());
  return out;
}

TEST(Compare, TheCampaignsCastIsNamed) {
  // S13: the projection fell by 505 us, the copies rose by 310 us.
  StepOf a, b;
  a.row("projections", "linear", "simt", 1004).row("attention", "sparse_attention", "mma", 3000);
  b.shift(1).row("projections", "linear", "tensor", 499).row("attention", "sparse_attention", "mma", 3000);
  b.row("copies", "copy", "widen", 310);
  const Comparison c = compare(a, b);
  EXPECT_EQ(c.verdict, Verdict::kFaster);
  EXPECT_NEAR(c.step.difference.mean, -195, 25);
  EXPECT_THAT(labels(c.risen()), testing::ElementsAre("copy"));
  EXPECT_THAT(labels(c.fallen()), testing::ElementsAre("linear"));
  EXPECT_THAT(comparison_text(c, 20), HasSubstr("rose   copy +0.3100 ms (new)"));
  const auto kernel = [&](const std::string& name) {
    for (const ComparedRow& row : c.kernels) {
      if (row.kernel == name) return row.presence;
    }
    return Presence::kBoth;
  };
  EXPECT_EQ(kernel("tensor"), Presence::kNew);
  EXPECT_EQ(kernel("simt"), Presence::kVanished);
  EXPECT_EQ(kernel("mma"), Presence::kBoth);
}

TEST(Compare, ACastInsideAnOperationShowsAsANewKernel) {
  StepOf a, b;
  a.row("projections", "linear", "gemm", 1000);
  b.row("projections", "linear", "gemm", 500).row("projections", "linear", "widen", 310);
  const Comparison c = compare(a, b);
  ASSERT_EQ(c.kernels_of(Presence::kNew).size(), 1u);
  EXPECT_TRUE(c.kernels_of(Presence::kVanished).empty());
  EXPECT_THAT(comparison_text(c, 5), HasSubstr("new    linear: widen +0.31"));
  EXPECT_THAT(comparison_html(c), HasSubstr("linear: widen"));
}

TEST(Compare, WorkOffTheCriticalPathDoesNotCountAsAWin) {
  StepOf a, b;
  a.row("experts", "moe_experts", "cpu", 1000).row("projections", "linear", "cpu", 900, 0);
  b.row("experts", "moe_experts", "cpu", 1000).row("projections", "linear", "cpu", 300, 0);
  const Comparison c = compare(a, b);
  EXPECT_EQ(c.verdict, Verdict::kNoDifference);
  EXPECT_TRUE(c.fallen().empty());
  for (const ComparedRow& row : c.operations) {
    if (row.operation != "linear") continue;
    EXPECT_NEAR(row.summed.difference.mean, -600, 10);
    EXPECT_TRUE(row.summed.significant());
    EXPECT_EQ(row.critical.difference.mean, 0);
  }
}

TEST(Compare, NoiseIsNoDifference) {
  StepOf a, b;
  a.row("experts", "moe_experts", "cpu", 1000);
  b.shift(2).row("experts", "moe_experts", "cpu", 1001);
  EXPECT_EQ(compare(a, b).verdict, Verdict::kNoDifference);
  EXPECT_FALSE(is_slower_by(compare(a, b), 0));
}

TEST(Compare, OneRepeatProvesNothing) {
  StepOf a, b;
  a.row("experts", "moe_experts", "cpu", 1000);
  b.row("experts", "moe_experts", "cpu", 500);
  for (StepOf* side : {&a, &b}) {
    ProfileReport& report = side->report_;
    report.run.num_repeats = 1;
    report.step_us.resize(1);
    report.rows[0].time_us.resize(1);
    report.rows[0].critical_us.resize(1);
    report.idle_us.resize(1);
    report.unaccounted_us.resize(1);
  }
  const Comparison c = compare(a, b);
  EXPECT_EQ(c.verdict, Verdict::kUnproven);
  EXPECT_THAT(comparison_text(c, 5), HasSubstr("one repeat"));
  EXPECT_TRUE(c.fallen().empty());
}

TEST(Compare, EachUnlikenessWarnsAndNoWinIsClaimed) {
  const std::pair<Difference, void (*)(ProfileReport&)> planted[] = {
      {Difference::kBatch, [](ProfileReport& r) { r.run.batch_sequences = 8; }},
      {Difference::kContext, [](ProfileReport& r) { r.run.context_tokens = 512; }},
      {Difference::kContext, [](ProfileReport& r) { r.run.context_tokens = 0; }},
      {Difference::kClocks, [](ProfileReport& r) { r.run.core_clock_mhz = 2000; }},
      {Difference::kVariants, [](ProfileReport& r) { r.run.variants["sparse_attention"] = "reference"; }},
      {Difference::kExperts, [](ProfileReport& r) { r.experts_hit_per_step = 4; }},
      {Difference::kNumerics, [](ProfileReport& r) { r.run.numerics = "plain"; }},
      {Difference::kDevice, [](ProfileReport& r) { r.run.device = "another"; }},
      {Difference::kModel, [](ProfileReport& r) { r.run.model = "flash"; }},
      {Difference::kBackend, [](ProfileReport& r) { r.run.backend = "cuda"; }},
      {Difference::kThreads, [](ProfileReport& r) { r.run.num_threads = 1; }},
      {Difference::kCollector, [](ProfileReport& r) { r.run.collector = "events"; }},
      {Difference::kTokens, [](ProfileReport& r) { r.committed_tokens_per_step = 6; }},
  };
  StepOf a;
  a.row("experts", "moe_experts", "cpu", 1000);
  for (const auto& [kind, plant] : planted) {
    StepOf b;
    b.row("experts", "moe_experts", "cpu", 500);
    ASSERT_EQ(compare(a, b).verdict, Verdict::kFaster);
    plant(b.report_);
    const Comparison c = compare(a, b);
    EXPECT_EQ(c.verdict, Verdict::kNotComparable) << difference_name(kind);
    EXPECT_FALSE(c.may_claim());
    ASSERT_EQ(c.differences.size(), 1u) << difference_name(kind);
    EXPECT_EQ(c.differences[0].kind, kind);
    const std::string text = comparison_text(c, 5);
    EXPECT_THAT(text, HasSubstr("WARNING     " + std::string(difference_name(kind))));
    EXPECT_THAT(text, Not(HasSubstr("FASTER")));
    // Said to be the change under test, it is no obstacle.
    EXPECT_EQ(compare(a, b, {{kind}}).verdict, Verdict::kFaster) << difference_name(kind);
  }
}

TEST(Compare, ASlowerMachineShowsInItsCeilings) {
  StepOf a, b;
  a.row("experts", "moe_experts", "cpu", 1000);
  b.row("experts", "moe_experts", "cpu", 500);
  a.report_.ceilings.flops_per_s = 1e11;
  b.report_.ceilings.flops_per_s = 2e11;
  // Known clocks are compared themselves; the ceilings then tell of the load.
  EXPECT_EQ(compare(a, b).verdict, Verdict::kFaster);
  EXPECT_TRUE(compare(a, b).differences.empty());
  EXPECT_THAT(comparison_text(compare(a, b), 5), HasSubstr("shares of the ceiling are not comparable"));
  b.report_.run.core_clock_mhz = 0;
  const Comparison c = compare(a, b);
  EXPECT_EQ(c.verdict, Verdict::kNotComparable);
  EXPECT_THAT(c.differences[0].text, HasSubstr("measured ceiling"));
  EXPECT_THAT(comparison_text(c, 5), HasSubstr("differences (no claim):\nrose"));
  EXPECT_TRUE(c.notes.empty());
}

TEST(Compare, ExpertsThatNobodyCountedShowInTheirBytes) {
  StepOf a, b;
  a.row("experts", "moe_experts", "cpu", 1000);
  b.row("experts", "moe_experts", "cpu", 500);
  for (StepOf* side : {&a, &b}) {
    side->report_.experts_hit_per_step = 0;
    side->report_.rows[0].bytes = 5e9;
  }
  EXPECT_EQ(compare(a, b).verdict, Verdict::kFaster);
  b.report_.rows[0].bytes = 3e9;
  ASSERT_EQ(compare(a, b).differences.size(), 1u);
  EXPECT_EQ(compare(a, b).differences[0].kind, Difference::kExperts);
  EXPECT_EQ(compare(a, b).verdict, Verdict::kNotComparable);
}

TEST(Compare, TokensDecideWhereAcceptanceIsTheChange) {
  StepOf a, b;
  a.row("experts", "moe_experts", "cpu", 1000);
  b.row("experts", "moe_experts", "cpu", 1200);
  b.report_.committed_tokens_per_step = 8;  // twice the tokens in a step that is 20 % longer
  const Comparison c = compare(a, b, {{Difference::kTokens}});
  EXPECT_EQ(c.verdict, Verdict::kFaster);
  EXPECT_FALSE(is_slower_by(c, 0.03));
  EXPECT_NEAR(c.percent(c.judged()), -40, 2);
  EXPECT_THAT(comparison_text(c, 5), HasSubstr("a committed token takes 40."));
}

TEST(Compare, TheGateAsksForSizeAndForSignificance) {
  StepOf a, slower, slightly;
  a.row("experts", "moe_experts", "cpu", 1000);
  slower.shift(1).row("experts", "moe_experts", "cpu", 1050);
  slightly.row("experts", "moe_experts", "cpu", 1020);
  EXPECT_TRUE(is_slower_by(compare(a, slower), 0.03));
  EXPECT_FALSE(is_slower_by(compare(a, slower), 0.08));
  EXPECT_FALSE(is_slower_by(compare(a, slightly), 0.03));
  EXPECT_TRUE(is_slower_by(compare(a, slightly), 0.0));
  EXPECT_FALSE(is_slower_by(compare(slower, a), 0.0));
}

TEST(Compare, FractionsAreParsedWholeOrNotAtAll) {
  EXPECT_DOUBLE_EQ(*parse_fraction("3%"), 0.03);
  EXPECT_DOUBLE_EQ(*parse_fraction("3 %"), 0.03);
  EXPECT_DOUBLE_EQ(*parse_fraction("0.03"), 0.03);
  for (const char* bad : {"", "%", "-1%", "3%%", "three", "nan", "1e999", "3x"})
    EXPECT_FALSE(parse_fraction(bad).ok()) << bad;
}

TEST(Compare, CriticalChangesAddUpToTheStep) {
  StepOf a, b;
  a.row("experts", "moe_experts", "cpu", 1000).row("projections", "linear", "cpu", 300);
  b.shift(1).row("experts", "moe_experts", "cpu", 900).row("projections", "linear", "cpu", 350, 320);
  const Comparison c = compare(a, b);
  for (const auto* rows : {&c.categories, &c.operations, &c.kernels}) {
    double sum = 0;
    for (const ComparedRow& row : *rows) sum += row.critical.difference.mean;
    EXPECT_NEAR(sum, c.step.difference.mean, 1e-6);
  }
}

TEST(Compare, JsonSaysWhatTheTextSays) {
  StepOf a, b;
  a.row("projections", "linear", "cpu", 300);
  b.row("projections", "linear", "cpu", 200).row("copies", "cast", "widen", 20);
  const Comparison c = compare(a, b);
  const auto json = nlohmann::json::parse(comparison_json(c));
  EXPECT_EQ(json["verdict"], "faster");
  EXPECT_EQ(json["rose"][0]["name"], "cast");
  EXPECT_NEAR(json["step"]["change_us"].get<double>(), -80, 3);
  EXPECT_EQ(json["kernels"].size(), 2u);
}

TEST(Compare, DifferenceNamesAreUnique) {
  for (int i = 0; i < kNumDifferences; ++i) {
    const auto kind = static_cast<Difference>(i);
    EXPECT_EQ(parse_difference(difference_name(kind)), kind);
  }
  EXPECT_FALSE(parse_difference("weather").has_value());
}

}  // namespace
}  // namespace fathom
