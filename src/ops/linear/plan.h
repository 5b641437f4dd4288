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

// linear/mma's few rows: the ring of each of a block's warps, x as fragments, and two tiles' sums.
inline constexpr int kLinearStreamWarps = 2 * kLinearWarps, kLinearStreamRows = 32;
inline constexpr int kLinearStreamDepth = 2, kLinearStreamShortDepth = 3;  // slots of a ring
constexpr std::int64_t linear_stream_shared_bytes(int depth, std::int64_t num_tokens, std::int64_t in_features) {
  return kLinearStreamWarps * (depth * std::int64_t{2048} + 2 * 16 * 9 * 4) + num_tokens * in_features * 2;
}
// kTiles: a block's warps share its tiles' chunks; x is sorted first, which pays to two rows where there are bf16
// values too. kShort: weights of at most eight chunks, all of codes that read x alike, whose rows are enough for half
// of the card's warps. kNone: the kernel that fetches one chunk ahead. Measured (docs/gpu_h200.md).
enum class LinearStream { kNone, kTiles, kShort };
enum class LinearFormats { kValues, kCodes, kBoth };  // among the weights: bf16, FP8
constexpr LinearStream linear_stream_kind(std::int64_t num_tokens, std::int64_t num_rows, std::int64_t in_features,
                                          LinearFormats formats, bool reads_alike, std::int64_t shared_bytes) {
  if (num_tokens > 8 || formats == LinearFormats::kValues) return LinearStream::kNone;
  if (in_features <= kLinearWarps * kLinearChunk) {
    const bool fits = linear_stream_shared_bytes(kLinearStreamShortDepth, num_tokens, in_features) <= shared_bytes;
    return reads_alike && num_rows >= 16896 && fits ? LinearStream::kShort : LinearStream::kNone;
  }
  const bool fits = linear_stream_shared_bytes(kLinearStreamDepth, num_tokens, in_features) <= shared_bytes;
  // A lane has one scale of a warp's chunks.
  const bool few = num_tokens <= (formats == LinearFormats::kCodes ? 8 : 2);
  const bool takes = few && num_rows >= 3072 && in_features <= 32 * kLinearWarps * kLinearChunk;
  return takes && fits ? LinearStream::kTiles : LinearStream::kNone;
}

// Floats of a row of x among a tile's results on their way through shared memory.
template <int kTileRows>
inline constexpr int kLinearResultStride = kTileRows + 4;

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
inline constexpr int kLinearSplitStages = 4;  // chunks of x in shared memory
constexpr std::int64_t linear_split_shared_bytes(const LinearSplit& split) {
  const std::int64_t sums = split.blocks > 1 ? kLinearWarps / split.blocks : 1;
  return kLinearSplitStages * split.tokens * kLinearChunk * 2 +
         sums * split.tokens * kLinearResultStride<kLinearWgmmaRows> * 4 + 1024;
}
// The bounds are measured (docs/gpu_h200.md). A card of 132 multiprocessors takes 16 clusters of eight blocks at once
// and 32 of four, less where the last of its groups of multiprocessors is short: more would wait for a second turn.
inline constexpr std::int64_t kLinearCardBlocks = 132;
// `sorts`: a launch quantises x, so that larger tiles, which fill the card, get theirs sorted for nothing.
constexpr LinearSplit linear_split(std::int64_t num_tokens, std::int64_t num_row_tiles, std::int64_t in_features,
                                   bool has_codes, bool sorts) {
  if (num_tokens <= 16) return {};
  if (num_tokens > (sorts ? 64 : 128) && num_row_tiles * ((num_tokens + 127) / 128) >= 128) return {};
  int tokens = num_tokens <= 32 ? 32 : 64;
  std::int64_t tiles = num_row_tiles * ((num_tokens + tokens - 1) / tokens);
  int blocks = tiles <= 12 ? 8 : tiles <= 24 ? 4 : tiles <= 66 ? 2 : 1;
  // Twice the tiles of half the rows, two blocks each, where they fill the card and larger ones would not.
  const std::int64_t small_tiles = num_row_tiles * ((num_tokens + 31) / 32);
  const bool small = num_tokens > 32 && 2 * small_tiles <= kLinearCardBlocks && small_tiles >= 48 &&
                     (num_tokens <= 64 || num_tokens > 128);
  if (small) tokens = 32, tiles = small_tiles, blocks = 2;
  const bool between = (tiles > (tokens == 32 ? 12 : 24) && tiles < 48) || (tiles > 66 && tiles < 100);
  if (!small && num_tokens <= 64 && between) return {};
  // bf16 weights alone are read at the memory's speed by the other kernels.
  if (blocks == 1 && !has_codes) return {};
  while (blocks > in_features / kLinearChunk) blocks /= 2;
  return {tokens, blocks};
}

// linear/wgmma with a block for each multiprocessor that takes tile after tile, where weights are of codes alone.
constexpr bool linear_many_tiles(std::int64_t num_tokens, std::int64_t num_row_tiles) {
  return num_tokens > 16 && num_tokens <= 64 && num_row_tiles > kLinearCardBlocks;
}

// Rows of x after AQ, for calls of more than eight rows (smaller calls quantise in registers), or in the order that
// linear/wgmma asks for.
constexpr std::int64_t linear_workspace_bytes(std::int64_t max_tokens, std::int64_t in_features) {
  return round_up(max_tokens * in_features * 2, 256);
}

}  // namespace fathom::cuda
