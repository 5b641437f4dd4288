#include "profile/record_tracer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/model_executor.h"
#include "profile/testing/mini_step.h"

namespace fathom {
namespace {

using testing::HasSubstr;

struct Planted {
  std::vector<DeviceRecord> records;  // what take() hands out next
  double now_us = 0;
  int num_opened = 0, num_closed = 0;
};

class PlantedRecorder final : public DeviceRecorder {
 public:
  explicit PlantedRecorder(Planted& planted) : planted_(planted) { ++planted_.num_opened; }
  ~PlantedRecorder() override { ++planted_.num_closed; }
  double now_us() override { return planted_.now_us; }
  Result<std::vector<DeviceRecord>> take() override { return std::exchange(planted_.records, {}); }

 private:
  Planted& planted_;
};

std::unique_ptr<DeviceTracer> tracer_of(Planted& planted) {
  return make_record_tracer([&planted]() -> Result<std::unique_ptr<DeviceRecorder>> {
    return std::unique_ptr<DeviceRecorder>(std::make_unique<PlantedRecorder>(planted));
  });
}

std::shared_ptr<const CapturedStep> captured(std::int64_t id, const char* operation, const char* kernel) {
  auto step = std::make_shared<CapturedStep>();
  step->id = id;
  step->calls = {{{3, operation, "mma"}, 1, {100, 200}, 0, 2}};
  step->nodes = {{NodeKind::kKernel, kernel, 1, 32, 0}, {NodeKind::kKernel, "tail()", 1, 32, 0}};
  return step;
}

DeviceRecord kernel(const char* name, double begin_us, std::uint64_t launch, std::uint64_t node) {
  return {NodeKind::kKernel, name, begin_us, begin_us + 4, 7, launch, node, 0};
}

TEST(RecordTracer, EachReplayFindsItsGraphAndALaunchItsCall) {
  Planted planted;
  const auto tracer = tracer_of(planted);
  ASSERT_TRUE(tracer->start().ok());
  planted.now_us = 1000;
  tracer->begin_step();
  // A launched call between 1,010 and 1,020, then two replays: the trunk and a draft.
  planted.now_us = 1010;
  tracer->observer()->begin_operation({-1, "embed", "simt"});
  planted.now_us = 1020;
  tracer->observer()->end_operation({-1, "embed", "simt"}, 1, {64, 0});
  DeviceRecord launched = kernel("embed_rows(int*)", 1030, 1, 0), stranger = kernel("stray()", 1035, 2, 0);
  launched.launched_us = 1015;
  stranger.launched_us = 1025;  // behind the call's end
  planted.records = {kernel("tail()", 1055, 9, 22),
                     kernel("void draft<1>(int)", 1050, 9, 21),
                     launched,
                     stranger,
                     kernel("trunk()", 1040, 8, 11),
                     kernel("tail()", 1045, 8, 12)};
  const std::vector<std::shared_ptr<const CapturedStep>> replayed = {captured(1, "linear", "trunk()"),
                                                                     captured(2, "markov_head", "draft<1>(int)")};
  const auto samples = tracer->end_step(replayed);
  ASSERT_TRUE(samples.ok()) << samples.status().message();
  ASSERT_EQ(samples->size(), 6u);
  EXPECT_EQ((*samples)[0].operation, "embed");
  EXPECT_EQ((*samples)[0].kernel, "embed_rows");
  EXPECT_DOUBLE_EQ((*samples)[0].begin_us, 30);
  EXPECT_DOUBLE_EQ((*samples)[0].cost.bytes, 64);
  EXPECT_EQ((*samples)[1].operation, "kernel") << "nobody's";
  EXPECT_EQ((*samples)[2].operation, "linear");
  EXPECT_EQ((*samples)[2].layer, 3);
  EXPECT_EQ((*samples)[2].lane, 7);
  EXPECT_DOUBLE_EQ((*samples)[2].cost.bytes, 100);
  EXPECT_DOUBLE_EQ((*samples)[3].cost.bytes, 0);
  EXPECT_EQ((*samples)[4].operation, "markov_head");
  EXPECT_EQ((*samples)[4].kernel, "draft<1>");
  tracer->stop();
  EXPECT_EQ(planted.num_closed, 1);
}

TEST(RecordTracer, WhatDoesNotFitIsRefused) {
  Planted planted;
  const auto tracer = tracer_of(planted);
  ASSERT_TRUE(tracer->start().ok());
  const std::vector<std::shared_ptr<const CapturedStep>> replayed = {captured(1, "linear", "trunk()")};
  tracer->begin_step();
  EXPECT_THAT(tracer->end_step(replayed).status().message(), HasSubstr("there are records of 0"));
  tracer->begin_step();
  planted.records = {kernel("trunk()", 40, 8, 11)};
  EXPECT_THAT(tracer->end_step(replayed).status().message(), HasSubstr("the capture was cut off"));
  tracer->begin_step();
  planted.records = {kernel("other()", 40, 8, 11), kernel("tail()", 45, 8, 12)};
  EXPECT_THAT(tracer->end_step(replayed).status().message(), HasSubstr("other()"));
}

// An executor told to trace a device asks its tracer, and its launches and results are those of any other step.
TEST(RecordTracer, TheExecutorAsksItAroundEachTracedStep) {
  const LoadedModel loaded = load_mini(DeviceChoice::kEmulated);
  const auto step = make_mini_step(loaded, 2, 20);
  Planted planted;
  ModelExecutor& executor = step->executor();
  const std::uint64_t plain = step->run({}, 1)->output_hash;
  executor.set_device_tracer(tracer_of(planted));
  TracedStep traced;
  executor.set_trace(&traced);
  planted.now_us = 50;
  EXPECT_EQ(step->run({}, 1)->output_hash, plain);
  EXPECT_TRUE(traced.samples.empty()) << "the device's take the host's place";
  DeviceRecord record = kernel("sampler(int)", 60, 1, 0);
  record.launched_us = 50;  // the clock stands still: inside the last call
  planted.records = {record};
  executor.add_device_samples(traced);
  EXPECT_TRUE(traced.on_device);
  EXPECT_EQ(traced.device_fault, "");
  ASSERT_EQ(traced.device.size(), 1u);
  EXPECT_NE(traced.device[0].operation, "kernel");
  EXPECT_DOUBLE_EQ(traced.device[0].begin_us, 10);
  executor.set_trace(nullptr);
  EXPECT_EQ(planted.num_closed, 1);
  TracedStep untraced;
  executor.add_device_samples(untraced);
  EXPECT_FALSE(untraced.on_device);

  // Without records the host's samples are what there is.
  executor.set_device_tracer(make_record_tracer(
      []() -> Result<std::unique_ptr<DeviceRecorder>> { return failed_precondition("no records here"); }));
  TracedStep host;
  executor.set_trace(&host);
  EXPECT_EQ(step->run({}, 1)->output_hash, plain);
  executor.add_device_samples(host);
  EXPECT_FALSE(host.on_device);
  EXPECT_FALSE(host.samples.empty());
  executor.set_trace(nullptr);
}

}  // namespace
}  // namespace fathom
