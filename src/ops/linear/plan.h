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

// Rows of x after AQ, for calls of more than eight rows (smaller calls quantise in registers).
constexpr std::int64_t linear_workspace_bytes(std::int64_t max_tokens, std::int64_t in_features) {
  return round_up(max_tokens * in_features * 2, 256);
}

}  // namespace fathom::cuda
