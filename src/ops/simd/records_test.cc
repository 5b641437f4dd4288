#include "ops/simd/records.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "ops/simd/instruction_set.h"

namespace fathom::simd {
namespace {

// Bytes equal those of ops/cache_records.h, on every instruction set, and a NaN stays one: its block reads as NaN.
TEST(SimdRecords, NanIsWrittenAndRead) {
  constexpr std::int32_t kHeadDim = 512;
  const KvRecordLayout layout{CacheFormat::kPacked, kHeadDim, 64};
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const std::string best = instruction_set();
  for (const char* name : {"SSE4", "AVX2", "AVX3"}) {
    if (!choose_instruction_set(name)) continue;
    SCOPED_TRACE(name);
    for (const std::int32_t place : {-1, 0, 63, 64, 200, 447, 448, 511}) {
      SCOPED_TRACE("NaN in channel " + std::to_string(place));
      std::vector<float> values(kHeadDim);
      for (float& value : values) value = normal(random);
      // All bits set: rounding it like a number would carry into the sign.
      if (place >= 0) values[static_cast<std::size_t>(place)] = std::bit_cast<float>(0x7fffffffu);
      std::vector<std::byte> page(static_cast<std::size_t>(layout.page_bytes(1)));
      std::vector<std::byte> expected_page = page;
      const auto record_in = [&](std::vector<std::byte>& bytes) {
        return CacheRecord{bytes.data(), bytes.data() + layout.scale_offset(1, 0)};
      };
      write_kv_record(layout, record_in(page), values.data());
      fathom::write_kv_record(layout, record_in(expected_page), values);
      if (place < 0 || place >= layout.nope_dim()) {
        EXPECT_EQ(page, expected_page);
      }
      std::vector<float> read(kHeadDim), expected(kHeadDim);
      read_kv_record(layout, record_in(page), read.data());
      fathom::read_kv_record(layout, record_in(expected_page), expected);
      for (std::int32_t i = 0; i < kHeadDim; ++i) {
        const bool is_nan = place >= 0 && (place < layout.nope_dim() ? i / 64 == place / 64 : i == place);
        const auto at = static_cast<std::size_t>(i);
        EXPECT_EQ(std::isnan(read[at]), is_nan) << i;
        EXPECT_EQ(std::isnan(expected[at]), is_nan) << i;
        if (!is_nan) {
          EXPECT_EQ(read[at], expected[at]) << i;
        }
      }
    }
  }
  choose_instruction_set(best);
}

}  // namespace
}  // namespace fathom::simd
