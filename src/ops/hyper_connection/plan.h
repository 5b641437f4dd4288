// hyper_connection on CUDA: how the 4 * hidden values of a row are split, and what is passed between launches.
#pragma once

#include <cstdint>

#include "base/units.h"

namespace fathom::cuda {

inline constexpr int kHcStreams = 4;
inline constexpr int kHcOutputs = 24;        // (2 + 4) * 4
inline constexpr int kHcSplitChannels = 64;  // channels (of all four streams) of one block
inline constexpr int kHcRowsPerBlock = 8;    // rows that share one read of fn
inline constexpr int kHcPartials = 32;       // 24 dots, the sum of squares, padding

// mma: blocks over the rows of one slice of channels; each reads its part of fn once for all its tiles of 8 rows.
constexpr std::int64_t hc_row_blocks(std::int64_t num_tokens) {
  const std::int64_t tiles = ceil_div(num_tokens, 8);
  return tiles < 8 ? tiles : 8;
}
constexpr std::int64_t hc_num_splits(std::int64_t hidden) { return ceil_div(hidden, kHcSplitChannels); }
constexpr std::int64_t hc_workspace_bytes(std::int64_t max_tokens, std::int64_t hidden) {
  // fused: partial sums; naive: sums, pre, and the collapsed row in bf16.
  const std::int64_t fused = max_tokens * hc_num_splits(hidden) * kHcPartials * 4;
  const std::int64_t naive = max_tokens * (kHcPartials + kHcStreams) * 4 + max_tokens * hidden * 2;
  return round_up(fused > naive ? fused : naive, 256);
}

}  // namespace fathom::cuda
