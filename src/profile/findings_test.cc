#include "profile/findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profile/testing/sample_report.h"

namespace fathom {
namespace {

using testing::HasSubstr;

Change change_of(double percent, double half_width) {
  Change change;
  change.before_us = 1000;
  change.after_us = 1000 + 10 * percent;
  change.difference = {10 * percent, 10 * (percent - half_width), 10 * (percent + half_width), true};
  return change;
}

TEST(Findings, VerdictsOnAPrediction) {
  using enum PredictionVerdict;
  EXPECT_EQ(judge_prediction(change_of(-10, 1), -10), kAsPredicted);
  EXPECT_EQ(judge_prediction(change_of(-9, 0.1), -10), kAsPredicted);  // within a fifth
  EXPECT_EQ(judge_prediction(change_of(-4, 0.5), -19), kLess);         // the campaign's S5
  EXPECT_EQ(judge_prediction(change_of(-30, 1), -10), kMore);
  EXPECT_EQ(judge_prediction(change_of(5, 1), -10), kLess);  // the other sign
  EXPECT_EQ(judge_prediction(change_of(-0.5, 1), -10), kFlat);
  EXPECT_EQ(judge_prediction(change_of(0.2, 1), 0), kAsPredicted);   // nothing was expected
  EXPECT_EQ(judge_prediction(change_of(0.2, 3), -2), kAsPredicted);  // too small for these repeats to deny
  EXPECT_EQ(judge_prediction(change_of(4, 1), 0), kMore);
}

TEST(Findings, SignedPercentages) {
  EXPECT_EQ(*parse_signed_percent("-10%"), -10);
  EXPECT_EQ(*parse_signed_percent("+2.5 %"), 2.5);
  for (const char* bad : {"-10", "", "%", "10%%", "x%", "nan%", "+-3%"})
    EXPECT_FALSE(parse_signed_percent(bad).ok()) << bad;
}

TEST(Findings, RefusesWhatProvesNothing) {
  ProfileReport a = sample_report(), b = sample_report();
  FindingWords words;
  words.hypothesis = "h";
  words.change = "c";
  words.predicted_percent = -10;
  EXPECT_TRUE(finding_entry(compare_reports(a, b, "a", "b"), words, "2026-11-29").ok());
  b.run.batch_sequences = 7;
  const auto unlike = finding_entry(compare_reports(a, b, "a", "b"), words, "2026-11-29");
  EXPECT_THAT(unlike.status().message(), HasSubstr("batch: 4 sequences against 7"));
  b = a;
  words.change = "\n";
  EXPECT_THAT(finding_entry(compare_reports(a, b, "a", "b"), words, "d").status().message(), HasSubstr("change:"));
  words.change = "c";
  words.predicted_percent = -100;
  EXPECT_FALSE(finding_entry(compare_reports(a, b, "a", "b"), words, "d").ok());
}

}  // namespace
}  // namespace fathom
