#include "engine/draft_streams.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cpu/cpu_backend.h"

namespace fathom {
namespace {

constexpr std::int64_t kRowBytes = 32;
constexpr StateSlot kFrom(0), kTo(1);

class DraftStreamsOf : public ::testing::Test {
 protected:
  void fill(std::int64_t row, int value) { std::fill_n(streams_.row(row), kRowBytes, std::byte(value)); }
  int first_of(std::int64_t row) { return static_cast<int>(*streams_.row(row)); }
  void note(StateSlot slot, std::int64_t first, std::int64_t count) {
    const std::vector<TokenId> tokens(static_cast<std::size_t>(count), static_cast<TokenId>(first));
    streams_.note(slot, first, tokens);
  }

  CpuBackend backend_{1};
  DraftStreams streams_ = *DraftStreams::make(backend_, kRowBytes, 2, 2);
};

TEST_F(DraftStreamsOf, TheLastPositionsWithoutAHoleAreHere) {
  note(kFrom, 0, 3);
  note(kFrom, 3, 4);
  EXPECT_EQ(streams_.begin(kFrom), 0);
  EXPECT_EQ(streams_.end(kFrom), 7);
  EXPECT_EQ(streams_.token_of(kFrom, 2), 0);
  EXPECT_EQ(streams_.token_of(kFrom, 6), 3);
  note(kFrom, 7, DraftStreams::kKept);
  EXPECT_EQ(streams_.begin(kFrom), 7);
  note(kFrom, 30, 2);
  EXPECT_EQ(streams_.begin(kFrom), 30) << "behind a hole";
  note(kFrom, 32, 2);
  note(kFrom, 33, 1);
  EXPECT_EQ(streams_.begin(kFrom), 30) << "taken back by a position that is here";
  EXPECT_EQ(streams_.end(kFrom), 34);
  note(kFrom, 12, 1);
  EXPECT_EQ(streams_.begin(kFrom), 12) << "taken back to before what is here";
  EXPECT_EQ(streams_.end(kFrom), 13);
  EXPECT_EQ(streams_.end(kTo), 0);
}

// A step that crosses a block's end with accepted drafts keeps its last position, and the one before the end besides.
TEST_F(DraftStreamsOf, AResumePointTakesThePositionBeforeItsBoundary) {
  const ResumeCopy save{kFrom, ResumeSlot(1), 128}, restore{kTo, ResumeSlot(1), 128};
  note(kFrom, 130, 1);
  fill(streams_.row_of(kFrom, 127), 1);  // of a position long gone
  fill(streams_.boundary_row(kFrom), 2);
  streams_.note_boundary(kFrom, 127);
  const auto saved = streams_.save(save);
  ASSERT_TRUE(saved.ok() && *saved);
  fill(streams_.boundary_row(kFrom), 3);
  note(kTo, 128, 4);  // of whoever had the slot
  ASSERT_TRUE(streams_.restore(restore, true).ok());
  EXPECT_EQ(first_of(streams_.row_of(kTo, 127)), 2);
  EXPECT_EQ(streams_.begin(kTo), 127);
  EXPECT_EQ(streams_.end(kTo), 128);
}

TEST_F(DraftStreamsOf, AResumePointWithoutStreamsSaysSo) {
  const ResumeCopy save{kFrom, ResumeSlot(0), 128}, restore{kTo, ResumeSlot(0), 128};
  note(kFrom, 128, 3);
  streams_.note_boundary(kFrom, 255);
  const auto saved = streams_.save(save);
  ASSERT_TRUE(saved.ok());
  EXPECT_FALSE(*saved);
  note(kTo, 120, 8);
  ASSERT_TRUE(streams_.restore(restore, false).ok());
  EXPECT_EQ(streams_.end(kTo), 0) << "nothing is kept";
}

}  // namespace
}  // namespace fathom
