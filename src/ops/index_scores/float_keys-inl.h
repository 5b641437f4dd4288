// Index keys decoded to fp32, and their scores for any queries.

// clang-format off
#if defined(FATHOM_OPS_INDEX_SCORES_FLOAT_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FATHOM_OPS_INDEX_SCORES_FLOAT_KEYS_INL_H_
#undef FATHOM_OPS_INDEX_SCORES_FLOAT_KEYS_INL_H_
#else
#define FATHOM_OPS_INDEX_SCORES_FLOAT_KEYS_INL_H_
#endif
// clang-format on

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

#endif
