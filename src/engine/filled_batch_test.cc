// The shapes that captured steps and draft passes are filled up to.
#include "engine/filled_batch.h"

#include <gtest/gtest.h>

#include <set>

namespace fathom {
namespace {

TEST(FilledBatch, FewBatchesServeAll) {
  std::set<std::int32_t> filled;
  for (std::int32_t batch = 1; batch <= 64; ++batch) {
    const std::int32_t to = filled_batch(batch);
    EXPECT_GE(to, batch);
    EXPECT_LE(2 * to, 3 * batch) << "at most half as many again";
    EXPECT_EQ(filled_batch(to), to);
    filled.insert(to);
  }
  EXPECT_EQ(filled, (std::set<std::int32_t>{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}));
}

}  // namespace
}  // namespace fathom
