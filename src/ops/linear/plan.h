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

// Rows of x after AQ, for calls of more than eight rows (smaller calls quantise in registers), or in the order that
// linear/wgmma asks for.
constexpr std::int64_t linear_workspace_bytes(std::int64_t max_tokens, std::int64_t in_features) {
  return round_up(max_tokens * in_features * 2, 256);
}

}  // namespace fathom::cuda
