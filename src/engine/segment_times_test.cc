#include "engine/segment_times.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

// A backend that replays nothing, and says what the last replay noted.
class NotingBackend final : public Backend {
 public:
  const DeviceInfo& device() const override { return device_; }
  DType activation_dtype() const override { return DType::kF32; }
  bool is_host_memory() const override { return true; }
  Result<DeviceMemory> allocate(std::int64_t, std::string_view) override { return DeviceMemory(); }
  Status upload(std::byte*, const std::byte*, std::int64_t) override { return {}; }
  Status download(std::byte*, const std::byte*, std::int64_t) override { return {}; }
  Status copy(std::byte*, const std::byte*, std::int64_t) override { return {}; }
  Status finish() override { return {}; }
  Result<View> place_weight(const View& host, bool) override { return host; }
  Result<const void*> place_experts(std::vector<ExpertWeights>&, std::int32_t) override {
    return static_cast<const void*>(nullptr);
  }
  ExecutionContext make_context() override { return {}; }
  std::shared_ptr<const CapturedStep> last_captured() const override { return step; }
  Result<std::vector<double>> segment_times_us(const CapturedStep&) override { return times; }

  std::shared_ptr<CapturedStep> step = std::make_shared<CapturedStep>();
  std::vector<double> times;

 private:
  DeviceInfo device_;
};

TEST(SegmentClock, TimesOneReplayInManyOfEachKey) {
  SegmentClock clock(2);
  const CaptureKey one{0, 4, 4, 4, true}, other{0, 5, 5, 5, true};
  std::vector<std::int64_t> timed;
  for (std::int64_t i = 1; i <= 260; ++i) {
    if (clock.next(one) == SegmentTiming::kLayers) timed.push_back(i);
  }
  EXPECT_EQ(timed, (std::vector<std::int64_t>{128, 160, 192, 224, 256}));
  EXPECT_EQ(clock.next(other), SegmentTiming::kNone);
  clock.turn(false);
  for (int i = 0; i < 300; ++i) EXPECT_EQ(clock.next(other), SegmentTiming::kNone);
}

TEST(SegmentClock, AddsUpWhatTheTimedReplaysNoted) {
  SegmentClock clock(2);
  NotingBackend backend;
  const CaptureKey key{0, 4, 4, 4, true}, draft{1, 4, 4, 4, true};
  const auto replay = [&](const CaptureKey& now, std::vector<std::int32_t> layers, std::vector<double> times) {
    backend.step->segments.clear();
    for (const std::int32_t layer : layers) backend.step->segments.push_back({layer, 0, 1});
    backend.times = std::move(times);
    for (std::int64_t i = 0; i < SegmentClock::kEvery; ++i) {
      static_cast<void>(clock.next(now));
      clock.read(backend);
    }
  };
  for (std::int64_t i = 1; i < SegmentClock::kFirst; ++i) {
    static_cast<void>(clock.next(key));
    static_cast<void>(clock.next(draft));
    clock.read(backend);
  }
  EXPECT_EQ(clock.times().head.num_samples, 0);
  replay(key, {-1, 0, 1, -1}, {1, 10, 20, 5});
  replay(key, {-1, 0, 1, -1}, {2, 11, 22, 7});
  replay(draft, {2, 3, 2}, {30, 4, 1});
  const SegmentTimes& times = clock.times();
  EXPECT_EQ(times.embedding.time_us, 3);
  EXPECT_EQ(times.embedding.num_samples, 2);
  ASSERT_EQ(times.layers.size(), 2u);
  EXPECT_EQ(times.layers[0].time_us, 21);
  EXPECT_EQ(times.layers[1].time_us, 42);
  EXPECT_EQ(times.head.time_us, 12);
  EXPECT_EQ(times.draft.time_us, 35);
  EXPECT_EQ(times.draft.num_samples, 1);
  // A step that was launched without a graph has nothing to read.
  backend.step = nullptr;
  for (std::int64_t i = 0; i < SegmentClock::kEvery; ++i) {
    static_cast<void>(clock.next(key));
    clock.read(backend);
  }
  EXPECT_EQ(times.head.num_samples, 2);
}

}  // namespace
}  // namespace fathom
