#include "profile/expert_counter.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(ExpertCounter, DistinctExpertsOfTrunkLayersAsAMean) {
  ExpertCounter counter;
  EXPECT_TRUE(counter.wants("route0"));
  EXPECT_TRUE(counter.wants("route42"));
  for (const char* other : {"route", "routemtp.0", "layer0", "attn1", "topk2", "logits"}) {
    EXPECT_FALSE(counter.wants(other)) << other;
  }
  EXPECT_EQ(counter.take(), 0);
  std::vector<std::int32_t> first = {0, 5, 5, 9, 0, 7}, second = {255, 255, 3, 3, 3, 3};
  const auto view = [](std::vector<std::int32_t>& ids) {
    return make_view(reinterpret_cast<std::byte*>(ids.data()), DType::kI32, {3, 2});
  };
  counter.write("route0", view(first));
  counter.write("route1", view(second));
  EXPECT_EQ(counter.take(), 3);  // {0, 5, 7, 9} and {3, 255}
  EXPECT_EQ(counter.take(), 0);
  counter.write("route0", view(second));
  EXPECT_EQ(counter.take(), 2);
}

}  // namespace
}  // namespace fathom
