// Which rows of an MTP block a step computes, by position alone.
#include "engine/mtp_passes.h"

#include <gtest/gtest.h>

#include <array>

#include "backend/cpu/cpu_backend.h"

namespace fathom {
namespace {

class MtpPassesOf : public ::testing::Test {
 protected:
  // Rows [start, start + count) with a token drawn behind them, and drafts wanted.
  struct Step {
    Step(StateSlot slot, std::int64_t start, std::int32_t count, StepClass step_class, std::int32_t num_proposals) {
      step.start = start;
      step.num_tokens = count;
      step.num_logits = 1;
      step.num_proposals = num_proposals;
      step.step_class = step_class;
      result.tokens.resize(1);
      result.tokens[0].token = 9;
      tokens.assign(static_cast<std::size_t>(count), 4);
      sequence.step = &step;
      sequence.result = &result;
      sequence.tokens = tokens;
      sequence.state_slot = slot;
      sequence.window_table = kBlocks;
    }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

    static constexpr std::array<std::int32_t, 4> kBlocks{0, 1, 2, 3};
    SequenceStep step;
    SequenceResult result;
    std::vector<TokenId> tokens;
    DraftedSequence sequence;
  };

  // The drafter keeps the last committed position's streams of each step that it runs in.
  void keep(const Step& step) {
    const std::int64_t last = step.sequence.committed_length() - 1;
    streams_.note(step.sequence.state_slot, last, {&step.tokens.back(), 1});
  }
  MtpPass plan(const Step& step) {
    std::vector<MtpPass> passes;
    passes_.plan({&step.sequence, 1}, passes);
    keep(step);
    EXPECT_LE(passes.size(), 1u);
    return passes.empty() ? MtpPass() : passes[0];
  }

  CpuBackend backend_{1};
  DraftStreams streams_ = *DraftStreams::make(backend_, 16, 2, 2);
  MtpPasses passes_{streams_, 2, 2, 256};
};

TEST_F(MtpPassesOf, FollowTheTrunkByOneRow) {
  passes_.create(StateSlot(0));
  const Step prompt(StateSlot(0), 0, 20, StepClass::kChunk, 3);
  const MtpPass first = plan(prompt);
  EXPECT_EQ(first.first, 1);  // position 0 has no streams before it
  EXPECT_EQ(first.num_rows, 20);
  EXPECT_EQ(first.num_wanted, 3);
  const Step decode(StateSlot(0), 20, 1, StepClass::kStep, 3);
  const MtpPass next = plan(decode);
  EXPECT_EQ(next.first, 21);
  EXPECT_EQ(next.num_rows, 1);
  EXPECT_EQ(passes_.floor_of(decode.sequence), 1);
}

// A conversation that goes back and on otherwise: rows of what was there before are not seen.
TEST_F(MtpPassesOf, RowsOfWhatWasTakenBackAreGone) {
  passes_.create(StateSlot(0));
  const Step prompt(StateSlot(0), 0, 20, StepClass::kChunk, 3);
  plan(prompt);
  const Step other(StateSlot(0), 15, 3, StepClass::kChunk, 3);
  const MtpPass again = plan(other);
  EXPECT_EQ(again.first, 16);  // the streams of 14 are not kept
  EXPECT_EQ(again.num_rows, 3);
  EXPECT_EQ(again.num_wanted, 3);
  EXPECT_EQ(passes_.floor_of(other.sequence), 16);
}

TEST_F(MtpPassesOf, AResumePointKnowsWhichRowsItsBlockHolds) {
  const ResumeCopy save{StateSlot(0), ResumeSlot(1), kBlockTokens};
  const ResumeCopy restore{StateSlot(1), ResumeSlot(1), kBlockTokens};
  const Step behind(StateSlot(1), kBlockTokens, 4, StepClass::kChunk, 2);
  for (const bool drafting : {true, false}) {
    passes_.create(StateSlot(0));
    passes_.create(StateSlot(1));
    const Step prompt(StateSlot(0), 0, kBlockTokens, StepClass::kChunk, drafting ? 1 : 0);
    drafting ? static_cast<void>(plan(prompt)) : keep(prompt);
    ASSERT_TRUE(passes_.save(save).ok());
    ASSERT_TRUE(passes_.restore(restore).ok());
    const MtpPass pass = plan(behind);
    EXPECT_EQ(pass.first, kBlockTokens) << "its streams came with it";
    EXPECT_EQ(pass.num_rows, 5);
    EXPECT_EQ(passes_.floor_of(behind.sequence), drafting ? 1 : kBlockTokens) << "rows never made are not seen";
  }
}

TEST_F(MtpPassesOf, ANewSequenceHasNothingOfTheSlotsLast) {
  passes_.create(StateSlot(0));
  const Step last(StateSlot(0), 0, 24, StepClass::kChunk, 3);
  plan(last);
  passes_.create(StateSlot(0));
  const Step prompt(StateSlot(0), 0, 24, StepClass::kChunk, 3);
  const MtpPass pass = plan(prompt);
  EXPECT_EQ(pass.first, 1);
  EXPECT_EQ(pass.num_rows, 24);
  EXPECT_EQ(pass.num_from_kept, 0);
}

TEST_F(MtpPassesOf, DraftsEndWhereTheWindowBlocksDo) {
  passes_.create(StateSlot(0));
  Step prompt(StateSlot(0), 0, 126, StepClass::kChunk, 5);
  prompt.sequence.window_table = std::span(Step::kBlocks).first(1);
  EXPECT_EQ(plan(prompt).num_wanted, 2);
}

}  // namespace
}  // namespace fathom
