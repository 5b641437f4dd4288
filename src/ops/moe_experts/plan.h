// moe_experts on CUDA: scratch and grid from the number of rows alone.
#pragma once

#include <cstdint>

#include "base/units.h"

namespace fathom::cuda {

inline constexpr int kMoeWarps = 8;
inline constexpr int kMoeUpRows = 16;         // rows of w1 and of w3 a block
inline constexpr int kMoeDownRows = 64;       // rows of w2 a block, or twice as many
inline constexpr int kMoeDecodeTokens = 128;  // most rows of a decode step
inline constexpr int kMoeWgmmaRows = 128;     // wgmma: 64 of w1 and of w3, or 128 of w2
inline constexpr int kMoeWgmmaTokens = 32;    // or twice as many rows of x
inline constexpr int kMoeWgmmaLeast = 8;      // rows an expert, on average
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
  std::int64_t items, entries, x, t, y, total;  // byte offsets; total size
};

// Their number, then items: {expert, begin, count, 0}; entries: [tokens * topk] i32.
// x: rows after AQ, columns paired like the codes; t and y: [tokens * (topk + 1)] rows, the shared expert's last.
constexpr MoeScratch moe_scratch(std::int64_t tokens, std::int64_t hidden, std::int64_t intermediate,
                                 std::int64_t experts, std::int64_t topk) {
  MoeScratch s{};
  s.items = 256;
  s.entries = s.items + round_up(moe_max_pieces(tokens, experts, topk, kMoeWgmmaTokens) * 16, 256);
  s.x = s.entries + round_up(tokens * topk * 4, 256);
  s.t = s.x + round_up(tokens * hidden * 2, 256);
  s.y = s.t + round_up(tokens * (topk + 1) * intermediate * 2, 256);
  s.total = s.y + round_up(tokens * (topk + 1) * hidden * 2, 256);
  return s;
}

// Rows of x in a block of moe_experts/wgmma; 0 where the smaller tiles of `mma` are ahead. It has a launch more, and
// those of a decode step's layer are counted (Model.launches_of_a_layer): not for the rows of one.
constexpr int moe_wgmma_tokens(std::int64_t tokens, std::int64_t experts, std::int64_t topk) {
  if (tokens <= kMoeDecodeTokens || tokens * topk < kMoeWgmmaLeast * experts) return 0;
  return tokens * topk > kMoeWgmmaTokens * experts ? 2 * kMoeWgmmaTokens : kMoeWgmmaTokens;
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
