#include "ops/cache_records.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/block_quantise.h"
#include "tensor/scalar_formats.h"

namespace fathom {
namespace {

constexpr std::size_t kKvBlock = 64;
constexpr std::size_t kIndexBlock = 32;

// Byte of a scale 2^exponent; AQ's and FQ's floors and fp32's range keep it inside 1 .. 254.
std::byte scale_byte(int exponent) { return static_cast<std::byte>(exponent + 127); }
constexpr std::byte kNanScale{255};  // E8M0's NaN

template <typename Layout>
CacheRecord record_in_page(const Layout& layout, std::byte* page, std::int64_t page_rows, std::int64_t row) {
  CacheRecord record;
  record.data = page + layout.data_offset(row);
  if (layout.format == CacheFormat::kPacked) record.scales = page + layout.scale_offset(page_rows, row);
  return record;
}

// First byte of the context block that holds entry `entry`.
std::byte* context_block_of(const StepRows& rows, const CachePools& pools, const LayerCache& cache,
                            std::int32_t sequence, std::int64_t entry) {
  const std::int64_t logical = entry / cache.entries_per_block();
  const std::int32_t block =
      rows.context_table.as<std::int32_t>()[rows.context_offset.as<std::int64_t>()[sequence] + logical];
  return pools.context + block * pools.context_block_bytes;
}

}  // namespace

CacheRecord window_record(const StepRows& rows, const CachePools& pools, const LayerCache& cache, std::int32_t sequence,
                          std::int32_t position) {
  const std::int64_t logical = position / kBlockTokens - rows.window_first.as<std::int32_t>()[sequence];
  FATHOM_CHECK(position >= 0 && logical >= 0, "a window position lies at or after the table's first block");
  const std::int32_t block =
      rows.window_table.as<std::int32_t>()[rows.window_offset.as<std::int64_t>()[sequence] + logical];
  std::byte* page = pools.window + block * pools.window_block_bytes + cache.window_offset_bytes;
  return record_in_page(cache.kv, page, kBlockTokens, position % kBlockTokens);
}

CacheRecord entry_record(const StepRows& rows, const CachePools& pools, const LayerCache& cache, std::int32_t sequence,
                         std::int64_t entry) {
  std::byte* page = context_block_of(rows, pools, cache, sequence, entry) + cache.entry_offset_bytes;
  return record_in_page(cache.kv, page, cache.entries_per_block(), entry % cache.entries_per_block());
}

CacheRecord index_key_record(const StepRows& rows, const CachePools& pools, const LayerCache& cache,
                             std::int32_t sequence, std::int64_t entry) {
  std::byte* page = context_block_of(rows, pools, cache, sequence, entry) + cache.index_key_offset_bytes;
  return record_in_page(cache.index_key, page, cache.entries_per_block(), entry % cache.entries_per_block());
}

std::byte* state_row(const StepRows& rows, const CachePools& pools, std::int32_t sequence, std::int64_t offset_bytes,
                     std::int32_t ratio, std::int32_t width, std::int32_t position) {
  const std::int32_t slab = rows.state_slot.as<std::int32_t>()[sequence];
  const std::int64_t slot = position % compressor_slots(ratio);
  return pools.state + slab * pools.state_slot_bytes + offset_bytes +
         slot * width * static_cast<std::int64_t>(sizeof(float));
}

void write_kv_record(const KvRecordLayout& layout, CacheRecord record, std::span<const float> values) {
  FATHOM_CHECK(static_cast<std::int32_t>(values.size()) == layout.head_dim, "a record holds head_dim channels");
  if (layout.format == CacheFormat::kFloat) {
    std::memcpy(record.data, values.data(), values.size_bytes());
    return;
  }
  const auto nope = static_cast<std::size_t>(layout.nope_dim());
  std::fill_n(record.scales, layout.scale_bytes(), std::byte{0});
  std::array<std::uint8_t, kKvBlock> codes;
  for (std::size_t begin = 0; begin < nope; begin += kKvBlock) {
    const std::size_t n = std::min(kKvBlock, nope - begin);
    const int exponent = quantise_e4m3_block(values.subspan(begin, n), std::span(codes).first(n));
    std::memcpy(record.data + begin, codes.data(), n);
    const bool has_nan = std::any_of(codes.begin(), codes.begin() + static_cast<std::ptrdiff_t>(n),
                                     [](std::uint8_t code) { return (code & 0x7f) == 0x7f; });
    record.scales[begin / kKvBlock] = has_nan ? kNanScale : scale_byte(exponent);
  }
  for (std::size_t i = nope; i < values.size(); ++i) {
    const Bf16 bits = float_to_bf16(values[i]);
    std::memcpy(record.data + nope + (i - nope) * sizeof(bits), &bits, sizeof(bits));
  }
}

void read_kv_record(const KvRecordLayout& layout, CacheRecord record, std::span<float> values) {
  FATHOM_CHECK(static_cast<std::int32_t>(values.size()) == layout.head_dim, "a record holds head_dim channels");
  if (layout.format == CacheFormat::kFloat) {
    std::memcpy(values.data(), record.data, values.size_bytes());
    return;
  }
  const auto nope = static_cast<std::size_t>(layout.nope_dim());
  for (std::size_t i = 0; i < nope; ++i) {
    values[i] = e4m3_to_float(static_cast<std::uint8_t>(record.data[i])) *
                e8m0_to_float(static_cast<std::uint8_t>(record.scales[i / kKvBlock]));
  }
  for (std::size_t i = nope; i < values.size(); ++i) {
    Bf16 bits;
    std::memcpy(&bits, record.data + nope + (i - nope) * sizeof(bits), sizeof(bits));
    values[i] = bf16_to_float(bits);
  }
}

void write_index_key(const IndexKeyLayout& layout, CacheRecord record, std::span<const float> values) {
  FATHOM_CHECK(static_cast<std::int32_t>(values.size()) == layout.head_dim, "a key holds index_head_dim channels");
  if (layout.format == CacheFormat::kFloat) {
    std::memcpy(record.data, values.data(), values.size_bytes());
    return;
  }
  std::array<std::uint8_t, kIndexBlock> codes;
  for (std::size_t begin = 0; begin < values.size(); begin += kIndexBlock) {
    const int exponent = quantise_e2m1_block(values.subspan(begin, kIndexBlock), codes);
    for (std::size_t i = 0; i < kIndexBlock; i += 2) {
      record.data[(begin + i) / 2] = static_cast<std::byte>(codes[i] | codes[i + 1] << 4);
    }
    record.scales[begin / kIndexBlock] = scale_byte(exponent);
  }
}

void read_index_key(const IndexKeyLayout& layout, CacheRecord record, std::span<float> values) {
  FATHOM_CHECK(static_cast<std::int32_t>(values.size()) == layout.head_dim, "a key holds index_head_dim channels");
  if (layout.format == CacheFormat::kFloat) {
    std::memcpy(values.data(), record.data, values.size_bytes());
    return;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto pair = static_cast<std::uint8_t>(record.data[i / 2]);
    values[i] = kE2m1Values[i % 2 == 0 ? pair & 15 : pair >> 4] *
                e8m0_to_float(static_cast<std::uint8_t>(record.scales[i / kIndexBlock]));
  }
}

}  // namespace fathom
