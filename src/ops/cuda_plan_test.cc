// The CUDA plans on the CPU: what a block asks for fits the smallest card, scratch covers what a call uses, and
// nothing depends on lengths.
#include <gtest/gtest.h>

#include "ops/attention_rows/attention_rows.h"
#include "ops/hyper_connection/plan.h"
#include "ops/index_scores/plan.h"
#include "ops/linear/plan.h"
#include "ops/moe_experts/moe_experts.h"
#include "ops/moe_experts/plan.h"
#include "ops/registry.h"
#include "ops/select_topk/plan.h"
#include "ops/sparse_attention/plan.h"

namespace fathom::cuda {
namespace {

constexpr std::int64_t kSm120Shared = 99 * 1024;    // RTX PRO 6000: what one block may have
constexpr std::int64_t kDefaultShared = 48 * 1024;  // without raising the limit
constexpr std::int64_t kSm90Shared = 227 * 1024;

TEST(CudaPlan, every_block_fits_99_kb) {
  EXPECT_LE(attention_shared_bytes(1), kSm120Shared);
  EXPECT_GT(attention_shared_bytes(2), kSm120Shared) << "two tiles of heads are for larger cards only";
  EXPECT_LE(attention_shared_bytes(2), kSm90Shared);
  for (const std::int64_t tokens : {1, 8, 9, 16, 17, 4096}) {
    for (const std::int64_t k : {128, 4096}) EXPECT_LE(linear_tile(tokens, k).shared_bytes(), kSm120Shared);
  }
  EXPECT_LE(kLinearTiledSharedBytes, kSm120Shared);
  EXPECT_LE(4 * kLinearTiledTokens * kLinearResultStride<kLinearTiledRows>, kLinearTiledSharedBytes)
      << "results pass through it";
  for (const std::int64_t tokens : {64, 128}) {
    EXPECT_LE(4 * tokens * kLinearResultStride<kLinearWgmmaRows>, linear_wgmma_shared_bytes(tokens) - 1024);
    EXPECT_LE(linear_wgmma_shared_bytes(tokens), kSm90Shared);
  }
  for (const std::int32_t heads : {4, 8, 16, 64, 128}) EXPECT_LE(index_shared_bytes(heads), kDefaultShared);
}

TEST(CudaPlan, linear_takes_large_tiles_only_where_they_fill_the_card) {
  for (const std::int64_t tokens : {1, 32}) EXPECT_EQ(linear_wgmma_tokens(tokens, 1000), 0);
  EXPECT_EQ(linear_wgmma_tokens(33, 127), 0);
  EXPECT_EQ(linear_wgmma_tokens(33, 128), 64);
  EXPECT_EQ(linear_wgmma_tokens(65, 128), 128);
  EXPECT_EQ(linear_wgmma_tokens(256, 32), 64) << "64 blocks of the larger tile, 128 of the smaller";
  EXPECT_EQ(linear_wgmma_tokens(512, 32), 128);
  EXPECT_EQ(linear_wgmma_tokens(512, 8), 0);
  EXPECT_FALSE(linear_uses_tiles(64, 1000));
  EXPECT_TRUE(linear_uses_tiles(96, 128));
  EXPECT_FALSE(linear_uses_tiles(129, 128)) << "half of its tiles of x would be empty";
}

TEST(CudaPlan, linear_deals_the_sums_of_few_tiles_to_clusters) {
  for (const int tokens : {32, 64}) {
    for (const int blocks : {1, 2, 4, 8}) {
      EXPECT_LE(linear_split_shared_bytes({tokens, blocks}), kSm90Shared);
    }
  }
  const auto is = [](const LinearSplit& split, int tokens, int blocks) {
    return split.tokens == tokens && split.blocks == blocks;
  };
  EXPECT_TRUE(is(linear_split(16, 12, 4096, true, true), 0, 0));
  EXPECT_TRUE(is(linear_split(32, 12, 4096, true, true), 32, 8));
  EXPECT_TRUE(is(linear_split(64, 12, 4096, true, true), 64, 8));
  EXPECT_TRUE(is(linear_split(128, 12, 4096, true, true), 64, 4));
  EXPECT_TRUE(is(linear_split(64, 33, 4096, true, true), 32, 2)) << "132 blocks";
  EXPECT_TRUE(is(linear_split(64, 34, 4096, true, true), 0, 0))
      << "more than the card takes at once: linear/mma's are ahead";
  EXPECT_TRUE(is(linear_split(256, 8, 4096, true, true), 32, 2)) << "64 tiles, 128 blocks";
  EXPECT_TRUE(is(linear_split(128, 33, 4096, true, true), 64, 2));
  EXPECT_TRUE(is(linear_split(128, 320, 1024, true, true), 0, 0)) << "larger tiles fill the card";
  EXPECT_TRUE(is(linear_split(128, 320, 1024, true, false), 64, 1)) << "for which x would have to be sorted";
  EXPECT_TRUE(is(linear_split(64, 64, 4096, true, true), 64, 2));
  EXPECT_TRUE(is(linear_split(128, 1010, 4096, false, true), 0, 0));
  EXPECT_TRUE(is(linear_split(256, 320, 1024, true, true), 0, 0)) << "larger tiles fill the card";
  EXPECT_TRUE(is(linear_split(512, 20, 4096, true, true), 64, 1));
  EXPECT_TRUE(is(linear_split(64, 1, 384, true, true), 64, 2)) << "no more blocks than chunks";
}

TEST(CudaPlan, linear_takes_tile_after_tile_where_blocks_have_several) {
  EXPECT_TRUE(linear_many_tiles(64, 133));
  EXPECT_FALSE(linear_many_tiles(64, 132));
  EXPECT_FALSE(linear_many_tiles(16, 320)) << "linear/mma's";
  EXPECT_FALSE(linear_many_tiles(65, 320)) << "larger tiles";
}

TEST(CudaPlan, linear_streams_a_few_rows_where_shared_memory_takes_them) {
  const auto kind = [](std::int64_t tokens, std::int64_t rows, std::int64_t k, std::int64_t shared) {
    return linear_stream_kind(tokens, rows, k, LinearFormats::kCodes, true, shared);
  };
  for (const std::int64_t shared : {kSm120Shared, kSm90Shared}) {
    EXPECT_EQ(kind(1, 8192, 4096, shared), LinearStream::kTiles);
    EXPECT_EQ(kind(1, 4096, 8192, shared), LinearStream::kTiles);
    EXPECT_EQ(linear_stream_kind(3, 3200, 4096, LinearFormats::kBoth, false, shared), LinearStream::kNone)
        << "sorting x takes longer than it saves";
    EXPECT_EQ(kind(1, 1536, 4096, shared), LinearStream::kNone) << "a tile for a third of the blocks";
    EXPECT_EQ(kind(9, 40960, 1024, shared), LinearStream::kNone);
  }
  EXPECT_EQ(kind(2, 4096, 8192, kSm120Shared), LinearStream::kNone) << "x does not fit beside the rings";
  EXPECT_EQ(kind(8, 4096, 8192, kSm90Shared), LinearStream::kTiles);
  EXPECT_EQ(linear_stream_kind(2, 3200, 4096, LinearFormats::kBoth, false, kSm90Shared), LinearStream::kTiles);
  EXPECT_EQ(kind(8, 40960, 1024, kSm90Shared), LinearStream::kShort);
  EXPECT_EQ(kind(8, 40960, 1024, kSm120Shared), LinearStream::kNone);
  EXPECT_EQ(kind(1, 8192, 1024, kSm90Shared), LinearStream::kNone) << "most warps would have no rows";
  EXPECT_EQ(linear_stream_kind(1, 40960, 1024, LinearFormats::kCodes, false, kSm90Shared), LinearStream::kNone);
  EXPECT_EQ(linear_stream_kind(1, 129280, 4096, LinearFormats::kValues, false, kSm90Shared), LinearStream::kNone);
}

TEST(CudaPlan, attention_takes_two_tiles_only_where_they_fit) {
  EXPECT_EQ(attention_tiling(128, 64, 4, 512, kSm120Shared, true).head_tiles, 1);
  EXPECT_EQ(attention_tiling(128, 64, 4, 512, kSm90Shared, true).head_tiles, 2);
  EXPECT_EQ(attention_tiling(128, 16, 4, 512, kSm90Shared, true).head_tiles, 1);
}

TEST(CudaPlan, attention_splits_small_batches_by_groups_of_128) {
  const AttentionTiling one = attention_tiling(1, 64, 4, 512, kSm90Shared, true);
  EXPECT_TRUE(one.split);
  EXPECT_EQ(one.num_splits, 5);  // the window and four groups of 128
  EXPECT_FALSE(attention_tiling(128, 64, 4, 512, kSm90Shared, true).split);
  EXPECT_FALSE(attention_tiling(1, 64, 0, 0, kSm90Shared, true).split) << "a window is one group";
  EXPECT_FALSE(attention_tiling(1, 64, 4, 512, kSm90Shared, false).split);
  EXPECT_EQ(attention_groups(4, 64), 2);
  EXPECT_EQ(attention_groups(128, 0), kMaxSplitGroups);
}

TEST(CudaPlan, attention_workspace_covers_every_split_call) {
  for (const std::int32_t heads : {4, 8, 16, 32, 64, 128}) {
    for (const std::int32_t ratio : {0, 4, 128}) {
      for (std::int64_t tokens = 1; tokens <= 512; ++tokens) {
        const AttentionTiling tiling = attention_tiling(tokens, heads, ratio, 512, kSm90Shared, true);
        if (!tiling.split) continue;
        const std::int64_t used = tokens * tiling.num_splits * heads * 514 * 4;
        EXPECT_LE(used, attention_workspace_bytes(512, heads, ratio, 512))
            << tokens << " rows, " << heads << " heads, ratio " << ratio;
        EXPECT_LE(used, attention_workspace_bytes(tokens, heads, ratio, 512))
            << tokens << " rows, " << heads << " heads, ratio " << ratio;
      }
    }
  }
}

TEST(CudaPlan, index_blocks_follow_the_rows_alone) {
  EXPECT_EQ(index_blocks_per_row(1, 132), 264);
  EXPECT_EQ(index_blocks_per_row(64, 132), 5);
  EXPECT_EQ(index_blocks_per_row(100000, 132), 1);
}

TEST(CudaPlan, index_groups_fill_the_device_and_no_more_than_the_longest_row) {
  EXPECT_EQ(index_groups_per_row(1, 262144, 132), 264);
  EXPECT_EQ(index_groups_per_row(1, 2048, 132), 16);
  EXPECT_EQ(index_groups_per_row(64, 32768, 132), 4);
  EXPECT_EQ(index_groups_per_row(128, 32768, 132), 2);
  EXPECT_EQ(index_groups_per_row(100000, 32768, 132), 1);
  for (const std::int32_t heads : {8, 64, 128}) EXPECT_LE(index_groups_shared_bytes(heads), kDefaultShared);
}

TEST(CudaPlan, topk_shares_a_row_while_multiprocessors_are_free) {
  EXPECT_EQ(topk_tiling(1, 2048, 132, kSm90Shared, true).cluster, 1);
  EXPECT_EQ(topk_tiling(1, 32768, 132, kSm90Shared, true).cluster, 8);
  EXPECT_EQ(topk_tiling(32, 32768, 132, kSm90Shared, true).cluster, 4);
  EXPECT_EQ(topk_tiling(128, 32768, 132, kSm90Shared, true).cluster, 1);
  EXPECT_EQ(topk_tiling(1, 32768, 132, kSm90Shared, false).cluster, 1) << "a device without clusters";
  for (const std::int64_t shared : {kSm90Shared, kSm120Shared}) {
    for (std::int64_t rows = 1; rows <= 300; ++rows) {
      for (const std::int64_t entries : {1, 513, 2051, 4097, 32768, 262144}) {
        const TopkTiling tiling = topk_tiling(rows, entries, 132, shared, true);
        EXPECT_LE(tiling.scores_in_shared * 4 + 20 * 1024, shared) << rows << " rows of " << entries;
        EXPECT_LE(tiling.cluster, kTopkMaxCluster);
      }
    }
  }
}

TEST(CudaPlan, attention_groups_fit_their_block_and_scratch) {
  EXPECT_LE(kAttentionGroupsSharedBytes + 16, kSm90Shared);
  EXPECT_EQ(attention_groups_tiling(1, 64, 4, 512, 132).blocks_per_unit, 5);
  EXPECT_EQ(attention_groups_tiling(33, 64, 4, 512, 132).blocks_per_unit, 2);
  EXPECT_EQ(attention_groups_tiling(34, 64, 4, 512, 132).blocks_per_unit, 1);
  EXPECT_EQ(attention_groups_tiling(128, 128, 4, 512, 132).head_blocks, 2);
  EXPECT_EQ(attention_groups_tiling(4096, 64, 4, 512, 132).grid_units, 132);
  EXPECT_EQ(attention_groups_tiling(4096, 64, 4, 512, 132).num_slots, 0) << "a block that has all groups keeps them";
  EXPECT_EQ(attention_groups_workspace_bytes(128, 64, 4, 512, 0), 0) << "no warpgroup products: no scratch for them";
  for (const std::int32_t heads : {48, 64, 128}) {
    for (const std::int32_t ratio : {0, 4, 128}) {
      for (std::int64_t tokens = 1; tokens <= 300; ++tokens) {
        const AttentionGroupsTiling tiling = attention_groups_tiling(tokens, heads, ratio, 512, 132);
        EXPECT_LE(tiling.num_slots * 64 * 258 * 4, attention_groups_workspace_bytes(tokens, heads, ratio, 512, 132));
        EXPECT_LE(tiling.num_slots * 64 * 258 * 4, attention_groups_workspace_bytes(4096, heads, ratio, 512, 132));
        if (tiling.blocks_per_unit == 1) continue;
        EXPECT_LE(tiling.grid_units * tiling.blocks_per_unit, 132);
        EXPECT_LE(tiling.grid_units, attention_num_arrivals(tokens, heads, ratio, 512)) << "a counter a unit";
      }
    }
  }
}

TEST(CudaPlan, attention_takes_warpgroups_for_many_rows_where_there_are_some) {
  EXPECT_FALSE(attention_prefers_groups(8, 64, 4, 132));
  EXPECT_TRUE(attention_prefers_groups(kAttentionGroupsRows, 64, 4, 132));
  EXPECT_TRUE(attention_prefers_groups(4096, 64, 4, 132));
  EXPECT_FALSE(attention_prefers_groups(4096, 32, 4, 132)) << "half of a warpgroup's rows would be empty";
  EXPECT_FALSE(attention_prefers_groups(4096, 64, 4, 0)) << "sm_80, sm_120";
  EXPECT_FALSE(attention_prefers_groups(4096, 64, 0, 132)) << "a draft block's window holds more than 128 keys";
}

TEST(CudaPlan, attention_takes_whole_rows_where_their_halves_would_need_a_second_round) {
  EXPECT_LE(kAttentionWholeSharedBytes, kSm90Shared);
  EXPECT_FALSE(attention_prefers_whole(66, 64, 4, 132)) << "132 halves: a round";
  EXPECT_TRUE(attention_prefers_whole(67, 64, 4, 132));
  EXPECT_TRUE(attention_prefers_whole(34, 128, 128, 132)) << "four halves a row";
  EXPECT_FALSE(attention_prefers_whole(128, 32, 4, 132));
  EXPECT_FALSE(attention_prefers_whole(128, 64, 4, 0)) << "sm_80, sm_120";
  EXPECT_FALSE(attention_prefers_whole(128, 64, 0, 132)) << "a draft block's window holds more than 128 keys";
  for (std::int64_t tokens = 1; tokens <= 300; ++tokens) {
    if (attention_prefers_whole(tokens, 64, 4, 132)) {
      EXPECT_EQ(attention_groups_tiling(tokens, 64, 4, 512, 132).blocks_per_unit, 1);
    }
  }
}

TEST(CudaPlan, experts_scratch_has_disjoint_parts) {
  const MoeScratch s = moe_scratch(128, 4096, 2048, 256, 6);
  EXPECT_GE(s.items, 4);
  EXPECT_GE(s.entries - s.items, moe_max_pieces(128, 256, 6, kMoeWgmmaTokens) * 16);
  EXPECT_GE(s.x - s.entries, 128 * 6 * 4);
  EXPECT_GE(s.t - s.x, 128 * 4096 * 2);
  EXPECT_GE(s.y - s.t, 128 * 7 * 2048 * 2);
  EXPECT_GE(s.total - s.y, 128 * 7 * 4096 * 2);
  EXPECT_EQ(moe_max_items(1, 256, 6), 6);
  EXPECT_EQ(moe_max_items(128, 256, 6), 256);
}

TEST(CudaPlan, experts_tiles_lie_apart) {
  const MoeScratch s = moe_scratch(2048, 4096, 2048, 256, 6);
  const std::int64_t shared_row = moe_shared_tile_row(2048, 256, 6, kMoeWgmmaTokens);
  EXPECT_GE(s.tiles - s.tile_rows, (shared_row + 2048) * 8);
  EXPECT_GE(s.tiles_t - s.tiles, (shared_row + 2048) * 4096 * 2);
  EXPECT_GE(s.total - s.tiles_y, 2048 * 7 * 4096 * 2);
  // Items of any sizes, one after another: each has room for its rows in whole eights.
  std::int64_t begin = 0, end = 0;
  for (std::int64_t item = 0; item < 500; ++item) {
    const std::int64_t count = 1 + item * 37 % kMoeWgmmaTokens;
    EXPECT_GE(moe_tile_row(begin, item), end) << item;
    end = moe_tile_row(begin, item) + (count + 7) / 8 * 8;
    begin += count;
  }
  EXPECT_GE(moe_tile_row(begin, 500), end);
}

TEST(CudaPlan, experts_chunks_come_in_the_order_of_their_sums) {
  for (const int num_chunks : {1, 2, 7, 8, 10, 16, 32, 56}) {
    int step = 0;
    for (int p = 0; p < kMoeWarps; ++p) {
      for (int chunk = p; chunk < num_chunks; chunk += kMoeWarps)
        EXPECT_EQ(moe_step_of_chunk(chunk, num_chunks), step++) << chunk << " of " << num_chunks;
    }
    EXPECT_EQ(step, num_chunks);
  }
}

TEST(CudaPlan, experts_pieces_cover_every_split_of_rows) {
  // Any rows of any experts in pieces of 56 are at most this many: all full but one an expert.
  for (const std::int64_t tokens : {1, 7, 100, 512, 4096}) {
    for (const std::int64_t experts : {1, 5, 256}) {
      const std::int64_t entries = tokens * 6, hit = moe_max_items(tokens, experts, 6);
      const std::int64_t worst = hit + (entries - hit) / kMoeWgmmaTokens;  // hit - 1 experts with one row over
      EXPECT_GE(moe_max_pieces(tokens, experts, 6, kMoeWgmmaTokens), worst) << tokens << " rows, " << experts;
    }
  }
}

TEST(CudaPlan, experts_take_larger_tiles_where_there_is_work_for_them) {
  EXPECT_EQ(moe_down_rows(6, 4096), 64) << "one row of x: more blocks than multiprocessors matter more";
  EXPECT_EQ(moe_down_rows(16, 4096), 128);
  EXPECT_EQ(moe_down_rows(256, 64), 64);
  EXPECT_FALSE(moe_uses_wgmma(128, 256, 6));
  EXPECT_FALSE(moe_uses_wgmma(128, 8, 2)) << "a decode step";
  EXPECT_TRUE(moe_uses_wgmma(129, 8, 2));
  EXPECT_TRUE(moe_uses_wgmma(512, 256, 6));
}

TEST(CudaPlan, hyper_connection_scratch_covers_both_variants) {
  EXPECT_GE(hc_workspace_bytes(128, 4096), 128 * 64 * kHcPartials * 4);
  EXPECT_EQ(hc_row_blocks(1), 1);
  EXPECT_EQ(hc_row_blocks(33), 5);
  EXPECT_EQ(hc_row_blocks(4096), 8);
  EXPECT_GE(hc_workspace_bytes(1, 128), (kHcPartials + 4) * 4 + 128 * 2);
}

TEST(CudaPlan, attention_rows_have_a_block_for_every_row_and_head) {
  const AttentionRowsBlocks window = attention_rows_blocks(3, 0, 9, 7);
  EXPECT_EQ(window.ends, (std::array<std::int64_t, 5>{0, 0, 3, 3 + 7, 3 + 7})) << "27 heads in blocks of four";
  const AttentionRowsBlocks ratio128 = attention_rows_blocks(1, 128, 64, 64);
  EXPECT_EQ(ratio128.ends, (std::array<std::int64_t, 5>{1, 1, 2, 18, 18}));
  const AttentionRowsBlocks ratio4 = attention_rows_blocks(5, 4, 9, 7);
  EXPECT_EQ(ratio4.ends, (std::array<std::int64_t, 5>{5, 10, 15, 15 + 12, 15 + 12 + 9}));
}

TEST(CudaPlan, attention_has_a_counter_for_every_row_and_16_heads_of_a_split_call) {
  for (const std::int32_t heads : {4, 8, 16, 32, 64, 128}) {
    for (const std::int32_t ratio : {0, 4, 128}) {
      for (std::int64_t tokens = 1; tokens <= 512; ++tokens) {
        if (!attention_tiling(tokens, heads, ratio, 512, kSm90Shared, true).split) continue;
        EXPECT_LE(tokens * ceil_div(heads, 16), attention_num_arrivals(512, heads, ratio, 512));
        EXPECT_LE(tokens * ceil_div(heads, 16), attention_num_arrivals(tokens, heads, ratio, 512));
      }
    }
  }
  EXPECT_EQ(attention_num_arrivals(512, 64, 0, 0), 0) << "a window is one group";
}

TEST(CudaPlan, experts_have_a_counter_for_every_row_and_block) {
  EXPECT_EQ(moe_num_arrivals(1, 4096), 64);
  EXPECT_EQ(moe_num_arrivals(128, 7168), 128 * 112);
  EXPECT_EQ(moe_num_arrivals(4096, 4096), kMoeArrivalTokens * 64) << "larger calls sum in a launch";
  const DeviceInfo cuda{BackendKind::kCuda, 1, 132, 90, kSm90Shared};
  EXPECT_EQ(plan_moe_experts({64, 4096, 2048, 256, 6, 10.0f, Numerics::serve()}, cuda).num_arrivals, 64 * 64);
  EXPECT_EQ(plan_moe_experts({64, 4096, 2048, 256, 6, 10.0f, Numerics::serve()}, {}).num_arrivals, 0);
}

}  // namespace
}  // namespace fathom::cuda
