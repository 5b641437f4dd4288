// Scores of quantised queries on packed keys. Both are doubled e2m1 values, integers of at most 12, times a power of
// two for each 32 channels: the products of a block add up exactly in 16 bits, and blocks add in fp32.

// clang-format off
#if defined(FATHOM_OPS_INDEX_SCORES_CODE_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FATHOM_OPS_INDEX_SCORES_CODE_KEYS_INL_H_
#undef FATHOM_OPS_INDEX_SCORES_CODE_KEYS_INL_H_
#else
#define FATHOM_OPS_INDEX_SCORES_CODE_KEYS_INL_H_
#endif
// clang-format on

#include "ops/index_scores/float_keys-inl.h"
#include "ops/index_scores/query_codes.h"

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {

using ByteTag = hn::Repartition<std::uint8_t, FloatTag>;
using ShortTag = hn::Repartition<std::int16_t, FloatTag>;
using ShortVec = hn::Vec<ShortTag>;

constexpr int kKeyOffset = 12;  // codes of keys are 2 * value + 12: unsigned, as the byte products want them

// Bytes of `a` (unsigned) times bytes of `b` (signed), neighbours added.
HWY_INLINE ShortVec multiply_byte_pairs(hn::Vec<ByteTag> a, hn::Vec<IntTag> b) {
#if HWY_TARGET == HWY_AVX3
  return ShortVec{_mm512_maddubs_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX2
  return ShortVec{_mm256_maddubs_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_SSE4
  return ShortVec{_mm_maddubs_epi16(a.raw, b.raw)};
#else
  const ShortTag d;
  const hn::RebindToUnsigned<ShortTag> du;
  const auto a16 = hn::BitCast(du, a);
  const auto b16 = hn::BitCast(d, b);
  const auto low = hn::Mul(hn::BitCast(d, hn::And(a16, hn::Set(du, 0xff))), hn::ShiftRight<8>(hn::ShiftLeft<8>(b16)));
  return hn::Add(low, hn::Mul(hn::BitCast(d, hn::ShiftRight<8>(a16)), hn::ShiftRight<8>(b16)));
#endif
}

// Neighbouring 16-bit integers added.
HWY_INLINE hn::Vec<IntTag> add_short_pairs(ShortVec v) {
#if HWY_TARGET == HWY_AVX3
  return hn::Vec<IntTag>{_mm512_madd_epi16(v.raw, _mm512_set1_epi16(1))};
#elif HWY_TARGET == HWY_AVX2
  return hn::Vec<IntTag>{_mm256_madd_epi16(v.raw, _mm256_set1_epi16(1))};
#elif HWY_TARGET == HWY_SSE4
  return hn::Vec<IntTag>{_mm_madd_epi16(v.raw, _mm_set1_epi16(1))};
#else
  const auto wide = hn::BitCast(IntTag(), v);
  return hn::Add(hn::ShiftRight<16>(wide), hn::ShiftRight<16>(hn::ShiftLeft<16>(wide)));
#endif
}

// num_blocks blocks of 32 channels. False if they are not e2m1 values times powers of two in fp32's inner range.
bool encode_queries(const float* q, std::int64_t num_blocks, QueryCodes* codes) {
  const FloatTag d;
  const hn::Rebind<std::int8_t, IntTag> d8;
  for (std::int64_t block = 0; block < num_blocks; ++block, q += kIndexBlock) {
    const float amax = absolute_maximum(q, kIndexBlock);
    std::uint32_t bits;
    std::memcpy(&bits, &amax, sizeof bits);
    // The power of two 2^e with 3 < amax / 2^e <= 6.
    int e = 0;
    if (bits != 0) {
      e = static_cast<int>(bits >> 23) - 127 - ((bits & 0x7fffffu) > 0x400000u ? 1 : 2);
      if (e < -100 || e > 100) return false;
    }
    const FloatVec inverse = hn::Set(d, power_of_two(1 - e));
    hn::Vec<IntTag> sum = hn::Zero(IntTag());
    std::int8_t bytes[kIndexBlock];
    for (std::int64_t i = 0; i < kIndexBlock; i += kLanes) {
      const FloatVec doubled = hn::Mul(load(q + i), inverse);
      const auto code = hn::NearestInt(doubled);
      if (!hn::AllTrue(d, hn::Eq(hn::ConvertTo(d, code), doubled))) return false;
      sum = hn::Add(sum, code);
      hn::StoreU(hn::DemoteTo(d8, code), d8, bytes + i);
    }
    QueryCodes& out = codes[block];
    for (int i = 0; i < 4; ++i) {
      std::uint64_t eight;
      std::memcpy(&eight, bytes + 8 * i, sizeof eight);
      for (int odd = 0; odd < 2; ++odd) {
        std::uint64_t word = eight >> (8 * odd) & 0x00ff00ff00ff00ffu;
        word = (word | word >> 8) & 0x0000ffff0000ffffu;
        out.words[2 * i + odd] = static_cast<std::int32_t>(static_cast<std::uint32_t>(word | word >> 16));
      }
    }
    const std::int32_t total = hn::GetLane(hn::SumOfLanes(IntTag(), sum));
    out.start = static_cast<std::int32_t>(static_cast<std::uint32_t>(-kKeyOffset * total) & 0xffffu);
    out.scale = power_of_two(e - 2);
  }
  return true;
}

// A page of kTileKeys packed records -> codes [width / 4][kTileKeys] words of four channels, in the queries' order,
// and scales [width / 32][kTileKeys].
void encode_keys(const IndexKeyLayout& layout, CacheRecord page, std::uint32_t* codes, float* scales) {
  HWY_ALIGN static constexpr std::uint8_t kCodes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
  const auto table = hn::LoadDup128(ByteTag(), kCodes);
  const auto nibbles = hn::Set(UintTag(), 0x0f0f0f0fu);
  const auto* data = reinterpret_cast<const std::uint8_t*>(page.data);
  const std::int64_t stride = layout.data_bytes();
  hn::Vec<UintTag> words[4];
  for (std::int64_t c = 0; c < layout.head_dim; c += kIndexBlock) {
    for (std::int64_t key = 0; key < kTileKeys; key += kLanes) {
      load_transposed(data + key * stride + c / 2, stride, words);
      std::uint32_t* out = codes + c / 4 * kTileKeys + key;
      for (int i = 0; i < 4; ++i) {
        const auto even = hn::And(words[i], nibbles);
        const auto odd = hn::And(hn::ShiftRight<4>(words[i]), nibbles);
        hn::StoreU(hn::BitCast(UintTag(), hn::TableLookupBytes(table, hn::BitCast(ByteTag(), even))), UintTag(),
                   out + 2 * i * kTileKeys);
        hn::StoreU(hn::BitCast(UintTag(), hn::TableLookupBytes(table, hn::BitCast(ByteTag(), odd))), UintTag(),
                   out + (2 * i + 1) * kTileKeys);
      }
    }
  }
  const std::int64_t per_key = layout.scale_bytes();
  if (per_key == 4) {  // a word a key
    const ByteTag d8;
    for (std::int64_t key = 0; key < kTileKeys; key += kLanes) {
      auto word = hn::BitCast(UintTag(), hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(page.scales) + 4 * key));
      for (std::int64_t b = 0; b < 4; ++b) {
        const auto exponent = hn::And(word, hn::Set(UintTag(), 0xffu));
        store(hn::BitCast(FloatTag(), hn::ShiftLeft<23>(exponent)), scales + b * kTileKeys + key);
        word = hn::ShiftRight<8>(word);
      }
    }
    return;
  }
  for (std::int64_t key = 0; key < kTileKeys; ++key) {
    for (std::int64_t b = 0; b < per_key; ++b) {
      scales[b * kTileKeys + key] = exponent_byte_to_float(page.scales[key * per_key + b]);
    }
  }
}

// Adds relu(q_h . k) * weights[h] for kHeads heads to the totals of kVectors vectors of keys.
template <int kHeads, int kVectors>
HWY_INLINE void add_coded_heads(const QueryCodes* q, std::int64_t num_blocks, const float* weights, float weight_scale,
                                const std::uint32_t* codes, const float* scales, FloatVec (&totals)[kVectors]) {
  const FloatTag d;
  FloatVec sums[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVectors; ++v) sums[h][v] = hn::Zero(d);
  }
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    ShortVec acc[kHeads][kVectors];
    for (int h = 0; h < kHeads; ++h) {
      const auto start = hn::BitCast(ShortTag(), hn::Set(IntTag(), q[h * num_blocks + b].start));
      for (int v = 0; v < kVectors; ++v) acc[h][v] = start;
    }
    // Unrolled, all products would come before their sums and leave the registers.
#pragma GCC unroll 1
    for (int i = 0; i < 8; ++i) {
      hn::Vec<ByteTag> k[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        k[v] = hn::BitCast(ByteTag(), hn::LoadU(UintTag(), codes + (8 * b + i) * kTileKeys + v * kLanes));
      }
      for (int h = 0; h < kHeads; ++h) {
        const auto x = hn::Set(IntTag(), q[h * num_blocks + b].words[i]);
        for (int v = 0; v < kVectors; ++v) acc[h][v] = hn::Add(acc[h][v], multiply_byte_pairs(k[v], x));
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      const FloatVec key_scale = load(scales + b * kTileKeys + v * kLanes);
      for (int h = 0; h < kHeads; ++h) {
        const FloatVec product = hn::Mul(hn::ConvertTo(d, add_short_pairs(acc[h][v])), key_scale);
        sums[h][v] = hn::MulAdd(product, hn::Set(d, q[h * num_blocks + b].scale), sums[h][v]);
      }
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    const FloatVec weight = hn::Set(d, weights[h] * weight_scale);
    for (int v = 0; v < kVectors; ++v) {
      totals[v] = hn::MulAdd(hn::Max(sums[h][v], hn::Zero(d)), weight, totals[v]);
    }
  }
}

// scores[i] = sum_h relu(q_h . k_i) * weights[h] for the tile's first `count` keys: blocks add in order, then heads.
void score_codes(const QueryCodes* q, const float* weights, float weight_scale, std::int64_t num_heads,
                 std::int64_t num_blocks, const std::uint32_t* codes, const float* scales, std::int64_t count,
                 float* scores) {
  constexpr int kVectors = 2;
  constexpr int kHeads = kLanes == 16 ? 4 : 2;
  for (std::int64_t key = 0; key < count; key += kVectors * kLanes) {
    FloatVec totals[kVectors];
    for (int v = 0; v < kVectors; ++v) totals[v] = hn::Zero(FloatTag());
    std::int64_t h = 0;
    for (; h + kHeads <= num_heads; h += kHeads) {
      add_coded_heads<kHeads, kVectors>(q + h * num_blocks, num_blocks, weights + h, weight_scale, codes + key,
                                        scales + key, totals);
    }
    for (; h < num_heads; ++h) {
      add_coded_heads<1, kVectors>(q + h * num_blocks, num_blocks, weights + h, weight_scale, codes + key, scales + key,
                                   totals);
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
