// One group of keys against the heads of one row, and the fold of groups (sparse_attention.h), on vectors.

// clang-format off
#if defined(FATHOM_OPS_SPARSE_ATTENTION_ATTEND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FATHOM_OPS_SPARSE_ATTENTION_ATTEND_INL_H_
#undef FATHOM_OPS_SPARSE_ATTENTION_ATTEND_INL_H_
#else
#define FATHOM_OPS_SPARSE_ATTENTION_ATTEND_INL_H_
#endif
// clang-format on

#include <cmath>

#include "ops/simd/micro_tile-inl.h"
#include "ops/simd/records-inl.h"
#include "ops/simd/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {

// o[h][c] = sum_i p[h][i] * keys[i][c] for kHeads heads and kVectors vectors of channels from c; keys add in order.
template <int kHeads, int kVectors>
HWY_INLINE void weigh_channels(const float* p, std::int64_t p_stride, const float* keys, std::int64_t num_keys,
                               std::int64_t width, std::int64_t c, float* o) {
  const FloatTag d;
  FloatVec acc[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVectors; ++v) acc[h][v] = hn::Zero(d);
  }
  for (std::int64_t i = 0; i < num_keys; ++i) {
    const float* key = keys + i * width + c;
    FloatVec k[kVectors];
    for (int v = 0; v < kVectors; ++v) k[v] = load(key + v * kLanes);
    for (int h = 0; h < kHeads; ++h) {
      const FloatVec weight = hn::Set(d, p[h * p_stride + i]);
      for (int v = 0; v < kVectors; ++v) acc[h][v] = hn::MulAdd(weight, k[v], acc[h][v]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVectors; ++v) store(acc[h][v], o + h * width + c + v * kLanes);
  }
}

template <int kHeads>
HWY_INLINE void weigh_heads(const float* p, std::int64_t p_stride, const float* keys, std::int64_t num_keys,
                            std::int64_t width, float* o) {
  constexpr std::int64_t kBlock = 2 * kLanes;
  std::int64_t c = 0;
  for (; c + kBlock <= width; c += kBlock) weigh_channels<kHeads, 2>(p, p_stride, keys, num_keys, width, c, o);
  for (; c < width; c += kLanes) weigh_channels<kHeads, 1>(p, p_stride, keys, num_keys, width, c, o);
}

HWY_INLINE void weigh_keys(const float* p, std::int64_t p_stride, const float* keys, std::int64_t num_keys,
                           std::int64_t width, std::int64_t num_heads, float* o) {
  constexpr int kMost = kLanes == 16 ? 8 : 4;
  std::int64_t h = 0;
  for (; h + kMost <= num_heads; h += kMost) {
    weigh_heads<kMost>(p + h * p_stride, p_stride, keys, num_keys, width, o + h * width);
  }
  if constexpr (kMost > 4) {
    for (; h + 4 <= num_heads; h += 4) {
      weigh_heads<4>(p + h * p_stride, p_stride, keys, num_keys, width, o + h * width);
    }
  }
  for (; h + 2 <= num_heads; h += 2) {
    weigh_heads<2>(p + h * p_stride, p_stride, keys, num_keys, width, o + h * width);
  }
  for (; h < num_heads; ++h) weigh_heads<1>(p + h * p_stride, p_stride, keys, num_keys, width, o + h * width);
}

// s -> exp(s * scale - m) in place with m their maximum; returns the sum, one accumulator a lane.
HWY_INLINE float exponentiate(float* s, std::int64_t n, float scale, float& m) {
  const FloatTag d;
  FloatVec largest = hn::Set(d, -HUGE_VALF);
  for_each_vector(n, [&](std::int64_t i, std::size_t lanes) HWY_ATTR {
    const FloatVec scaled = hn::Mul(load_some(s + i, lanes, -HUGE_VALF), hn::Set(d, scale));
    store(scaled, s + i);  // rows of s are padded to whole vectors
    largest = hn::Max(largest, scaled);
  });
  m = reduce_max(largest);
  FloatVec sum = hn::Zero(d);
  for_each_vector(n, [&](std::int64_t i, std::size_t) HWY_ATTR {
    const FloatVec p = exp_vec(hn::Sub(load(s + i), hn::Set(d, m)));
    store(p, s + i);
    sum = hn::Add(sum, p);
  });
  return reduce_one(sum);
}

// (m, l, o) of heads [0, num_heads) over `num_keys` >= 1 keys. s [heads][s_stride], a whole number of vectors.
// Keys are readable up to the next multiple of four.
void attend_group(const float* q, const float* keys, std::int64_t num_keys, std::int64_t width, std::int64_t num_heads,
                  float scale, float* s, std::int64_t s_stride, float* m, float* l, float* o) {
  for (std::int64_t n = 0; n < num_keys; n += kTileColumns) {
    const int columns = num_keys - n < kTileColumns ? static_cast<int>(num_keys - n) : kTileColumns;
    micro_rows({q, width, nullptr}, 0, num_heads, keys + n * width, width, width, {s, s_stride, nullptr}, n, columns,
               {});
  }
  for (std::int64_t h = 0; h < num_heads; ++h) l[h] = exponentiate(s + h * s_stride, num_keys, scale, m[h]);
  weigh_keys(s, s_stride, keys, num_keys, width, num_heads, o);
}

// (m, l, o) of each head becomes its fold with the group (m_b, l_b, o_b) to its right.
void fold_group(const float* m_b, const float* l_b, const float* o_b, std::int64_t width, std::int64_t num_heads,
                float* m, float* l, float* o) {
  const FloatTag d;
  for (std::int64_t h = 0; h < num_heads; ++h) {
    const float m_new = m[h] > m_b[h] ? m[h] : m_b[h];
    const float factor_a = std::exp(m[h] - m_new);
    const float factor_b = std::exp(m_b[h] - m_new);
    l[h] = l[h] * factor_a + l_b[h] * factor_b;
    m[h] = m_new;
    const FloatVec a = hn::Set(d, factor_a), b = hn::Set(d, factor_b);
    for (std::int64_t c = 0; c < width; c += kLanes) {
      float* at = o + h * width + c;
      store(hn::MulAdd(load(at), a, hn::Mul(load(o_b + h * width + c), b)), at);
    }
  }
}

// out = store(o / (l + exp(sink - m))), then the inverse rotation of the last rope_dim channels.
void finish_heads(const float* m, const float* l, const float* o, const std::byte* sinks, const float* cos_sin,
                  std::int64_t width, std::int64_t rope_dim, std::int64_t num_heads, bool round, float* out) {
  for (std::int64_t h = 0; h < num_heads; ++h) {
    float sink;
    std::memcpy(&sink, sinks + 4 * h, sizeof sink);
    // exp may be inf: then the quotient is 0.
    const FloatVec denominator = hn::Set(FloatTag(), l[h] + std::exp(sink - m[h]));
    float* row = out + h * width;
    for (std::int64_t c = 0; c < width; c += kLanes) {
      store(round_if(round, hn::Div(load(o + h * width + c), denominator)), row + c);
    }
    rotate<true>(row + width - rope_dim, cos_sin, rope_dim, round, row + width - rope_dim);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#endif
