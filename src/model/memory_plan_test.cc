#include "model/memory_plan.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(MemoryPlan, BuffersThatLiveTogetherNeverOverlap) {
  MemoryPlan plan;
  plan.add("streams", 1000);
  plan.add("q", 5000, Phase::kQueries, Phase::kAttention);
  plan.add("u", 3000, Phase::kAttentionInputs, Phase::kCacheWrites);
  plan.add("scores", 7000, Phase::kIndex, Phase::kIndex);
  plan.add("o", 5000, Phase::kAttention, Phase::kOutput);
  plan.add("ids", 10, Phase::kRoute, Phase::kExperts);
  plan.add("logits", 9000, Phase::kHead, Phase::kHead);
  plan.place();
  for (const MemoryPlan::Entry& a : plan.entries()) {
    EXPECT_EQ(a.offset_bytes % 256, 0) << a.name;
    EXPECT_LE(a.offset_bytes + a.num_bytes, plan.total_bytes()) << a.name;
    for (const MemoryPlan::Entry& b : plan.entries()) {
      if (&a == &b || a.last < b.first || b.last < a.first) continue;
      EXPECT_TRUE(a.offset_bytes + a.num_bytes <= b.offset_bytes || b.offset_bytes + b.num_bytes <= a.offset_bytes)
          << a.name << " and " << b.name;
    }
  }
  EXPECT_LT(plan.total_bytes(), 1000 + 5000 + 3000 + 7000 + 5000 + 9000);
}

}  // namespace
}  // namespace fathom
