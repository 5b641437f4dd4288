// linear on CUDA: the tile of a block and the grid, from weight shapes and the number of rows alone.
#pragma once

#include <cstdint>

#include "base/units.h"

namespace fathom::cuda {

inline constexpr int kLinearWarps = 8;     // warp w sums columns of the 128-wide chunks w, w + 8, ...
inline constexpr int kLinearChunk = 128;   // columns of one scale block
inline constexpr int kLinearMaxGroup = 8;  // weights of one launch

// A block makes 16 * row_tiles outputs of 8 * token_tiles rows of x. Neither enters the arithmetic of one
// output: the order over K is the chunk order within a warp, then the warps in ascending order.
struct LinearTile {
  int row_tiles = 1;
  int token_tiles = 1;
  std::int64_t shared_bytes() const {
    return static_cast<std::int64_t>(kLinearWarps) * 16 * row_tiles * (8 * token_tiles + 1) * 4;
  }
};

constexpr LinearTile linear_tile(std::int64_t num_tokens, std::int64_t in_features) {
  // Few columns leave a warp one chunk: two tiles of rows keep enough loads in flight.
  if (num_tokens <= 8) return {in_features >= 2048 ? 1 : 2, 1};
  if (num_tokens <= 16) return {2, 2};
  if (num_tokens <= 32) return {2, 4};
  return {2, 8};
}

// Tiles of linear/mma_tiled: bf16 in shared memory, two of x and one of weights.
inline constexpr int kLinearTiledRows = 64, kLinearTiledTokens = 128;
inline constexpr int kLinearTiledStride = kLinearChunk + 8;  // eight lanes' pieces fall into different banks
inline constexpr std::int64_t kLinearTiledSharedBytes =
    (2 * kLinearTiledTokens + kLinearTiledRows) * kLinearTiledStride * 2;

// Whether a call fills enough tiles of the larger kind to pay; either way an output has the same bits.
constexpr bool linear_uses_tiles(std::int64_t num_tokens, std::int64_t num_row_tiles) {
  const std::int64_t token_tiles = (num_tokens + kLinearTiledTokens - 1) / kLinearTiledTokens;
  return 4 * num_tokens >= 3 * token_tiles * kLinearTiledTokens && num_row_tiles * token_tiles >= 128;
}

// linear/wgmma: chunks in shared memory, aligned to 1,024 bytes: two of weights, three of x.
inline constexpr int kLinearWgmmaRows = 128;
constexpr std::int64_t linear_wgmma_shared_bytes(std::int64_t tokens) {
  return (2 * kLinearWgmmaRows + 3 * tokens) * kLinearChunk * 2 + 1024;
}
// Rows of x in a block's tile; 0 where linear/mma's smaller tiles are ahead: too few rows, or blocks for too few of the
// multiprocessors.
constexpr int linear_wgmma_tokens(std::int64_t num_tokens, std::int64_t num_row_tiles) {
  constexpr std::int64_t kLeastBlocks = 128;
  if (num_tokens <= 32) return 0;
  if (num_tokens > 64 && num_row_tiles * ((num_tokens + 127) / 128) >= kLeastBlocks) return 128;
  return num_row_tiles * ((num_tokens + 63) / 64) >= kLeastBlocks ? 64 : 0;
}

// linear/wgmma where such tiles are few: `blocks` of a cluster share the sums of a tile of 128 weight rows and `tokens`
// rows of x; 0 where the other kernels are ahead.
struct LinearSplit {
  int tokens = 0;
  int blocks = 0;
};
inline constexpr int kLinearSplitStages = 4;                     // chunks of x in shared memory
inline constexpr int kLinearSplitStride = kLinearWgmmaRows + 4;  // floats of a row of x among the sums
constexpr std::int64_t linear_split_shared_bytes(const LinearSplit& split) {
  const std::int64_t sums =
      split.blocks > 1 ? kLinearWarps / split.blocks * split.tokens * kLinearSplitStride * std::int64_t{4} : 0;
  return kLinearSplitStages * split.tokens * kLinearChunk * 2 + sums + 1024;
}
// The bounds are measured (docs/gpu_h200.md). A card of 132 multiprocessors takes 16 clusters of eight blocks at once
// and 32 of four, less where the last of its groups of multiprocessors is short: more would wait for a second turn.
constexpr LinearSplit linear_split(std::int64_t num_tokens, std::int64_t num_row_tiles, std::int64_t in_features,
                                   bool has_codes) {
  if (num_tokens <= 16) return {};
  if (num_tokens > 128 && num_row_tiles * ((num_tokens + 127) / 128) >= 128) return {};  // larger tiles fill the card
  const int tokens = num_tokens <= 32 ? 32 : 64;
  const std::int64_t tiles = num_row_tiles * ((num_tokens + tokens - 1) / tokens);
  int blocks = tiles <= 12 ? 8 : tiles <= 24 ? 4 : tiles <= 66 ? 2 : 1;
  const bool between = (tiles > (tokens == 32 ? 12 : 24) && tiles < 48) || (tiles > 66 && tiles < 100);
  if (num_tokens <= 64 && between) return {};
  // bf16 weights alone are read at the memory's speed by the other kernels.
  if (blocks == 1 && !has_codes) return {};
  while (blocks > in_features / kLinearChunk) blocks /= 2;
  return {tokens, blocks};
}

// Rows of x after AQ, for calls of more than eight rows (smaller calls quantise in registers), or in the order that
// linear/wgmma asks for.
constexpr std::int64_t linear_workspace_bytes(std::int64_t max_tokens, std::int64_t in_features) {
  return round_up(max_tokens * in_features * 2, 256);
}

}  // namespace fathom::cuda
