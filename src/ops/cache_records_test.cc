#include "ops/cache_records.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/testing/paged_cache.h"
#include "tensor/block_quantise.h"
#include "tensor/scalar_formats.h"

namespace fathom::testing {
namespace {

TEST(KvRecordLayout, FlashRecordsAreSection10s) {
  const KvRecordLayout layout{CacheFormat::kPacked, 512, 64};
  EXPECT_EQ(layout.data_bytes(), 576);
  EXPECT_EQ(layout.scale_bytes(), 8);
  EXPECT_EQ(layout.num_scales(), 7);
  EXPECT_EQ(layout.data_offset(3), 576 * 3);
  EXPECT_EQ(layout.scale_offset(32, 3), 576 * 32 + 8 * 3);
  EXPECT_EQ(layout.page_bytes(128), 128 * 584);
  const IndexKeyLayout key{CacheFormat::kPacked, 128};
  EXPECT_EQ(key.data_bytes(), 64);
  EXPECT_EQ(key.scale_offset(32, 5), 64 * 32 + 4 * 5);
  EXPECT_EQ(key.page_bytes(32), 32 * 68);
}

// Byte by byte: the codes, then bf16 little endian, then exponents + 127 and a zero.
TEST(KvRecord, PackedBytes) {
  const KvRecordLayout layout{CacheFormat::kPacked, 512, 64};
  std::vector<std::byte> page(static_cast<std::size_t>(layout.page_bytes(2)), std::byte{0xcb});
  const CacheRecord record{page.data() + layout.data_offset(1), page.data() + layout.scale_offset(2, 1)};
  std::vector<float> values(512, 0.0f);
  values[0] = 448.0f;
  values[1] = -1.0f;
  values[64] = 1.0f;  // 1 / 448 rounds up to 2^-8: code of 256
  values[448] = 1.5f;
  values[511] = -2.0f;
  write_kv_record(layout, record, values);
  const auto byte = [&](std::int64_t i) { return std::to_integer<int>(page[static_cast<std::size_t>(i)]); };
  EXPECT_EQ(byte(576), 0x7e);       // 448
  EXPECT_EQ(byte(577), 0xb8);       // -1
  EXPECT_EQ(byte(576 + 64), 0x78);  // 256
  EXPECT_EQ(byte(576 + 448), 0xc0);
  EXPECT_EQ(byte(576 + 449), 0x3f);
  EXPECT_EQ(byte(576 + 574), 0x00);
  EXPECT_EQ(byte(576 + 575), 0xc0);
  EXPECT_EQ(byte(1152 + 8), 127);
  EXPECT_EQ(byte(1152 + 9), 127 - 8);
  // A block of zeros has the floor's scale: ceil(log2(1e-4 / 448)) = -22.
  for (std::int64_t block = 2; block < 7; ++block) EXPECT_EQ(byte(1152 + 8 + block), 127 - 22);
  EXPECT_EQ(byte(1152 + 15), 0);
  for (std::int64_t i = 0; i < 576; ++i) EXPECT_EQ(byte(i), 0xcb) << "record 0 is not touched";
  for (std::int64_t i = 1152; i < 1160; ++i) EXPECT_EQ(byte(i), 0xcb);
}

TEST(KvRecord, PackedHoldsQuantisedValuesExactly) {
  Random random;
  for (const auto& [head_dim, rope_dim] : {std::pair{512, 64}, std::pair{176, 64}, std::pair{72, 8}}) {
    const KvRecordLayout layout{CacheFormat::kPacked, head_dim, rope_dim};
    std::vector<std::byte> page(static_cast<std::size_t>(layout.page_bytes(1)));
    const CacheRecord record{page.data(), page.data() + layout.scale_offset(1, 0)};
    for (int trial = 0; trial < 20; ++trial) {
      std::vector<float> values(static_cast<std::size_t>(head_dim));
      const float scale = std::ldexp(1.0f, static_cast<int>(random.integer(-20, 20)));
      for (float& value : values) value = round_to_bf16(scale * random.normal());
      simulate_e4m3(std::span<float>(values).first(static_cast<std::size_t>(layout.nope_dim())), 64);
      write_kv_record(layout, record, values);
      std::vector<float> back(values.size(), NAN);
      read_kv_record(layout, record, back);
      for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(back[i], values[i]) << i;
    }
  }
}

TEST(IndexKey, PackedBytesAndValues) {
  const IndexKeyLayout layout{CacheFormat::kPacked, 128};
  std::vector<std::byte> page(static_cast<std::size_t>(layout.page_bytes(1)), std::byte{0xcb});
  const CacheRecord record{page.data(), page.data() + layout.scale_offset(1, 0)};
  std::vector<float> values(128, 0.0f);
  values[0] = 6.0f;
  values[1] = -1.5f;   // odd channel: high nibble, sign in bit 3
  values[32] = 12.0f;  // the next block's scale is 2
  values[33] = -0.1f;  // rounds to -0
  write_index_key(layout, record, values);
  const auto byte = [&](std::size_t i) { return std::to_integer<int>(page[i]); };
  EXPECT_EQ(byte(0), 0xb7);
  EXPECT_EQ(byte(16), 0x87);
  EXPECT_EQ(byte(64), 127);
  EXPECT_EQ(byte(65), 128);
  std::vector<float> back(128, NAN);
  read_index_key(layout, record, back);
  EXPECT_EQ(back[0], 6.0f);
  EXPECT_EQ(back[1], -1.5f);
  EXPECT_EQ(back[32], 12.0f);
  EXPECT_TRUE(std::signbit(back[33]) && back[33] == 0.0f);
}

// No two rows of any kind share a byte, and each lies in its own block.
TEST(CacheRecords, PositionsAndEntriesDoNotOverlap) {
  Random random;
  for (std::int32_t ratio : {4, 128}) {
    for (const bool packed : {false, true}) {
      const PagedCache cache(random, ratio, packed, 2, 400, 80, 16, 32);
      const LayerCache& layer = cache.layer();
      std::vector<std::pair<std::byte*, std::int64_t>> ranges;
      for (std::int32_t sequence : {0, 1}) {
        const StepPart part[] = {{sequence, 0, 400}};
        const TestStep step = cache.make_step(part);
        const auto add = [&](CacheRecord record, const auto& layout) {
          ranges.emplace_back(record.data, layout.data_bytes());
          if (record.scales != nullptr) ranges.emplace_back(record.scales, layout.scale_bytes());
        };
        for (std::int32_t p = 0; p < 400; ++p) add(window_record(step.rows(), cache.pools(), layer, 0, p), layer.kv);
        for (std::int32_t j = 0; j < 400 / ratio; ++j) {
          add(entry_record(step.rows(), cache.pools(), layer, 0, j), layer.kv);
          if (ratio == 4) add(index_key_record(step.rows(), cache.pools(), layer, 0, j), layer.index_key);
        }
        for (std::int32_t p = 0; p < compressor_slots(ratio); ++p) {
          const std::int32_t width = 80 * (ratio == 4 ? 2 : 1);
          for (std::int64_t offset : {layer.main_u_offset_bytes, layer.main_g_offset_bytes}) {
            ranges.emplace_back(state_row(step.rows(), cache.pools(), 0, offset, ratio, width, p), 4 * width);
          }
        }
      }
      std::sort(ranges.begin(), ranges.end());
      for (std::size_t i = 1; i < ranges.size(); ++i) {
        ASSERT_LE(ranges[i - 1].first + ranges[i - 1].second, ranges[i].first) << i;
      }
    }
  }
}

// A step that starts late has a window table that starts late; the same position is the same record.
TEST(CacheRecords, WindowTablesMayStartLate) {
  Random random;
  const PagedCache cache(random, 0, true, 1, 600);
  const StepPart early[] = {{0, 0, 1}};
  const StepPart late[] = {{0, 500, 1}};
  const TestStep from_start = cache.make_step(early);
  const TestStep from_there = cache.make_step(late);
  for (std::int32_t p = 384; p < 501; ++p) {
    EXPECT_EQ(window_record(from_start.rows(), cache.pools(), cache.layer(), 0, p).data,
              window_record(from_there.rows(), cache.pools(), cache.layer(), 0, p).data);
  }
}

TEST(CacheRecords, CompressorRowsComeBackAfterAllSlots) {
  Random random;
  const PagedCache cache(random, 4, true, 1, 400);
  const StepPart part[] = {{0, 0, 1}};
  const TestStep step = cache.make_step(part);
  const auto row = [&](std::int32_t p) {
    return state_row(step.rows(), cache.pools(), 0, cache.layer().main_u_offset_bytes, 4, 1024, p);
  };
  EXPECT_EQ(row(16), row(0));
  for (std::int32_t p = 1; p < 16; ++p) EXPECT_EQ(row(p) - row(p - 1), 4 * 1024);
}

}  // namespace
}  // namespace fathom::testing
