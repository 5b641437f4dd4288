// moe_experts on CUDA: scratch and grid from the number of rows alone.
#pragma once

#include <cstdint>

#include "base/units.h"
#include "ops/host_device.h"

namespace fathom::cuda {

inline constexpr int kMoeWarps = 8;
inline constexpr int kMoeUpRows = 16;             // rows of w1 and of w3 a block
inline constexpr int kMoeDownRows = 64;           // rows of w2 a block, or twice as many
inline constexpr int kMoeDecodeTokens = 128;      // most rows of a decode step
inline constexpr int kMoeWgmmaUpRows = 128;       // wgmma: rows of w1 and of w3 a unit of work
inline constexpr int kMoeWgmmaDownRows = 256;     // or rows of w2
inline constexpr int kMoeWgmmaTokens = 56;        // most rows of x
inline constexpr int kMoeWgmmaSharedTokens = 32;  // of the shared expert
inline constexpr int kMoeWgmmaLeast = 8;          // rows an expert, on average
// Most rows of a call whose experts are summed by the last block of w2 to arrive; larger calls get a launch.
inline constexpr std::int64_t kMoeArrivalTokens = 256;

// Experts that T rows can hit.
constexpr std::int64_t moe_max_items(std::int64_t tokens, std::int64_t experts, std::int64_t topk) {
  return tokens * topk < experts ? tokens * topk : experts;
}
// Items that they can make when one has at most `item_entries`.
constexpr std::int64_t moe_max_pieces(std::int64_t tokens, std::int64_t experts, std::int64_t topk,
                                      std::int64_t item_entries) {
  return moe_max_items(tokens, experts, topk) + tokens * topk / item_entries;
}

struct MoeScratch {
  std::int64_t items, entries, x, t, y;             // byte offsets
  std::int64_t tile_rows, tiles, tiles_t, tiles_y;  // where moe_experts/wgmma has them
  std::int64_t total;                               // size, for either
};

// The chunks of 128 columns come in the order of the sums: 0, 8, ..., then 1, 9, ...: which place chunk c has.
FATHOM_HOST_DEVICE constexpr int moe_step_of_chunk(int chunk, int num_chunks) {
  const int p = chunk % kMoeWarps, longer = num_chunks % kMoeWarps;
  return p * (num_chunks / kMoeWarps) + (p < longer ? p : longer) + chunk / kMoeWarps;
}

// moe_experts/wgmma: rows of x or t in whole eights, item after item, then the shared expert's. Item i begins at this
// row where its entries begin at `begin`: no two overlap.
FATHOM_HOST_DEVICE constexpr std::int64_t moe_tile_row(std::int64_t begin, std::int64_t item) {
  return (begin / 8 + item) * 8;
}
constexpr std::int64_t moe_shared_tile_row(std::int64_t tokens, std::int64_t experts, std::int64_t topk,
                                           std::int64_t item_entries) {
  return moe_tile_row(tokens * topk, moe_max_pieces(tokens, experts, topk, item_entries));
}

// Their number, then items: {expert, begin, count, 0}; entries: [tokens * topk] i32.
// x: rows after AQ, columns paired like the codes; t and y: [tokens * (topk + 1)] rows, the shared expert's last.
// wgmma: tiles of x, later of t; t, and y in its place once t lies in tiles.
constexpr MoeScratch moe_scratch(std::int64_t tokens, std::int64_t hidden, std::int64_t intermediate,
                                 std::int64_t experts, std::int64_t topk) {
  MoeScratch s{};
  s.items = 256;
  s.entries = s.items + round_up(moe_max_pieces(tokens, experts, topk, kMoeWgmmaTokens) * 16, 256);
  s.x = s.entries + round_up(tokens * topk * 4, 256);
  s.t = s.x + round_up(tokens * hidden * 2, 256);
  s.y = s.t + round_up(tokens * (topk + 1) * intermediate * 2, 256);
  const std::int64_t y_bytes = round_up(tokens * (topk + 1) * hidden * 2, 256), t_bytes = s.y - s.t;
  const std::int64_t wider = hidden > intermediate ? hidden : intermediate;
  const std::int64_t tile_rows = moe_shared_tile_row(tokens, experts, topk, kMoeWgmmaTokens) +
                                 round_up(tokens, std::int64_t{kMoeWgmmaSharedTokens});
  s.tile_rows = s.x;
  s.tiles = s.tile_rows + round_up(tile_rows * 8, 256);
  s.tiles_t = s.tiles_y = s.tiles + round_up(tile_rows * wider * 2, 256);
  const std::int64_t total = s.y + y_bytes, tiles_total = s.tiles_t + (t_bytes > y_bytes ? t_bytes : y_bytes);
  s.total = total > tiles_total ? total : tiles_total;
  return s;
}

// Where moe_experts/wgmma is ahead of the smaller tiles of `mma`. It has launches more, and those of a decode step's
// layer are counted (Model.launches_of_a_layer): not for the rows of one.
constexpr bool moe_uses_wgmma(std::int64_t tokens, std::int64_t experts, std::int64_t topk) {
  return tokens > kMoeDecodeTokens && tokens * topk >= kMoeWgmmaLeast * experts;
}

// One counter a row and block of w2's rows.
constexpr std::int64_t moe_num_arrivals(std::int64_t max_tokens, std::int64_t hidden) {
  return (max_tokens < kMoeArrivalTokens ? max_tokens : kMoeArrivalTokens) * (hidden / kMoeDownRows);
}

// Rows of w2 a block: each block quantises its rows of t itself, so it takes more of w2 where blocks are many.
constexpr int moe_down_rows(std::int64_t max_items, std::int64_t hidden) {
  constexpr std::int64_t kManyBlocks = 512;
  return hidden % (2 * kMoeDownRows) == 0 && max_items * (hidden / (2 * kMoeDownRows)) >= kManyBlocks ? 2 * kMoeDownRows
                                                                                                      : kMoeDownRows;
}

}  // namespace fathom::cuda
