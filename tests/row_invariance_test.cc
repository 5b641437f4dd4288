#include "row_invariance_checks.h"

namespace fathom::testing {
namespace {

const Numerics kAllNumerics[] = {Numerics::plain(), Numerics::vendor(), Numerics::serve()};
std::string tiny_random() { return source_path("tests/data/models/tiny-random"); }

TEST(RowInvariance, ChunkSizes) {
  for (const Numerics& numerics : kAllNumerics) {
    check_chunk_sizes(tiny_random(), numerics, 290, {1, 3, 8, 64, 127, 129, 256});
  }
}

TEST(RowInvariance, ThreadsAndNeighbours) {
  for (const Numerics& numerics : kAllNumerics) check_threads_and_neighbours(tiny_random(), numerics, 200);
}

// The reference sums in the same order too, but holds itself to a bound only.
TEST(RowInvariance, ReferenceToItsBound) {
  Runner runner(tiny_random(), Numerics::plain(), kReference, 64);
  const std::vector<TokenId> ids = make_ids(64, runner.vocab_size(), 7);
  CacheRig rig(runner.model(), 64, 1);
  const Picture whole = picture_of(rig, ids, 64);
  for (const std::int64_t chunk : {1, 5, 63}) {
    EXPECT_LE(relative_l2(picture_of(rig, ids, chunk).logits, whole.logits), 2e-5) << "chunks of " << chunk;
  }
}

// The check bites: another prompt, even in its first token only, gives another picture.
TEST(RowInvariance, OtherTokensShow) {
  Runner runner(tiny_random(), Numerics::serve(), kCpu, 130);
  std::vector<TokenId> ids = make_ids(130, runner.vocab_size(), 7);
  CacheRig rig(runner.model(), 130, 1);
  const Picture before = picture_of(rig, ids, 130);
  ids[0] = (ids[0] + 1) % static_cast<TokenId>(runner.vocab_size());
  EXPECT_FALSE(picture_of(rig, ids, 130) == before);
}

}  // namespace
}  // namespace fathom::testing
