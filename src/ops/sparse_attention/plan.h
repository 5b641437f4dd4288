// sparse_attention on CUDA: how a row's keys and heads are dealt to blocks. Pure arithmetic, tested on the CPU.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/units.h"

namespace fathom::cuda {

inline constexpr int kAttentionThreads = 256;
inline constexpr int kAttentionTile = 64;    // keys in shared memory at a time
inline constexpr int kAttentionGroup = 128;  // keys of one group, of one split
inline constexpr int kMaxSplitGroups = 9;    // the window and 1,024 entries; rows with more are not split

// Rows of shared memory are padded by 16 bytes, so that eight of them lie in different banks.
constexpr std::int64_t attention_shared_bytes(int head_tiles) {
  const std::int64_t heads = 16 * head_tiles, row = 512 * 2 + 16;
  return heads * row + kAttentionTile * row + 2 * heads * (kAttentionTile * 2 + 16) + 8 * heads * 4;
}

struct AttentionTiling {
  bool split = false;  // one block a group, then a combine
  int head_tiles = 1;  // 16 heads each
  int num_splits = 1;  // blocks a (row, heads) gets
  std::int64_t shared_bytes = 0;
};

// Groups of the longest row that a plan expects: the window, then topk or up to 1,024 entries.
constexpr int attention_groups(std::int32_t ratio, std::int32_t topk) {
  if (ratio == 0) return 1;
  if (ratio == 4) return 1 + static_cast<int>(ceil_div(topk, kAttentionGroup));
  return kMaxSplitGroups;
}

// From the number of rows, heads and the shared memory of a block alone. Blocks of 32 heads need two tiles'
// shared memory and serve batches that fill the device without splitting.
constexpr AttentionTiling attention_tiling(std::int64_t num_tokens, std::int32_t num_heads, std::int32_t ratio,
                                           std::int32_t topk, std::int64_t shared_limit_bytes, bool may_split) {
  AttentionTiling tiling;
  const int groups = attention_groups(ratio, topk);
  const std::int64_t unsplit_blocks = num_tokens * ceil_div(num_heads, 32);
  if (may_split && groups > 1 && groups <= kMaxSplitGroups && unsplit_blocks < 128) {
    tiling.split = true;
    tiling.num_splits = groups;
  }
  tiling.head_tiles = !tiling.split && num_heads > 16 && attention_shared_bytes(2) <= shared_limit_bytes ? 2 : 1;
  tiling.shared_bytes = attention_shared_bytes(tiling.head_tiles);
  return tiling;
}

// mma_splitk_arrival: up to so many rows a launch folds the groups, as in mma_splitk, because one block folding 16
// heads takes 5 us longer than it; above, where other operations have a pass more, the launch is saved.
inline constexpr std::int64_t kAttentionCombineRows = 8;
// Most rows of a call that is split.
constexpr std::int64_t attention_split_tokens(std::int64_t max_tokens, std::int32_t num_heads) {
  return std::min<std::int64_t>(max_tokens, 128 / std::max<std::int64_t>(1, ceil_div(num_heads, 32)));
}

// One counter a row and 16 heads of a split call.
constexpr std::int64_t attention_num_arrivals(std::int64_t max_tokens, std::int32_t num_heads, std::int32_t ratio,
                                              std::int32_t topk) {
  const std::int64_t groups = attention_groups(ratio, topk);
  if (groups == 1 || groups > kMaxSplitGroups) return 0;
  return attention_split_tokens(max_tokens, num_heads) * ceil_div(num_heads, 16);
}

// (m, l, o[512]) in fp32 of every (row, group, head) of a split call.
constexpr std::int64_t attention_workspace_bytes(std::int64_t max_tokens, std::int32_t num_heads, std::int32_t ratio,
                                                 std::int32_t topk) {
  const std::int64_t groups = attention_groups(ratio, topk);
  if (groups == 1 || groups > kMaxSplitGroups) return 0;
  return round_up(attention_split_tokens(max_tokens, num_heads) * groups * num_heads * (512 + 2) * 4, 256);
}

// wgmma: a unit is a row, 64 of its heads and half of the channels of their results; a block holds queries, two tiles
// of keys, P of both in two terms, peaks and sums.
inline constexpr std::int64_t kAttentionGroupsSharedBytes = 3 * 64 * 512 * 2 + 4 * 64 * 64 * 2 + 4 * 64 * 4 + 1024;

struct AttentionGroupsTiling {
  int head_blocks = 1;
  int blocks_per_unit = 1;      // they deal the row's groups among themselves
  int slots_per_unit = 1;       // of a split unit; a row with more groups is not split
  std::int64_t grid_units = 1;  // one block a unit: blocks loop over units
  std::int64_t num_slots = 0;   // results of a group (64 x 256 fp32, m, l) in scratch
};

// Few heads would leave most rows of a warpgroup's tile empty. Layers of ratio 0 may be a draft block's, whose window
// holds up to 128 + kMaxDraft keys, and a block takes 128 keys of a group.
constexpr bool attention_uses_groups(std::int32_t num_heads, std::int32_t ratio, std::int32_t num_multiprocessors) {
  return num_heads > 32 && ratio != 0 && num_multiprocessors > 0;
}

// by_rows: from so many rows on `wgmma`, whose blocks have 64 heads, is faster than 16 heads a block.
inline constexpr std::int64_t kAttentionGroupsRows = 9;
constexpr bool attention_prefers_groups(std::int64_t num_tokens, std::int32_t num_heads, std::int32_t ratio,
                                        std::int32_t num_multiprocessors) {
  return num_tokens >= kAttentionGroupsRows && attention_uses_groups(num_heads, ratio, num_multiprocessors);
}

// One block a multiprocessor: rows are split only while there is room for all blocks at once.
constexpr AttentionGroupsTiling attention_groups_tiling(std::int64_t num_tokens, std::int32_t num_heads,
                                                        std::int32_t ratio, std::int32_t topk,
                                                        std::int32_t num_multiprocessors) {
  AttentionGroupsTiling tiling;
  tiling.head_blocks = static_cast<int>(ceil_div(num_heads, 64));
  const std::int64_t units = 2 * num_tokens * tiling.head_blocks;
  const int groups = std::min(attention_groups(ratio, topk), kMaxSplitGroups);
  const std::int64_t room = num_multiprocessors / std::max<std::int64_t>(units, 1);
  tiling.blocks_per_unit = static_cast<int>(std::clamp<std::int64_t>(room, 1, groups));
  if (tiling.blocks_per_unit > 1) {
    tiling.slots_per_unit = groups;
    tiling.grid_units = units;
    tiling.num_slots = units * groups;
  } else {
    tiling.grid_units = std::min<std::int64_t>(units, num_multiprocessors);
  }
  return tiling;
}

// wgmma_whole: a unit is a row and 64 of its heads; a block holds queries, two tiles of keys, P of both in two terms,
// peaks and sums, eight barriers. Up to one unit a multiprocessor.
inline constexpr std::int64_t kAttentionWholeSharedBytes = kAttentionGroupsSharedBytes + 8 * 8;

// by_rows: `wgmma_whole`, when the halves of `wgmma` would take the card more than one round.
constexpr bool attention_prefers_whole(std::int64_t num_tokens, std::int32_t num_heads, std::int32_t ratio,
                                       std::int32_t num_multiprocessors) {
  return attention_uses_groups(num_heads, ratio, num_multiprocessors) &&
         2 * num_tokens * ceil_div(num_heads, 64) > num_multiprocessors;
}

// Enough for every call of up to max_tokens rows.
constexpr std::int64_t attention_groups_workspace_bytes(std::int64_t max_tokens, std::int32_t num_heads,
                                                        std::int32_t ratio, std::int32_t topk,
                                                        std::int32_t num_multiprocessors) {
  if (!attention_uses_groups(num_heads, ratio, num_multiprocessors)) return 0;
  std::int64_t slots = 0;
  for (std::int64_t tokens = 1; tokens <= std::min<std::int64_t>(max_tokens, num_multiprocessors); ++tokens)
    slots = std::max(slots, attention_groups_tiling(tokens, num_heads, ratio, topk, num_multiprocessors).num_slots);
  return round_up(slots * 64 * (256 + 2) * 4, 256);
}

}  // namespace fathom::cuda
