// Which window keys each row of a step sees, by hand (spec 2.4.6, 2.9, 2.10).
#include "model/step_input.h"

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"

namespace fathom {
namespace {

using Windows = std::vector<std::pair<std::int32_t, std::int32_t>>;

class StepInputWindows : public ::testing::Test {
 protected:
  Windows windows(const SequenceRows& rows) {
    StepInputLimits limits;
    limits.max_tokens = 16;
    limits.max_sequences = limits.max_logit_rows = 1;
    limits.max_context_entries = limits.max_window_entries = 16;
    StepInput input = std::move(StepInput::make(backend_, limits)).value();
    input.clear();
    input.add(rows);
    EXPECT_TRUE(input.upload().ok());
    Windows seen;
    for (std::int32_t i = 0; i < input.num_tokens(); ++i) {
      seen.emplace_back(input.rows().window_begin.as<std::int32_t>()[i], input.rows().window_end.as<std::int32_t>()[i]);
    }
    return seen;
  }
  SequenceRows rows_at(std::int64_t start, std::size_t count) {
    SequenceRows rows;
    rows.tokens = std::span(tokens_).first(count);
    rows.start = start;
    rows.context_table = rows.window_table = table_;
    return rows;
  }

  CpuBackend backend_{1};
  std::vector<TokenId> tokens_ = std::vector<TokenId>(16, 3);
  std::vector<std::int32_t> table_ = {0, 1, 2};
};

TEST_F(StepInputWindows, OrdinaryRowsSeeThemselvesAnd127Before) {
  EXPECT_EQ(windows(rows_at(0, 2)), (Windows{{0, 1}, {0, 2}}));
  EXPECT_EQ(windows(rows_at(126, 4)), (Windows{{0, 127}, {0, 128}, {1, 129}, {2, 130}}));
}

// p = 39 processed: five rows at 40 .. 44 see the 40 context keys and all five block keys.
TEST_F(StepInputWindows, ABlockSeesTheContextAndAllOfItself) {
  SequenceRows block = rows_at(40, 5);
  block.block_visible = true;
  EXPECT_EQ(windows(block), Windows(5, {0, 45}));
  // p = 129: min(128, p + 1) = 128 context keys, 2 .. 129.
  block.start = 130;
  EXPECT_EQ(windows(block), Windows(5, {2, 135}));
}

TEST_F(StepInputWindows, TheFloorHidesKeysThatWereNeverMade) {
  SequenceRows rows = rows_at(1, 2);
  rows.window_floor = 1;
  EXPECT_EQ(windows(rows), (Windows{{1, 2}, {1, 3}}));
  rows = rows_at(200, 2);
  rows.window_floor = 198;
  EXPECT_EQ(windows(rows), (Windows{{198, 201}, {198, 202}}));
}

TEST_F(StepInputWindows, WindowOnlyRowsNeedNoContextTable) {
  SequenceRows rows = rows_at(300, 1);
  rows.context_table = {};
  rows.window_only = true;
  EXPECT_EQ(windows(rows), (Windows{{173, 301}}));
}

TEST_F(StepInputWindows, TheContextTableCanBeReadToItsCapacity) {
  StepInput input = std::move(StepInput::make(backend_, {16, 1, 1, 8, 16})).value();
  for (const std::int64_t start : {0, 300}) {
    input.clear();
    input.add(rows_at(start, 2));
    ASSERT_TRUE(input.upload().ok());
    EXPECT_EQ(input.rows().context_table.shape, Shape({8})) << "at " << start;
    EXPECT_EQ(input.rows().context_table.as<std::int32_t>()[2], 2);
  }
}

TEST_F(StepInputWindows, SequencesAreShortOnlyWhereTheCallerSaysSo) {
  StepInput input = std::move(StepInput::make(backend_, {16, 1, 1, 16, 16})).value();
  input.clear();
  input.add(rows_at(0, 2));
  ASSERT_TRUE(input.upload().ok());
  EXPECT_FALSE(input.rows().short_sequences);
  input.set_short_sequences(true);
  EXPECT_TRUE(input.rows().short_sequences);
  input.clear();
  EXPECT_FALSE(input.rows().short_sequences) << "each step says it anew";
}

}  // namespace
}  // namespace fathom
