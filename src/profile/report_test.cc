#include "profile/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>

#include "ops/op_kind.h"
#include "profile/categories.h"
#include "profile/report_text.h"
#include "profile/testing/sample_report.h"

namespace fathom {
namespace {

using testing::HasSubstr;

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Categories, EveryOperationHasOne) {
  for (int i = 0; i < kNumOpKinds; ++i) {
    EXPECT_NE(category_of(op_name(static_cast<OpKind>(i))), "other") << op_name(static_cast<OpKind>(i));
  }
  EXPECT_EQ(category_of("copy"), "copies");
  EXPECT_EQ(category_of("nothing_of_this_name"), "other");
}

TEST(Report, JsonKeepsEveryField) {
  const ProfileReport report = sample_report();
  const std::string text = *report_to_json(report);
  const ProfileReport read = *parse_report(text, "x");
  EXPECT_EQ(*report_to_json(read), text);
  EXPECT_EQ(read.run.variants, report.run.variants);
  EXPECT_EQ(read.rows.size(), report.rows.size());
  EXPECT_EQ(read.rows[1].time_us, report.rows[1].time_us);
  EXPECT_EQ(read.step_us, report.step_us);
  EXPECT_EQ(read.notes, report.notes);
  ASSERT_NE(read.find_exposed("attention"), nullptr);
  EXPECT_EQ(read.find_exposed("attention")->high_us, report.find_exposed("attention")->high_us);
}

TEST(Report, DerivedFiguresFollowFromTheSteps) {
  const ProfileReport report = sample_report();
  EXPECT_EQ(report.total_steps(), 6);
  EXPECT_DOUBLE_EQ(report.total_step_us(), 600);
  EXPECT_DOUBLE_EQ(report.mean_step_us(), 100);
  EXPECT_DOUBLE_EQ(report.steps_per_s(), 10000);
  EXPECT_DOUBLE_EQ(report.tokens_per_s(), 10000 * report.committed_tokens_per_step);
  EXPECT_NEAR(report.accounted_us(), report.total_step_us(), 0.01 * report.total_step_us());
}

TEST(Report, TextHasNoShareOfACeilingThatWasNotMeasured) {
  ProfileReport report = sample_report();
  const auto shares = [&report] {
    const std::string text = report_text(report);
    std::string line = text.substr(text.find("moe_experts/cpu"));
    line.resize(line.find('\n'));
    std::istringstream words(line);
    const std::vector<std::string> all{std::istream_iterator<std::string>(words), {}};
    return all.size() > 11 ? all[9] + " " + all[11] : line;
  };
  EXPECT_THAT(shares(), testing::MatchesRegex("[0-9]+% [0-9]+%"));
  report.ceilings = {};
  EXPECT_EQ(shares(), "- -");
}

TEST(Report, EveryTruncationIsRefused) {
  const std::string text = *report_to_json(sample_report());
  for (std::size_t n = 0; n + 2 < text.size(); n += 7) {
    const auto read = parse_report(std::string_view(text).substr(0, n), "a/report.json");
    ASSERT_FALSE(read.ok()) << n;
    EXPECT_THAT(read.status().message(), HasSubstr("a/report.json"));
  }
  EXPECT_THAT(parse_report("", "a/report.json").status().message(), HasSubstr("empty"));
  EXPECT_THAT(parse_report(text.substr(0, 500), "a/report.json").status().message(), HasSubstr("truncated"));
}

TEST(Report, MessagesNameTheField) {
  const std::string text = *report_to_json(sample_report());
  const auto message = [](const std::string& json) { return parse_report(json, "r.json").status().message(); };
  EXPECT_THAT(message(replaced(text, "\"version\": 1", "\"version\": 7")), HasSubstr("version: found 7, expected 1"));
  EXPECT_THAT(message(replaced(text, "fathom-profile", "chrome")), HasSubstr("format: found \"chrome\""));
  EXPECT_THAT(message(replaced(text, "\"bytes\": 1000.0", "\"bytes\": null")),
              HasSubstr("rows[0].bytes: found null, expected a finite number"));
  EXPECT_THAT(message(replaced(text, "\"bytes\": 1000.0", "\"bytes\": NaN")), HasSubstr("corrupt"));
  EXPECT_THAT(message(replaced(text, "\"bytes\": 1000.0", "\"bytes\": 1e999")), HasSubstr("no double holds"));
  EXPECT_THAT(message(replaced(text, "\"bytes\": 1000.0", "\"bytes\": -1")), HasSubstr("rows[0].bytes: found -1"));
  EXPECT_THAT(message(replaced(text, "\"bytes\"", "\"octets\"")), HasSubstr("rows[0].bytes: missing"));
  EXPECT_THAT(message(replaced(text, "\"num_repeats\": 2", "\"num_repeats\": 3")),
              HasSubstr("step_us: found 2 repeats"));
  EXPECT_THAT(message(replaced(text, "\"num_steps\": 3", "\"num_steps\": 2.5")), HasSubstr("run.num_steps: found 2.5"));
  EXPECT_THAT(message("[1]"), HasSubstr("expected an object"));
  EXPECT_THAT(message("{}"), HasSubstr("format: found nothing"));
}

TEST(Report, NothingUnreadableIsWritten) {
  ProfileReport report = sample_report();
  report.rows[1].time_us[1] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(report_to_json(report).status().message(), HasSubstr("rows[1].time_us[1]: found"));
  report = sample_report();
  report.rows[0].time_us[0] = -5;
  EXPECT_THAT(report_to_json(report).status().message(), HasSubstr("rows[0].time_us[0]: found -5"));
  report = sample_report();
  report.rows[0].critical_us.pop_back();
  EXPECT_THAT(report_to_json(report).status().message(), HasSubstr("one per repeat (2)"));
  report = sample_report();
  report.step_us[1].pop_back();
  EXPECT_THAT(report_to_json(report).status().message(), HasSubstr("step_us[1]: found 2 steps"));
  report = sample_report();
  report.exposed[0].exposed.high_us = report.exposed[0].exposed.us - 1;
  EXPECT_THAT(report_to_json(report).status().message(), HasSubstr("outside its interval"));
  report = sample_report();
  report.unaccounted_us[0] = -0.5;  // clocks read in another order
  EXPECT_TRUE(report_to_json(report).ok());
}

TEST(Report, OpensAFolderOrAFile) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "fathom_report_test";
  std::filesystem::create_directories(folder);
  const std::string file = (folder / "report.json").string();
  ASSERT_TRUE(write_report(file, sample_report()).ok());
  EXPECT_TRUE(open_report(file).ok());
  EXPECT_TRUE(open_report(folder.string()).ok());
  std::ofstream(file).close();
  EXPECT_THAT(open_report(folder.string()).status().message(), HasSubstr(file));
  std::filesystem::remove_all(folder);
  EXPECT_THAT(open_report(folder.string()).status().message(), HasSubstr(folder.string()));
}

}  // namespace
}  // namespace fathom
