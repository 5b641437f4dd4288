// Row invariance at length: 700 tokens of the mini model in all numerics, every chunk size on tiny-random.
#include <numeric>

#include "row_invariance_checks.h"

namespace fathom::testing {
namespace {

const std::vector<std::int64_t> kChunks = {1, 2, 3, 4, 5, 7, 8, 31, 63, 64, 65, 127, 128, 129, 130, 255, 256, 257, 300};

TEST(RowInvarianceFull, MiniPlain) {
  check_chunk_sizes(source_path("models/mini-v4"), Numerics::plain(), 700, kChunks);
}
TEST(RowInvarianceFull, MiniVendor) {
  check_chunk_sizes(source_path("models/mini-v4"), Numerics::vendor(), 700, kChunks);
}
TEST(RowInvarianceFull, MiniServe) {
  check_chunk_sizes(source_path("models/mini-v4"), Numerics::serve(), 700, kChunks);
}

TEST(RowInvarianceFull, MiniThreadsAndNeighbours) {
  for (const Numerics& numerics : {Numerics::plain(), Numerics::vendor(), Numerics::serve()}) {
    check_threads_and_neighbours(source_path("models/mini-v4"), numerics, 700);
  }
}

void check_every_chunk_size(const Numerics& numerics) {
  std::vector<std::int64_t> chunks(300);
  std::iota(chunks.begin(), chunks.end(), 1);
  check_chunk_sizes(source_path("tests/data/models/tiny-random"), numerics, 310, chunks);
}
TEST(RowInvarianceFull, TinyRandomEveryChunkSizePlain) { check_every_chunk_size(Numerics::plain()); }
TEST(RowInvarianceFull, TinyRandomEveryChunkSizeVendor) { check_every_chunk_size(Numerics::vendor()); }
TEST(RowInvarianceFull, TinyRandomEveryChunkSizeServe) { check_every_chunk_size(Numerics::serve()); }

}  // namespace
}  // namespace fathom::testing
