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

// wgmma: a block is two warpgroups of 64 keys each.
inline constexpr int kIndexGroups = 2;
inline constexpr int kIndexGroupKeys = 64;
inline constexpr int kIndexTileBytes = 64 * 128 * 2 + 128;  // 64 heads of a query in bf16, spread over the banks

// Blocks that run at once, two a multiprocessor, dealt to the rows; never more than the longest row can use.
constexpr int index_groups_per_row(std::int64_t num_rows, std::int64_t max_keys, std::int32_t num_multiprocessors) {
  const std::int64_t wanted =
      2 * static_cast<std::int64_t>(num_multiprocessors > 0 ? num_multiprocessors : 132) / num_rows;
  const std::int64_t most = (max_keys + kIndexGroups * kIndexGroupKeys - 1) / (kIndexGroups * kIndexGroupKeys);
  const std::int64_t blocks = wanted < most ? wanted : most;
  return static_cast<int>(blocks < 1 ? 1 : blocks);
}
constexpr std::int64_t index_groups_shared_bytes(std::int32_t num_heads) {
  const std::int64_t tiles = (num_heads + 63) / 64;
  return tiles * (kIndexTileBytes + 64 * 4);
}

}  // namespace fathom::cuda
