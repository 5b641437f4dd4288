#include <algorithm>

#include "ops/cache_records.h"
#include "ops/index_scores/index_scores.h"
#include "ops/simd/products.h"
#include "ops/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/index_scores/cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "ops/simd/records-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {

constexpr std::int64_t kTileKeys = 32;  // keys of a tile: a page of packed records

// Four words of each of L records, `stride` bytes apart: lane 4 b + i of the result is word i of record 4 b.
template <class D>
HWY_INLINE hn::Vec<D> load_words(D d, const std::uint8_t* p, std::int64_t stride) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::BitCast(d, hn::LoadU(hn::Repartition<std::uint8_t, D>(), p));
  } else {
    const hn::Half<D> half;
    const auto low = load_words(half, p, stride);
    const auto high = load_words(half, p + stride * static_cast<std::int64_t>(hn::MaxLanes(D())) / 2, stride);
    return hn::Combine(d, high, low);
  }
}

// Word w + i of L consecutive records, record r in lane r, for i in 0..3.
HWY_INLINE void load_transposed(const std::uint8_t* p, std::int64_t stride, hn::Vec<UintTag> (&words)[4]) {
  const UintTag d;
  const hn::RepartitionToWide<UintTag> wide;
  const auto a = load_words(d, p, stride), b = load_words(d, p + stride, stride);
  const auto c = load_words(d, p + 2 * stride, stride), e = load_words(d, p + 3 * stride, stride);
  const auto ab_low = hn::BitCast(wide, hn::InterleaveLower(d, a, b));
  const auto ab_high = hn::BitCast(wide, hn::InterleaveUpper(d, a, b));
  const auto ce_low = hn::BitCast(wide, hn::InterleaveLower(d, c, e));
  const auto ce_high = hn::BitCast(wide, hn::InterleaveUpper(d, c, e));
  words[0] = hn::BitCast(d, hn::InterleaveLower(wide, ab_low, ce_low));
  words[1] = hn::BitCast(d, hn::InterleaveUpper(wide, ab_low, ce_low));
  words[2] = hn::BitCast(d, hn::InterleaveLower(wide, ab_high, ce_high));
  words[3] = hn::BitCast(d, hn::InterleaveUpper(wide, ab_high, ce_high));
}

// A page of kTileKeys records -> tile [width][kTileKeys] fp32: keys stand in lanes, so that a score needs no sum over
// lanes. Records beyond a sequence's length give scores that nobody stores.
void decode_keys(const IndexKeyLayout& layout, CacheRecord page, float* tile) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(page.data);
  const std::int64_t stride = layout.data_bytes();
  hn::Vec<UintTag> words[4];
  for (std::int64_t key = 0; key < kTileKeys; key += kLanes) {
    const std::uint8_t* records = data + key * stride;
    if (layout.format == CacheFormat::kFloat) {
      for (std::int64_t c = 0; c < layout.head_dim; c += 4) {
        load_transposed(records + 4 * c, stride, words);
        for (int i = 0; i < 4; ++i) store(hn::BitCast(FloatTag(), words[i]), tile + (c + i) * kTileKeys + key);
      }
      continue;
    }
    for (std::int64_t c = 0; c < layout.head_dim; c += kIndexBlock) {  // 32 channels: one scale, four words
      HWY_ALIGN float scales[kLanes];
      for (std::size_t i = 0; i < kLanes; ++i) {
        scales[i] = exponent_byte_to_float(
            page.scales[(key + static_cast<std::int64_t>(i)) * layout.scale_bytes() + c / kIndexBlock]);
      }
      const FloatVec scale = hn::Load(FloatTag(), scales);
      load_transposed(records + c / 2, stride, words);
      for (int i = 0; i < 4; ++i) {
        float* out = tile + (c + 8 * i) * kTileKeys + key;
        auto word = words[i];
        for (int nibble = 0; nibble < 8; ++nibble) {
          store(hn::Mul(e2m1_value(word), scale), out + nibble * kTileKeys);
          word = hn::ShiftRight<4>(word);
        }
      }
    }
  }
}

// Adds relu(q_h . k) * weights[h] for kHeads heads to the totals of kVectors vectors of keys.
template <int kHeads, int kVectors>
HWY_INLINE void add_heads(const float* q, const float* weights, float weight_scale, std::int64_t width,
                          const float* tile, FloatVec (&totals)[kVectors]) {
  const FloatTag d;
  FloatVec acc[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVectors; ++v) acc[h][v] = hn::Zero(d);
  }
  for (std::int64_t c = 0; c < width; ++c) {
    FloatVec k[kVectors];
    for (int v = 0; v < kVectors; ++v) k[v] = hn::Load(d, tile + c * kTileKeys + v * kLanes);
    for (int h = 0; h < kHeads; ++h) {
      const FloatVec x = hn::Set(d, q[h * width + c]);
      for (int v = 0; v < kVectors; ++v) acc[h][v] = hn::MulAdd(x, k[v], acc[h][v]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    const FloatVec weight = hn::Set(d, weights[h] * weight_scale);
    for (int v = 0; v < kVectors; ++v) {
      totals[v] = hn::MulAdd(hn::Max(acc[h][v], hn::Zero(d)), weight, totals[v]);
    }
  }
}

// scores[i] = sum_h relu(q_h . k_i) * weights[h] for the tile's first `count` keys: channels add in order, then heads.
void score_keys(const float* q, const float* weights, float weight_scale, std::int64_t num_heads, std::int64_t width,
                const float* tile, std::int64_t count, float* scores) {
  constexpr int kVectors = 2;
  constexpr int kHeads = kLanes == 16 ? 8 : 4;
  for (std::int64_t key = 0; key < count; key += kVectors * kLanes) {
    FloatVec totals[kVectors];
    for (int v = 0; v < kVectors; ++v) totals[v] = hn::Zero(FloatTag());
    std::int64_t h = 0;
    for (; h + kHeads <= num_heads; h += kHeads) {
      add_heads<kHeads, kVectors>(q + h * width, weights + h, weight_scale, width, tile + key, totals);
    }
    for (; h < num_heads; ++h) {
      add_heads<1, kVectors>(q + h * width, weights + h, weight_scale, width, tile + key, totals);
    }
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t at = key + v * static_cast<std::int64_t>(kLanes);
      if (at < count) store_some(totals[v], scores + at, static_cast<std::size_t>(count - at));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom {
HWY_EXPORT(decode_keys);
HWY_EXPORT(score_keys);
namespace {

constexpr std::int64_t kPageKeys = kBlockTokens / 4;
constexpr std::int64_t kIndexKeyBlock = 32;
constexpr std::int64_t kQueryFloats = 16384;  // queries that share a decoded page: they stay in the first-level cache

std::int64_t block_rows(const IndexScoresDesc& desc) {
  return std::clamp<std::int64_t>(kQueryFloats / (desc.num_heads * desc.cache.index_key.head_dim), 1, 16);
}

std::int64_t tile_floats(const IndexScoresDesc& desc) { return kPageKeys * desc.cache.index_key.head_dim; }

// Rows [begin, end) of the call, all of one sequence; the pages whose index mod `of_parts` is `part`.
void score_block(const IndexScoresDesc& desc, const IndexScoresArgs& args, std::int64_t begin, std::int64_t end,
                 std::int64_t part, std::int64_t of_parts, float* tile) {
  const StepRows& rows = *args.rows;
  const std::int64_t width = desc.cache.index_key.head_dim;
  const std::int64_t stride = args.scores.shape[1];
  const auto visible_of = [&](std::int64_t row) {
    const std::int64_t position = rows.positions.as<std::int32_t>()[args.first_row + row];
    return (position + 1) / desc.cache.ratio;
  };
  while (begin < end && visible_of(begin) <= desc.topk) ++begin;
  if (begin == end) return;
  const std::int64_t most = visible_of(end - 1);
  FATHOM_CHECK(most <= stride, "a row of scores holds the visible entries");
  const std::int32_t sequence = rows.sequence_of.as<std::int32_t>()[args.first_row + begin];
  for (std::int64_t first = part * kPageKeys; first < most; first += of_parts * kPageKeys) {
    HWY_DYNAMIC_DISPATCH(decode_keys)
    (desc.cache.index_key, index_key_record(rows, args.pools, desc.cache, sequence, first), tile);
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t count = std::min(kPageKeys, visible_of(row) - first);
      if (count <= 0) continue;
      const std::int64_t t = args.first_row + row;
      HWY_DYNAMIC_DISPATCH(score_keys)
      (args.q.as<float>() + t * desc.num_heads * width, args.weights_raw.as<float>() + t * desc.num_heads,
       desc.weight_scale, desc.num_heads, width, tile, count, args.scores.as<float>() + row * stride + first);
    }
  }
}

}  // namespace

std::int64_t index_scores_cpu_workspace(const IndexScoresDesc& desc, const DeviceInfo& device) {
  return std::max(device.num_threads, 1) * simd::Scratch::aligned_bytes<float>(tile_floats(desc));
}

void index_scores_cpu(ExecutionContext& context, const IndexScoresPlan& plan, const IndexScoresArgs& args) {
  const IndexScoresDesc& desc = plan.desc;
  const std::int64_t num_rows = args.scores.shape[0];
  const std::int32_t* positions = args.rows->positions.as<std::int32_t>() + args.first_row;
  if (std::all_of(positions, positions + num_rows,
                  [&](std::int64_t position) { return (position + 1) / desc.cache.ratio <= desc.topk; })) {
    return;
  }
  FATHOM_CHECK(desc.cache.index_key.head_dim % kIndexKeyBlock == 0 && desc.cache.entries_per_block() == kPageKeys,
               "index keys have a multiple of 32 channels and stand in pages of 32");
  const std::int32_t* sequence_of = args.rows->sequence_of.as<std::int32_t>() + args.first_row;
  const std::int64_t floats = simd::Scratch::aligned_bytes<float>(tile_floats(desc)) / 4;
  simd::Scratch scratch(context);
  const std::int64_t parts = std::min<std::int64_t>(simd::num_threads(context), scratch.left_bytes() / (4 * floats));
  float* base = scratch.take<float>(parts * floats);

  // Blocks of rows of one sequence; with fewer blocks than threads, threads share a block's keys.
  const std::int64_t height = block_rows(desc);
  const auto for_each_block = [&](auto&& body) {
    std::int64_t index = 0;
    for (std::int64_t begin = 0; begin < num_rows; ++index) {
      std::int64_t end = begin + 1;
      while (end < num_rows && end - begin < height && sequence_of[end] == sequence_of[begin]) ++end;
      body(index, begin, end);
      begin = end;
    }
    return index;
  };
  const std::int64_t num_blocks = for_each_block([](std::int64_t, std::int64_t, std::int64_t) {});
  simd::run_parts(context, parts, [&](std::int64_t part) {
    float* tile = base + part * floats;
    for_each_block([&](std::int64_t index, std::int64_t begin, std::int64_t end) {
      if (num_blocks < parts) {
        score_block(desc, args, begin, end, part, parts, tile);
      } else if (index % parts == part) {
        score_block(desc, args, begin, end, 0, 1, tile);
      }
    });
  });
}

}  // namespace fathom
#endif  // HWY_ONCE
