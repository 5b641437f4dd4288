#include "model/cache_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace fathom {
namespace {

TEST(CacheLayout, FlashSizesArePinned) {
  const CacheLayout layout = plan_cache_layout(flash_config(), Numerics::serve(), 1);
  EXPECT_EQ(layout.context_block_bytes, 449'824);
  EXPECT_EQ(layout.trunk_window_bytes, 3'214'336);
  EXPECT_EQ(layout.window_block_bytes, 3'214'336 + 128 * 584);
  EXPECT_EQ(layout.resume_rows_bytes, 430'080);
}

TEST(CacheLayout, StateHoldsMoreSlotsThanTheSpecsByMaxDraft) {
  // Spec section 3 counts 8 and 128 rows; kMaxDraft more of each are kept so that rollback copies nothing.
  const CacheLayout layout = plan_cache_layout(flash_config(), Numerics::serve(), 0);
  const std::int64_t ratio4 = 21 * (2 * 16 * 1024 * 4 + 2 * 16 * 256 * 4);
  const std::int64_t ratio128 = 20 * (2 * 136 * 512 * 4);
  EXPECT_EQ(layout.state_slot_bytes, ratio4 + ratio128);
}

// No two pages of a block overlap, and together they fill it.
void expect_tiles(std::vector<std::pair<std::int64_t, std::int64_t>> pages, std::int64_t total) {
  std::sort(pages.begin(), pages.end());
  std::int64_t end = 0;
  for (const auto& [offset, bytes] : pages) {
    EXPECT_EQ(offset, end);
    end = offset + bytes;
  }
  EXPECT_EQ(end, total);
}

TEST(CacheLayout, PagesTileTheirBlocks) {
  for (const Numerics& numerics : {Numerics::serve(), Numerics::plain()}) {
    for (const ModelConfig& config : {flash_config(), pro_config(), mini_config()}) {
      const CacheLayout layout = plan_cache_layout(config, numerics, 3);
      std::vector<std::pair<std::int64_t, std::int64_t>> context;
      std::vector<std::pair<std::int64_t, std::int64_t>> window;
      for (const LayerCache& layer : layout.layers) {
        window.emplace_back(layer.window_offset_bytes, layer.kv.page_bytes(kBlockTokens));
        if (layer.ratio == 0) continue;
        context.emplace_back(layer.entry_offset_bytes, layer.kv.page_bytes(layer.entries_per_block()));
        if (layer.ratio == 4) {
          context.emplace_back(layer.index_key_offset_bytes, layer.index_key.page_bytes(layer.entries_per_block()));
          EXPECT_EQ(layer.entry_offset_bytes % 16, 0);
          EXPECT_EQ(layer.index_key_offset_bytes % 16, 0);
        }
      }
      expect_tiles(std::move(context), layout.context_block_bytes);
      expect_tiles(std::move(window), layout.window_block_bytes);
    }
  }
}

TEST(CacheLayout, WindowBlocksCoverAnyStepPosition) {
  for (std::int64_t tokens : {1, 2, 9, 127, 128, 129, 300, 512}) {
    std::int64_t most = 0;
    for (std::int64_t start = 0; start < 400; ++start) {
      const std::int64_t first = std::max<std::int64_t>(0, start - 127) / 128;
      most = std::max(most, (start + tokens - 1) / 128 - first + 1);
    }
    EXPECT_LE(most, num_window_blocks(tokens)) << tokens;
  }
}

}  // namespace
}  // namespace fathom
