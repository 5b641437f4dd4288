// select_topk on CUDA: how many blocks share a row, and what of it they keep in shared memory.
#pragma once

#include <cstdint>

#include "base/units.h"

namespace fathom::cuda {

inline constexpr int kTopkThreads = 1024;
inline constexpr int kTopkBins = 1024;         // one a thread
inline constexpr int kTopkCandidates = 512;    // so few are ranked one by one
inline constexpr int kTopkMaxCluster = 8;      // the largest that every device with clusters offers
inline constexpr int kTopkBlockScores = 4096;  // a block for every so many scores, while multiprocessors are free

struct TopkTiling {
  int cluster = 1;                    // blocks of one row; each takes a run of its entries
  std::int64_t scores_in_shared = 0;  // of a block; a longer run is read from memory again in every pass
};

// From the rows and the longest row alone. `clusters`: the code that runs has them.
constexpr TopkTiling topk_tiling(std::int64_t num_rows, std::int64_t max_entries, std::int32_t num_multiprocessors,
                                 std::int64_t shared_limit_bytes, bool clusters) {
  TopkTiling tiling;
  const std::int64_t multiprocessors = num_multiprocessors > 0 ? num_multiprocessors : 132;
  while (clusters && tiling.cluster < kTopkMaxCluster && ceil_div(max_entries, tiling.cluster) > kTopkBlockScores &&
         num_rows * tiling.cluster * 2 <= multiprocessors) {
    tiling.cluster *= 2;
  }
  const std::int64_t run = round_up(ceil_div(max_entries, tiling.cluster), 4);
  const std::int64_t room = (shared_limit_bytes - 24 * 1024) / 4;  // beside the histograms and lists
  tiling.scores_in_shared = run < room ? run : room / 4 * 4;
  if (tiling.scores_in_shared < 0) tiling.scores_in_shared = 0;
  return tiling;
}

}  // namespace fathom::cuda
