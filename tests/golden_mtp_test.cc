// The classic MTP block against goldens made by code that is not ours (spec 2.9), whole and in pieces.
#include "draft_rig.h"

namespace fathom::testing {
namespace {

constexpr double kTolerance = 2e-5;

struct Drafts {
  std::vector<float> streams;  // the trunk's final ones, of every position
  std::vector<float> logits;   // of index 0, 1, ...
};

// The trunk, then the block, over the prompt in chunks; the block lags by one position.
Drafts draft_in_chunks(DraftRig& rig, std::span<const TokenId> ids, std::size_t chunk) {
  Drafts drafts;
  std::size_t drafted = 1;  // position of the next row: 0 has none
  for (std::size_t start = 0; start < ids.size(); start += chunk) {
    const std::size_t count = std::min(chunk, ids.size() - start);
    rig.forward(ids.subspan(start, count), static_cast<std::int64_t>(start));
    const std::vector<float> streams = DraftRig::to_host(rig.model().final_streams());
    drafts.streams.insert(drafts.streams.end(), streams.begin(), streams.end());
    const std::size_t width = drafts.streams.size() / (start + count);
    const std::size_t rows = start + count - drafted;
    if (rows == 0) continue;
    const std::vector<float> logits =
        rig.draft_mtp(ids.subspan(drafted, rows), static_cast<std::int64_t>(drafted),
                      std::span(drafts.streams).subspan((drafted - 1) * width, rows * width));
    drafts.logits.insert(drafts.logits.end(), logits.begin(), logits.end());
    drafted += rows;
  }
  return drafts;
}

std::span<const float> row_of(const std::vector<float>& logits, std::size_t index, std::int64_t vocab) {
  return std::span(logits).subspan(index * static_cast<std::size_t>(vocab), static_cast<std::size_t>(vocab));
}

void expect_argmax(const std::vector<float>& logits, const std::vector<std::int32_t>& golden, std::int64_t vocab) {
  ASSERT_EQ(logits.size(), golden.size() * static_cast<std::size_t>(vocab));
  for (std::size_t i = 0; i < golden.size(); ++i)
    EXPECT_EQ(argmax(row_of(logits, i, vocab)), golden[i]) << "index " << i;
}

TEST(GoldenMtp, MiniReference) {
  const Goldens goldens(source_path("tests/data/golden/mini-mtp/goldens.safetensors"));
  DraftRig rig(source_path("models/mini-v4"), Numerics::plain(), kReference);
  for (const std::string& prompt : goldens.prompts()) {
    SCOPED_TRACE(prompt);
    const std::vector<std::int32_t> ids = goldens.ints(prompt + ".ids");
    // len300 takes its time in the reference variants: in two chunks, so that it shows the lag as well.
    const Drafts drafts = draft_in_chunks(rig, ids, 260);
    const std::vector<std::int32_t> golden = goldens.ints(prompt + ".mtp_argmax");
    expect_argmax(drafts.logits, golden, rig.vocab_size());
    EXPECT_LE(relative_l2(row_of(drafts.logits, 0, rig.vocab_size()), goldens.floats(prompt + ".mtp_logits_first")),
              kTolerance);
    EXPECT_LE(relative_l2(row_of(drafts.logits, golden.size() - 1, rig.vocab_size()),
                          goldens.floats(prompt + ".mtp_logits_last")),
              kTolerance);
  }
}

TEST(GoldenMtp, TinyRandomReference) {
  const Goldens goldens(source_path("tests/data/golden/tiny-random/goldens.safetensors"));
  DraftRig rig(source_path("tests/data/models/tiny-random"), Numerics::plain(), kReference);
  for (const std::string prompt : {"rand7", "rand300"}) {
    SCOPED_TRACE(prompt);
    const std::vector<std::int32_t> ids = goldens.ints(prompt + ".ids");
    const Drafts drafts = draft_in_chunks(rig, ids, 512);
    const std::vector<std::int32_t> golden = goldens.ints(prompt + ".mtp_draft_argmax");
    expect_argmax(drafts.logits, golden, rig.vocab_size());
    EXPECT_LE(relative_l2(row_of(drafts.logits, golden.size() - 1, rig.vocab_size()),
                          goldens.floats(prompt + ".mtp_logits_last")),
              kTolerance);
  }
}

// The same bits in chunks of any size: the block's window and its lag cross chunk ends.
TEST(GoldenMtp, ChunksGiveTheSameBits) {
  const Goldens goldens(source_path("tests/data/golden/tiny-random/goldens.safetensors"));
  DraftRig rig(source_path("tests/data/models/tiny-random"), Numerics::plain(), kCpu);
  std::vector<std::int32_t> ids = goldens.ints("rand300.ids");
  ids.resize(140);
  const std::vector<float> whole = draft_in_chunks(rig, ids, 512).logits;
  for (const std::size_t chunk : {17u, 127u, 128u, 129u}) {
    EXPECT_EQ(draft_in_chunks(rig, ids, chunk).logits, whole) << "chunks of " << chunk;
  }
}

// The check bites: streams of the wrong position are far off.
TEST(GoldenMtp, StreamsOfTheWrongPositionAreSeen) {
  const Goldens goldens(source_path("tests/data/golden/mini-mtp/goldens.safetensors"));
  DraftRig rig(source_path("models/mini-v4"), Numerics::plain(), kCpu);
  const std::vector<std::int32_t> ids = goldens.ints("chat_memory.ids");
  rig.forward(ids, 0);
  const std::vector<float> streams = DraftRig::to_host(rig.model().final_streams());
  const std::size_t width = streams.size() / ids.size();
  const std::vector<float> logits = rig.draft_mtp(std::span(ids).subspan(1), 1, std::span(streams).subspan(width));
  EXPECT_GT(
      relative_l2(row_of(logits, ids.size() - 2, rig.vocab_size()), goldens.floats("chat_memory.mtp_logits_last")),
      1e-2);
}

}  // namespace
}  // namespace fathom::testing
