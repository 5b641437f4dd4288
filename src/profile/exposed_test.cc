#include "profile/exposed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

namespace fathom {
namespace {

using testing::HasSubstr;

// Times by a formula: `serial` operations add up, `hidden` ones run beside them, and noise is only ever added.
class FormulaStep final : public RepeatableStep {
 public:
  std::map<std::string, double> serial, hidden;
  std::string breaks_when_repeated, breaks_when_left_out = "serial";
  double noise_us = 0;
  int num_runs = 0;

  Result<Run> run(std::span<const std::string> operations, std::int32_t num_repeats) override {
    ++num_runs;
    const auto count = [&](const std::string& name) {
      for (const std::string& operation : operations) {
        if (operation == name) return static_cast<double>(num_repeats);
      }
      return 1.0;
    };
    double main_us = 0, beside_us = 0;
    for (const auto& [name, us] : serial) main_us += us * count(name);
    for (const auto& [name, us] : hidden) beside_us += us * count(name);
    Run out{std::max(main_us, beside_us), 7};
    if (noise_us > 0) out.step_us += std::exponential_distribution(1 / noise_us)(random_);
    for (const std::string& operation : operations) {
      if (num_repeats > 1 && operation == breaks_when_repeated) out.output_hash = 8;
      if (num_repeats == 0 &&
          (breaks_when_left_out == "serial" ? serial.contains(operation) : operation == breaks_when_left_out)) {
        out.output_hash = 9;
      }
    }
    return out;
  }

 private:
  std::mt19937_64 random_{5};
};

ExposedTarget target(const std::string& operation, double summed_us) {
  return {"some", operation, {operation}, summed_us, true};
}

TEST(ExposedTime, WorkOnTheCriticalPathIsItsTimeAndHiddenWorkIsNothing) {
  FormulaStep step;
  step.serial = {{"a", 300}, {"b", 50}, {"rest", 1000}};
  step.hidden = {{"h", 600}};
  step.noise_us = 4;
  const std::vector<ExposedTarget> targets = {target("a", 300), target("b", 50), target("h", 600)};
  const auto result = measure_exposed(step, targets, {});
  ASSERT_TRUE(result.ok()) << result.status().message();
  ASSERT_EQ(result->entries.size(), 4u) << "h is measured by leaving out too";
  const ExposedTime &a = result->entries[0].exposed, &b = result->entries[1].exposed;
  EXPECT_NEAR(a.us, 300, 30);
  EXPECT_TRUE(is_resolved(a));
  EXPECT_NEAR(b.us, 50, 5);
  EXPECT_LE(b.low_us, 50);
  EXPECT_GE(b.high_us, 50);
  for (const std::size_t i : {2, 3}) {
    const ExposedTime& h = result->entries[i].exposed;
    EXPECT_NEAR(h.us, 0, 10) << h.method;
    EXPECT_FALSE(is_resolved(h)) << h.method;
    EXPECT_TRUE(h.output_unchanged);
  }
  EXPECT_EQ(result->entries[3].exposed.method, "left out");
}

TEST(ExposedTime, WhatARepeatChangesIsNotMeasured) {
  FormulaStep step;
  step.serial = {{"a", 300}, {"b", 50}};
  step.breaks_when_repeated = "b";
  const std::vector<ExposedTarget> targets = {target("a", 300), target("b", 50)};
  const auto result = measure_exposed(step, targets, {});
  ASSERT_TRUE(result.ok());
  ASSERT_EQ(result->entries.size(), 1u);
  EXPECT_EQ(result->entries[0].operation, "a");
  ASSERT_EQ(result->notes.size(), 1u);
  EXPECT_THAT(result->notes[0], HasSubstr("b: not measured, a repeat changes the outputs"));
}

TEST(ExposedTime, ShortWorkIsRepeatedOftenAndLongWorkOnce) {
  FormulaStep step;
  step.serial = {{"long", 500}, {"short", 2}, {"rest", 500}};
  ExposedOptions options;
  options.num_rounds = 7;
  const std::vector<ExposedTarget> targets = {target("long", 500), target("short", 2)};
  const auto result = measure_exposed(step, targets, options);
  ASSERT_TRUE(result.ok());
  EXPECT_DOUBLE_EQ(result->entries[0].exposed.us, 500);
  EXPECT_NEAR(result->entries[1].exposed.us, 2, 1e-9);
  EXPECT_EQ(result->entries[1].exposed.num_samples, 7);
}

TEST(ExposedTime, TheMediansIntervalIsTheSignTests) {
  std::vector<double> samples(15);
  for (std::size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<double>((i * 7) % 15);
  const ExposedTime found = median_interval(samples, 0.95);
  EXPECT_DOUBLE_EQ(found.us, 7);
  EXPECT_DOUBLE_EQ(found.low_us, 3);  // the 4th and the 12th of 15: 96.5 %
  EXPECT_DOUBLE_EQ(found.high_us, 11);
  const ExposedTime few = median_interval({1, 2, 3, 4, 5}, 0.95);
  EXPECT_DOUBLE_EQ(few.low_us, 1);
  EXPECT_DOUBLE_EQ(few.high_us, 5);
  EXPECT_EQ(median_interval({}, 0.95).num_samples, 0);
}

TEST(ExposedTime, TheIntervalHoldsTheTruthAsOftenAsItSays) {
  std::mt19937_64 random(3);
  std::exponential_distribution<double> skewed(1.0);
  const double truth = std::log(2.0);  // its median
  int held = 0;
  constexpr int kTries = 2000;
  for (int i = 0; i < kTries; ++i) {
    std::vector<double> samples(15);
    for (double& sample : samples) sample = skewed(random);
    const ExposedTime found = median_interval(samples, 0.95);
    held += found.low_us <= truth && truth <= found.high_us ? 1 : 0;
  }
  EXPECT_GE(held, kTries * 0.95);
  EXPECT_LE(held, kTries * 0.98);
}

TEST(ExposedTime, ResolvedMeansThreeTimesTheHalfWidth) {
  ExposedTime exposed;
  exposed.method = "repeated";
  exposed.us = 30;
  exposed.low_us = 21;
  exposed.high_us = 39;
  EXPECT_TRUE(is_resolved(exposed));
  exposed.high_us = 43;
  EXPECT_FALSE(is_resolved(exposed));
  exposed = {};
  EXPECT_FALSE(is_resolved(exposed)) << "not measured";
}

ProfileReport report_with_exposed() {
  ProfileReport report;
  report.run.num_repeats = 1;
  report.step_us = {{1000, 1000}};
  report.committed_tokens_per_step = 4;
  report.exposed = {{"experts", "moe_experts", {"repeated", 400, 390, 410, 0.95, 15, true}},
                    {"cache", "kv_write", {"repeated", 50, 40, 60, 0.95, 15, true}},
                    {"cache", "kv_write", {"left out", 100, 90, 110, 0.95, 15, true}},
                    {"indexer", "", {"repeated", 5, -5, 15, 0.95, 15, true}}};
  return report;
}

TEST(WhatIf, FollowsFromExposedTime) {
  const ProfileReport report = report_with_exposed();
  const WhatIf half = *predict_what_if(report, "moe_experts=0.5x");
  EXPECT_DOUBLE_EQ(half.now_tokens_per_s, 4000);
  EXPECT_DOUBLE_EQ(half.tokens_per_s, 4e6 / 800);
  EXPECT_DOUBLE_EQ(half.low, 4e6 / 805);
  EXPECT_DOUBLE_EQ(half.high, 4e6 / 795);
  EXPECT_DOUBLE_EQ(half.saved_us, 200);
  EXPECT_TRUE(half.resolved);
  EXPECT_DOUBLE_EQ(predict_what_if(report, "kv_write=0")->saved_us, 100) << "left out has no bias";
  EXPECT_FALSE(predict_what_if(report, "indexer=0x")->resolved);
  EXPECT_LT(predict_what_if(report, "moe_experts=2x")->tokens_per_s, 4000);
}

TEST(WhatIf, RefusesWhatItCannotRead) {
  const ProfileReport report = report_with_exposed();
  for (const char* text :
       {"", "moe_experts", "=0.5x", "moe_experts=", "moe_experts=x", "moe_experts=-1x", "moe_experts=0.5y"}) {
    EXPECT_FALSE(predict_what_if(report, text).ok()) << text;
  }
  for (const char* text : {"bogus=0.5x", "moe_experts", "moe_experts=nanx", "=1x", "moe_experts=-1x"}) {
    EXPECT_FALSE(check_what_if(text).ok()) << text;
  }
  EXPECT_THAT(check_what_if("bogus=0.5x").message(), HasSubstr("moe_experts"));
  EXPECT_TRUE(check_what_if("moe_experts=0.5x").ok());
  EXPECT_TRUE(check_what_if("indexer=0").ok()) << "a category";
  EXPECT_THAT(predict_what_if(report, "embed=0x").status().message(), HasSubstr("moe_experts, kv_write, indexer"));
}

}  // namespace
}  // namespace fathom
