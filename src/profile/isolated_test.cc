#include "profile/isolated.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "profile/testing/mini_step.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Every call takes as long as its operation's name is.
class PlantedObserver final : public IsolatingObserver {
 public:
  void begin_operation(const OpScope&) override {}
  void end_operation(const OpScope& scope, std::int32_t, const OpCost&) override {
    times_.push_back(100.0 * static_cast<double>(scope.operation.size()));
  }
  Result<std::vector<double>> take_us() override { return std::exchange(times_, {}); }

 private:
  std::vector<double> times_;
};

TEST(Isolated, HoldsAttributedTimesToSingleCalls) {
  const LoadedModel loaded = load_mini(DeviceChoice::kEmulated);
  const auto step = make_mini_step(loaded, 2, 20);
  ProfileReport report;
  report.step_us = {{1000, 1000}};
  const auto add = [&](const char* operation, double us, std::int64_t launches) {
    ReportRow row;
    row.operation = operation;
    row.time_us = {2 * us};
    row.num_launches = 2 * launches;
    report.rows.push_back(row);
  };
  const double experts = static_cast<double>(loaded.model->config().num_hidden_layers) * 1100;
  add("moe_experts", 1.02 * experts, 24);
  add("lm_head", 800, 1);    // is 700
  add("hc_head", 700, 100);  // launches of 7 us
  add("copy", 50, 1);
  PlantedObserver observer;
  IsolatedCheck check(*loaded.model, *step, report, 3);
  const Status timed = check.time_alone(observer);
  ASSERT_TRUE(timed.ok()) << timed.message();
  EXPECT_EQ(step->executor().context().observer, nullptr);
  const std::vector<IsolatedRow> rows = check.rows();
  ASSERT_EQ(rows.size(), 3u) << "copies are no calls";
  EXPECT_EQ(rows[0].operation, "moe_experts");
  EXPECT_NEAR(rows[0].attributed_us / rows[0].alone_us, 1.02, 1e-9);
  EXPECT_EQ(rows[1].alone_us, 700);
}

TEST(Isolated, SaysWhatAgreesAndForHowMuchOfTheTime) {
  const std::vector<IsolatedRow> rows = {{"moe_experts", 4, 12, 600, 700, 590, 600},
                                         {"lm_head", 1, 1, 300, 310, 300, 320},
                                         {"embed", 1, 1, 100, 110, 0, 0}};
  const std::string text = isolated_text(rows, 1.25);
  const auto line = [&](const std::string& operation) {
    const std::size_t at = text.find(operation + " ");
    return at == std::string::npos ? std::string() : text.substr(at, text.find('\n', at) - at);
  };
  EXPECT_THAT(line("moe_experts"), HasSubstr("agrees"));
  EXPECT_THAT(line("lm_head"), HasSubstr("DIFFERS"));
  EXPECT_THAT(line("embed"), Not(HasSubstr("agrees")));
  EXPECT_THAT(text, HasSubstr("90.0 % was held to events, and 66.7 % of that agrees within 5 %"));
  EXPECT_THAT(text, HasSubstr("1.25 us"));
  const auto json = nlohmann::json::parse(isolated_json(rows));
  ASSERT_EQ(json.size(), 3u);
  EXPECT_EQ(json[1].at("operation"), "lm_head");
  EXPECT_DOUBLE_EQ(json[0].at("repeated_event_us").get<double>(), 600);
}

}  // namespace
}  // namespace fathom
