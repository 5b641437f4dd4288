// The inner product kernel: x rows against rows of fp32, lanes along K (see vectors-inl.h for the order).

// clang-format off
#if defined(FATHOM_OPS_SIMD_MICRO_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FATHOM_OPS_SIMD_MICRO_TILE_INL_H_
#undef FATHOM_OPS_SIMD_MICRO_TILE_INL_H_
#else
#define FATHOM_OPS_SIMD_MICRO_TILE_INL_H_
#endif
// clang-format on

#include "ops/simd/matmul.h"
#include "ops/simd/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {

constexpr int kTileColumns = 4;                  // outputs of a micro tile along N
constexpr int kTileRows = kLanes == 16 ? 6 : 3;  // and along M: accumulators fill the register file
HWY_INLINE void put(hn::Vec<hn::CappedTag<float, 4>> sums, simd::MatmulStore how, float* out, int count) {
  const hn::CappedTag<float, 4> d4;
  if (how.round) sums = round_to_bf16_vec(d4, sums);
  if (count == 4) {
    if (how.accumulate) sums = hn::Add(hn::LoadU(d4, out), sums);
    hn::StoreU(sums, d4, out);
    return;
  }
  float buffer[4];
  hn::StoreU(sums, d4, buffer);
  for (int i = 0; i < count; ++i) out[i] = how.accumulate ? out[i] + buffer[i] : buffer[i];
}

// kRows x 4 outputs: x rows against four tile rows.
template <int kRows>
HWY_INLINE void micro_tile(const simd::InputRows& x, std::int64_t first, const float* w, std::int64_t w_stride,
                           std::int64_t columns, const simd::OutputRows& out, std::int64_t n, int count,
                           simd::MatmulStore how) {
  const FloatTag d;
  const float* rows[kRows];
  FloatVec acc[kRows][kTileColumns];
  for (int m = 0; m < kRows; ++m) {
    rows[m] = x.row(first + m);
    for (int j = 0; j < kTileColumns; ++j) acc[m][j] = hn::Zero(d);
  }
  const float* w0 = w;
  const float* w1 = w + w_stride;
  const float* w2 = w + 2 * w_stride;
  const float* w3 = w + 3 * w_stride;
  for (std::int64_t c = 0; c < columns; c += kLanes) {
    const FloatVec b0 = hn::Load(d, w0 + c), b1 = hn::Load(d, w1 + c);
    const FloatVec b2 = hn::Load(d, w2 + c), b3 = hn::Load(d, w3 + c);
    for (int m = 0; m < kRows; ++m) {
      const FloatVec a = load(rows[m] + c);
      acc[m][0] = hn::MulAdd(b0, a, acc[m][0]);
      acc[m][1] = hn::MulAdd(b1, a, acc[m][1]);
      acc[m][2] = hn::MulAdd(b2, a, acc[m][2]);
      acc[m][3] = hn::MulAdd(b3, a, acc[m][3]);
    }
  }
  for (int m = 0; m < kRows; ++m) {
    put(reduce_four(acc[m][0], acc[m][1], acc[m][2], acc[m][3]), how, out.row(first + m) + n, count);
  }
}

HWY_INLINE void micro_rows(const simd::InputRows& x, std::int64_t first, std::int64_t num_rows, const float* w,
                           std::int64_t w_stride, std::int64_t columns, const simd::OutputRows& out, std::int64_t n,
                           int count, simd::MatmulStore how) {
  std::int64_t m = first;
  const std::int64_t end = first + num_rows;
  for (; m + kTileRows <= end; m += kTileRows) {
    micro_tile<kTileRows>(x, m, w, w_stride, columns, out, n, count, how);
  }
  if constexpr (kTileRows > 3) {
    if (end - m == 5) return micro_tile<5>(x, m, w, w_stride, columns, out, n, count, how);
    if (end - m == 4) return micro_tile<4>(x, m, w, w_stride, columns, out, n, count, how);
    if (end - m == 3) return micro_tile<3>(x, m, w, w_stride, columns, out, n, count, how);
  }
  if (end - m == 2) return micro_tile<2>(x, m, w, w_stride, columns, out, n, count, how);
  if (end - m == 1) return micro_tile<1>(x, m, w, w_stride, columns, out, n, count, how);
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#endif
