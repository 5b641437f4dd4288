// index_scores on CUDA: blocks of a row from the number of rows alone; each strides over the row's keys.
#pragma once

#include <cstdint>

namespace fathom::cuda {

inline constexpr int kIndexWarps = 8;
inline constexpr int kIndexWarpKeys = 32;  // two tiles of 16: they share every read of the query
inline constexpr int kIndexBlockKeys = kIndexWarps * kIndexWarpKeys;  // keys a block takes per stride
inline constexpr int kIndexMaxHeads = 128;

// Enough blocks to fill the device about twice, at least one a row; a row with fewer keys leaves some idle.
constexpr int index_blocks_per_row(std::int64_t num_rows, std::int32_t num_multiprocessors) {
  const std::int64_t wanted =
      (2 * static_cast<std::int64_t>(num_multiprocessors > 0 ? num_multiprocessors : 132) + num_rows - 1) / num_rows;
  return static_cast<int>(wanted < 1 ? 1 : wanted > 264 ? 264 : wanted);
}
constexpr std::int64_t index_shared_bytes(std::int32_t num_heads) {
  // Queries in fragment order, 16 words a lane and tile of 8 heads; head weights.
  const std::int64_t tiles = (num_heads + 7) / 8;
  return tiles * 32 * 64 + tiles * 8 * 4;
}

}  // namespace fathom::cuda
