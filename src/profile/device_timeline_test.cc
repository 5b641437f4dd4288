#include "profile/device_timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace fathom {
namespace {

using testing::HasSubstr;

// Two calls: one of two kernels, one of a kernel and a copy, repeated twice.
CapturedStep captured() {
  CapturedStep step;
  step.calls = {{{0, "linear", "mma"}, 1, {100, 200}, 0, 2}, {{1, "kv_write", "simt"}, 2, {10, 20}, 2, 2}};
  step.nodes = {{NodeKind::kKernel, "void gemm<int>(int)", 1, 32, 0},
                {NodeKind::kKernel, "reduce(float*)", 1, 32, 0},
                {NodeKind::kEvent, "", 0, 0, -1},
                {NodeKind::kCopy, "", 0, 0, 1},
                {NodeKind::kKernel, "write(float*)", 1, 32, 1}};
  step.segments = {{0, 0, 1}, {1, 1, 1}};
  return step;
}

std::vector<DeviceRecord> records() {
  return {{NodeKind::kKernel, "reduce(float*)", 120, 125, 7, 1, 12},
          {NodeKind::kKernel, "gemm<int>(int)", 110, 118, 7, 1, 11},
          {NodeKind::kCopy, "", 126, 127, 7, 1, 14},
          {NodeKind::kKernel, "write(float*)", 130, 131, 7, 1, 15}};
}

TEST(DeviceTimeline, RecordsFindTheirCallsAndTheCostIsCountedOnce) {
  NodePlaces places;
  const auto calls = calls_of_records(captured(), records(), 100, places);
  ASSERT_TRUE(calls.ok()) << calls.status().message();
  ASSERT_EQ(calls->size(), 4u);
  EXPECT_EQ((*calls)[0].kernel, "gemm<int>");
  EXPECT_EQ((*calls)[0].operation, "linear");
  EXPECT_DOUBLE_EQ((*calls)[0].begin_us, 10);
  EXPECT_DOUBLE_EQ((*calls)[0].bytes, 100);
  EXPECT_DOUBLE_EQ((*calls)[1].bytes, 0);
  EXPECT_EQ((*calls)[2].operation, "kv_write");
  EXPECT_EQ((*calls)[2].kernel, "copy");
  EXPECT_DOUBLE_EQ((*calls)[2].bytes, 20) << "both repeats";
  EXPECT_EQ(places.at(11), 0);
  EXPECT_EQ(places.at(15), 4);
  EXPECT_TRUE(calls_of_records(captured(), records(), 100, places).ok());
}

TEST(DeviceTimeline, WhatDoesNotFitTheGraphIsRefused) {
  NodePlaces places;
  auto cut = records();
  cut.pop_back();
  EXPECT_THAT(calls_of_records(captured(), cut, 0, places).status().message(), HasSubstr("the capture was cut off"));
  EXPECT_THAT(calls_of_records(captured(), {}, 0, places).status().message(), HasSubstr("0 records"));
  auto renamed = records();
  renamed[1].kernel = "gemm<float>(int)";
  EXPECT_THAT(calls_of_records(captured(), renamed, 0, places).status().message(), HasSubstr("gemm<float>"));
  auto twice = records();
  twice[0].graph_node = 11;
  EXPECT_THAT(calls_of_records(captured(), twice, 0, places).status().message(), HasSubstr("recorded twice"));
  ASSERT_TRUE(calls_of_records(captured(), records(), 0, places).ok());
  auto swapped = records();
  std::swap(swapped[0].graph_node, swapped[1].graph_node);
  EXPECT_THAT(calls_of_records(captured(), swapped, 0, places).status().message(), HasSubstr("another place"));
}

TEST(DeviceTimeline, AKernelThatBeganEarlyIsCountedFromTheEndOfTheOneItWaitsFor) {
  // All three begin together, the last one's end is the second's too; another stream's keeps its time.
  std::vector<DeviceRecord> early = {{NodeKind::kKernel, "a", 10, 30, 7, 1, 11},
                                     {NodeKind::kKernel, "b", 11, 35, 7, 1, 12},
                                     {NodeKind::kKernel, "c", 12, 35, 7, 1, 13},
                                     {NodeKind::kKernel, "other", 12, 20, 8, 1, 14},
                                     {NodeKind::kKernel, "d", 36, 40, 7, 1, 15}};
  std::reverse(early.begin(), early.end());
  order_records(early);
  std::string order;
  std::vector<double> times;
  for (const DeviceRecord& record : early)
    order += record.kernel + " ", times.push_back(record.end_us - record.begin_us);
  EXPECT_EQ(order, "a b other c d ");
  EXPECT_THAT(times, testing::ElementsAre(20, 5, 8, 0, 4));

  NodePlaces places;
  auto overlapping = records();
  overlapping[0].begin_us = 111;
  const auto calls = calls_of_records(captured(), overlapping, 100, places);
  ASSERT_TRUE(calls.ok()) << calls.status().message();
  EXPECT_DOUBLE_EQ((*calls)[1].begin_us, 18);
  EXPECT_DOUBLE_EQ((*calls)[1].time_us, 7);
}

TEST(DeviceTimeline, SegmentsLieEndToEnd) {
  const std::vector<double> times = {8, 3};
  const auto calls = calls_of_segments(captured(), times, 50);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_DOUBLE_EQ(calls[0].begin_us, 50);
  EXPECT_DOUBLE_EQ(calls[1].begin_us, 58);
  EXPECT_DOUBLE_EQ(calls[1].time_us, 3);
  EXPECT_DOUBLE_EQ(calls[1].flops, 40);
}

}  // namespace
}  // namespace fathom
