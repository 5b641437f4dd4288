// Depth by numbers, and on a virtual clock; the alarm.
#include "engine/speculation.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "engine/engine.h"
#include "engine/scripted_answer.h"
#include "engine/scripted_executor.h"

namespace fathom {
namespace {

StepTimes times_of(std::int32_t batch, std::initializer_list<double> us_by_depth) {
  StepTimes times;
  std::int32_t depth = 0;
  for (const double us : us_by_depth) {
    for (int i = 0; i < 3; ++i) times.add(batch, depth, us);
    ++depth;
  }
  return times;
}

TEST(Speculation, ExpectedTokensByHand) {
  EXPECT_DOUBLE_EQ(expected_tokens(0.5, 0), 1.0);
  EXPECT_DOUBLE_EQ(expected_tokens(0.5, 3), 1.875);
  EXPECT_DOUBLE_EQ(expected_tokens(1.0, 5), 6.0);
  EXPECT_DOUBLE_EQ(expected_tokens(0.0, 5), 1.0);
}

TEST(Speculation, TheFastestDepthIsChosen) {
  // Tokens per ms at rate 0.5: 1/10, 1.5/11, 1.75/12, 1.875/13.5: the second wins.
  const StepTimes times = times_of(1, {10, 11, 12, 13.5});
  const double half[] = {0.5};
  EXPECT_EQ(choose_depth(times, half, 3), 2);
  EXPECT_EQ(choose_depth(times, half, 1), 1) << "the bound holds";
  const double sure[] = {1.0};
  EXPECT_EQ(choose_depth(times, sure, 3), 3);
  const double wrong[] = {0.05};
  EXPECT_EQ(choose_depth(times, wrong, 3), 0);
  EXPECT_EQ(choose_depth(times_of(1, {10, 19, 28, 40}), half, 3), 0) << "drafting that loses is off";
}

TEST(Speculation, UnknownTimesAreTriedOnlyWhereTheyCouldWin) {
  const double half[] = {0.5};
  EXPECT_EQ(choose_depth({}, half, 3), 0) << "0 is measured first";
  EXPECT_EQ(choose_depth(times_of(1, {10, 11}), half, 3), 3) << "could cost no more than depth 1";
  const double wrong[] = {0.01};
  EXPECT_EQ(choose_depth(times_of(1, {10, 11}), wrong, 3), 0);
}

TEST(Speculation, BatchesHaveTimesOfTheirOwn) {
  StepTimes times = times_of(1, {10, 11});
  for (int i = 0; i < 2; ++i) {
    times.add(40, 0, 50);
    times.add(40, 1, 100);
  }
  const double one[] = {0.9};
  EXPECT_EQ(choose_depth(times, one, 1), 1);
  const std::vector<double> many(33, 0.9);
  EXPECT_EQ(choose_depth(times, many, 1), 0);
  EXPECT_EQ(StepTimes::bucket_of(33), StepTimes::bucket_of(64));
  EXPECT_NE(StepTimes::bucket_of(64), StepTimes::bucket_of(65));
}

TEST(Speculation, AcceptanceLearnsFromTheFirstWrongDraftAndFades) {
  Acceptance acceptance;
  for (int i = 0; i < 200; ++i) acceptance.add(3, 3);
  EXPECT_GT(acceptance.rate(), 0.99);
  for (int i = 0; i < 200; ++i) acceptance.add(8, 0);  // one trial each
  EXPECT_LT(acceptance.rate(), 0.01);
  for (int i = 0; i < 5000; ++i) acceptance.fade();
  EXPECT_NEAR(acceptance.rate(), Acceptance::kPrior, 0.01);
}

TEST(Speculation, TheAlarmComparesWithItsOwnHistory) {
  AcceptanceAlarm alarm;
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(alarm.add(1, i % 10 != 0 ? 1 : 0));
  int raised = 0;
  for (int i = 0; i < 200; ++i) raised += alarm.add(1, i % 5 == 0 ? 1 : 0) ? 1 : 0;
  EXPECT_EQ(raised, 1) << "once";
  EXPECT_TRUE(alarm.raised());
  for (int i = 0; i < 400; ++i) alarm.add(1, 1);
  EXPECT_FALSE(alarm.raised());
  AcceptanceAlarm always_low;
  for (int i = 0; i < 2000; ++i) EXPECT_FALSE(always_low.add(1, i % 5 == 0 ? 1 : 0));
}

// Virtual microseconds for `batch` answers of 400 tokens. depth -1: adaptive.
struct Profile {
  std::int64_t step_us, row_us;
  double acceptance;
};
std::int64_t virtual_us(const Profile& profile, std::int32_t batch, std::int32_t depth) {
  VirtualClock clock;
  ScriptedOptions scripted;
  scripted.limits.vocab_size = 300;
  scripted.step_us = profile.step_us;
  scripted.row_us = profile.row_us;
  scripted.acceptance = profile.acceptance;
  scripted.clock = &clock;
  EngineOptions options;
  options.num_drafts = depth < 0 ? 5 : depth;
  options.adaptive_drafts = depth < 0;
  options.eos_id = 1;
  options.clock = &clock;
  auto engine = Engine::make(options, std::make_unique<ScriptedExecutor>(scripted), nullptr);
  EXPECT_TRUE(engine.ok());
  std::vector<std::unique_ptr<Stream>> streams;
  for (std::int32_t i = 0; i < batch; ++i) {
    Request request;
    request.prompt = scripted_prompt(static_cast<std::uint64_t>(i), 5, 0, 300);
    request.sampling.temperature = 0.0f;
    request.max_tokens = 400;
    streams.push_back(std::move(*(*engine)->submit(request)));
  }
  SamplingOptions greedy;
  greedy.temperature = 0.0f;
  for (std::int32_t i = 0; i < batch; ++i) {
    const auto tokens = read_all(*streams[static_cast<std::size_t>(i)]).at(0).tokens;
    EXPECT_EQ(tokens,
              scripted_answer(scripted, scripted_prompt(static_cast<std::uint64_t>(i), 5, 0, 300), greedy, 400));
  }
  EXPECT_TRUE((*engine)->drain(std::chrono::seconds(10)));
  return clock.now_us();
}

TEST(Speculation, AdaptiveOnAVirtualClock) {
  for (const Profile& profile :
       {Profile{10000, 10, 0.9}, Profile{1000, 400, 0.7}, Profile{100, 1000, 0.5}, Profile{10000, 10, 0.0}}) {
    for (const std::int32_t batch : {1, 16}) {
      std::int64_t off = 0, best = 0;
      std::printf("step %lld us + %lld a row, acceptance %.1f, batch %d:", static_cast<long long>(profile.step_us),
                  static_cast<long long>(profile.row_us), profile.acceptance, batch);
      for (std::int32_t depth = 0; depth <= 5; ++depth) {
        const std::int64_t us = virtual_us(profile, batch, depth);
        if (depth == 0) off = best = us;
        best = std::min(best, us);
        std::printf(" %.0f", 1e6 * 400 * batch / static_cast<double>(us));
      }
      const std::int64_t adaptive = virtual_us(profile, batch, -1);
      std::printf(" | adaptive %.0f tok/s\n", 1e6 * 400 * batch / static_cast<double>(adaptive));
      // Trying out costs steps: answers of 400 tokens show it, longer ones do not.
      EXPECT_LE(static_cast<double>(adaptive), 1.10 * static_cast<double>(best));
      EXPECT_LE(static_cast<double>(adaptive), 1.10 * static_cast<double>(off));
    }
  }
}

}  // namespace
}  // namespace fathom
