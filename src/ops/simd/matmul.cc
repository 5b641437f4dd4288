#include "ops/simd/matmul.h"

#include "ops/simd/targets.h"
#include "tensor/scalar_formats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/simd/matmul.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "ops/simd/micro_tile-inl.h"
#include "ops/simd/quantise-inl.h"
#include "ops/simd/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {

constexpr std::int64_t kStep = 2 * kLanes;    // columns of one step
constexpr std::int64_t kChunkColumns = 4096;  // columns whose scales are decoded at a time
constexpr float kE4m3Bias = 0x1p120f;         // what load_e4m3 leaves out
static_assert(simd::prepared_columns(1) % kStep == 0);

template <WeightFormat kFormat>
constexpr std::int64_t scale_columns() {
  switch (kFormat) {
    case WeightFormat::kFp8Block128: return 128;
    case WeightFormat::kMxfp4: return 32;
    case WeightFormat::kNvfp4: return 16;
    default: return kChunkColumns;
  }
}

template <WeightFormat kFormat>
constexpr std::int64_t bytes_of(std::int64_t columns) {
  switch (kFormat) {
    case WeightFormat::kF32: return columns * 4;
    case WeightFormat::kBf16: return columns * 2;
    case WeightFormat::kFp8Block128: return columns;
    default: return columns / 2;
  }
}

// e8m0_to_float, inline.
HWY_INLINE float scale_of_e8m0(std::uint8_t code) {
  const std::uint32_t bits = code == 0 ? 0x00400000u : code == 255 ? 0x7fc00000u : std::uint32_t{code} << 23;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Four at a time.
HWY_INLINE void scales_of_e8m0(const std::uint8_t* codes, float* values) {
  const hn::CappedTag<std::uint32_t, 4> du;
  const hn::Rebind<std::uint8_t, decltype(du)> d8;
  const auto code = hn::PromoteTo(du, hn::LoadU(d8, codes));
  auto bits = hn::ShiftLeft<23>(code);
  bits = hn::IfThenElse(hn::Eq(code, hn::Zero(du)), hn::Set(du, 0x00400000u), bits);
  bits = hn::IfThenElse(hn::Eq(code, hn::Set(du, 255u)), hn::Set(du, 0x7fc00000u), bits);
  hn::StoreU(hn::BitCast(hn::CappedTag<float, 4>(), bits), hn::CappedTag<float, 4>(), values);
}

struct ChunkScales {
  float values[kChunkColumns / 16 + 1];
};

// Scales of row n for columns [begin, end) as factors of the decoded codes. False if an FP8 factor
// leaves fp32 because it carries the decoder's 2^120 (scales of 2^8 and more).
template <WeightFormat kFormat>
HWY_INLINE bool load_scales(const LinearWeight& weight, std::int64_t n, std::int64_t begin, std::int64_t end,
                            bool with_bias, ChunkScales& scales) {
  bool fits = true;
  if constexpr (kFormat == WeightFormat::kFp8Block128) {
    const std::int64_t per_row = weight.scale.shape[1];
    const std::byte* row = weight.scale.data + n / 128 * per_row * dtype_bytes(weight.scale.dtype);
    for (std::int64_t block = begin / 128; block * 128 < end; ++block) {
      float scale;
      if (weight.scale.dtype == DType::kF32)
        std::memcpy(&scale, row + 4 * block, 4);
      else
        scale = scale_of_e8m0(static_cast<std::uint8_t>(row[block]));
      if (with_bias) scale *= kE4m3Bias;
      fits = fits && !(scale > 3.4e38f);
      scales.values[block - begin / 128] = scale;
    }
  } else if constexpr (kFormat == WeightFormat::kMxfp4) {
    const auto* row = weight.scale.as<std::uint8_t>() + n * weight.scale.shape[1];
    std::int64_t block = begin / 32;
    for (; (block + 3) * 32 < end; block += 4) scales_of_e8m0(row + block, scales.values + (block - begin / 32));
    for (; block * 32 < end; ++block) scales.values[block - begin / 32] = scale_of_e8m0(row[block]);
  } else if constexpr (kFormat == WeightFormat::kNvfp4) {
    const auto* row = weight.scale.as<std::uint8_t>() + n * weight.scale.shape[1];
    for (std::int64_t block = begin / 16; block * 16 < end; ++block) {
      scales.values[block - begin / 16] = e4m3_to_float(row[block]) * weight.scale_2;
    }
    // With 32 columns a step the last step may look at one scale beyond the row: its codes read as zero.
    scales.values[(end - begin + 15) / 16] = 0.0f;
  }
  return fits;
}

// Columns [offset, offset + 2 L) of a chunk, scaled. kWide: FP8 whose scale does not fit beside 2^120.
template <WeightFormat kFormat, bool kWide>
HWY_INLINE void decode_step(const std::uint8_t* p, std::int64_t offset, const ChunkScales& scales, FloatVec& v0,
                            FloatVec& v1) {
  const FloatTag d;
  if constexpr (kFormat == WeightFormat::kF32) {
    v0 = load_f32(p);
    v1 = load_f32(p + 4 * kLanes);
  } else if constexpr (kFormat == WeightFormat::kBf16) {
    v0 = load_bf16(p);
    v1 = load_bf16(p + 2 * kLanes);
  } else if constexpr (kFormat == WeightFormat::kFp8Block128) {
    const FloatVec factor = hn::Set(d, scales.values[offset / 128]);
    v0 = load_e4m3(p);
    v1 = load_e4m3(p + kLanes);
    if constexpr (kWide) {
      v0 = hn::Mul(v0, hn::Set(d, kE4m3Bias));
      v1 = hn::Mul(v1, hn::Set(d, kE4m3Bias));
    }
    v0 = hn::Mul(v0, factor);
    v1 = hn::Mul(v1, factor);
  } else if constexpr (kFormat == WeightFormat::kMxfp4) {
    load_e2m1(p, hn::Set(d, scales.values[offset / 32]), v0, v1);
  } else {
    FloatVec factor = hn::Set(d, scales.values[offset / 16]);
    if constexpr (kStep == 32) {  // two scales a step: columns 0..15 are lanes 0..7 of both vectors
      factor = hn::IfThenElse(hn::FirstN(d, 8), factor, hn::Set(d, scales.values[offset / 16 + 1]));
    }
    load_e2m1(p, hn::Set(d, 1.0f), v0, v1);
    v0 = hn::Mul(v0, factor);
    v1 = hn::Mul(v1, factor);
  }
}

// The last step of a row that is not a multiple of 2 L columns: missing codes read as zero.
template <WeightFormat kFormat, bool kWide>
HWY_INLINE void decode_tail(const std::uint8_t* p, std::int64_t columns, std::int64_t offset, const ChunkScales& scales,
                            FloatVec& v0, FloatVec& v1) {
  // Two FP4 codes share a byte, so an odd row ends in a whole one; the other formats have no padding to read.
  constexpr bool kPairs = kFormat == WeightFormat::kMxfp4 || kFormat == WeightFormat::kNvfp4;
  std::uint8_t buffer[4 * kStep] = {};
  std::memcpy(buffer, p, static_cast<std::size_t>(bytes_of<kFormat>(kPairs ? columns + (columns & 1) : columns)));
  decode_step<kFormat, kWide>(buffer, offset, scales, v0, v1);
}

template <WeightFormat kFormat, bool kWide>
HWY_INLINE bool dot_four(const LinearWeight& weight, std::int64_t n, int count, const float* x, float* sums) {
  const FloatTag d;
  const std::int64_t k = weight.in_features;
  const std::int64_t row_bytes = bytes_of<kFormat>(k);
  const auto* base = weight.values.as<std::uint8_t>();
  const std::uint8_t* row[4];
  for (int r = 0; r < 4; ++r) row[r] = base + (n + (r < count ? r : count - 1)) * row_bytes;
  ChunkScales own_scales[4];
  FloatVec a0 = hn::Zero(d), a1 = hn::Zero(d), a2 = hn::Zero(d), a3 = hn::Zero(d);
  const auto add = [&](FloatVec& acc, FloatVec v0, FloatVec v1, FloatVec x0, FloatVec x1)
                       HWY_ATTR { acc = hn::MulAdd(v1, x1, hn::MulAdd(v0, x0, acc)); };
  for (std::int64_t begin = 0; begin < k; begin += kChunkColumns) {
    const std::int64_t end = begin + kChunkColumns < k ? begin + kChunkColumns : k;
    const ChunkScales* scales[4];
    for (int r = 0; r < 4; ++r) {
      const std::int64_t row_n = n + (r < count ? r : count - 1);
      // FP8 rows of one 128-row block share their scales.
      const bool shared = kFormat == WeightFormat::kFp8Block128 && r > 0 && row_n / 128 == n / 128;
      scales[r] = shared ? scales[0] : &own_scales[r];
      if (!shared && !load_scales<kFormat>(weight, row_n, begin, end, !kWide, own_scales[r])) return false;
    }
    std::int64_t c = begin;
    FloatVec v0, v1;
    for (; c + kStep <= end; c += kStep) {
      const std::int64_t at = bytes_of<kFormat>(c);
      const FloatVec x0 = load(x + c), x1 = load(x + c + kLanes);
      decode_step<kFormat, kWide>(row[0] + at, c - begin, *scales[0], v0, v1);
      add(a0, v0, v1, x0, x1);
      decode_step<kFormat, kWide>(row[1] + at, c - begin, *scales[1], v0, v1);
      add(a1, v0, v1, x0, x1);
      decode_step<kFormat, kWide>(row[2] + at, c - begin, *scales[2], v0, v1);
      add(a2, v0, v1, x0, x1);
      decode_step<kFormat, kWide>(row[3] + at, c - begin, *scales[3], v0, v1);
      add(a3, v0, v1, x0, x1);
    }
    if (c < end) {
      const std::int64_t at = bytes_of<kFormat>(c);
      const FloatVec x0 = load(x + c), x1 = load(x + c + kLanes);
      decode_tail<kFormat, kWide>(row[0] + at, end - c, c - begin, *scales[0], v0, v1);
      add(a0, v0, v1, x0, x1);
      decode_tail<kFormat, kWide>(row[1] + at, end - c, c - begin, *scales[1], v0, v1);
      add(a1, v0, v1, x0, x1);
      decode_tail<kFormat, kWide>(row[2] + at, end - c, c - begin, *scales[2], v0, v1);
      add(a2, v0, v1, x0, x1);
      decode_tail<kFormat, kWide>(row[3] + at, end - c, c - begin, *scales[3], v0, v1);
      add(a3, v0, v1, x0, x1);
    }
  }
  hn::StoreU(reduce_four(a0, a1, a2, a3), hn::CappedTag<float, 4>(), sums);
  return true;
}

template <WeightFormat kFormat, bool kWide>
HWY_INLINE bool decode_row(const LinearWeight& weight, std::int64_t n, float* out) {
  const std::int64_t k = weight.in_features;
  const std::uint8_t* row = weight.values.as<std::uint8_t>() + n * bytes_of<kFormat>(k);
  ChunkScales scales;
  FloatVec v0, v1;
  for (std::int64_t begin = 0; begin < k; begin += kChunkColumns) {
    const std::int64_t end = begin + kChunkColumns < k ? begin + kChunkColumns : k;
    if (!load_scales<kFormat>(weight, n, begin, end, !kWide, scales)) return false;
    std::int64_t c = begin;
    for (; c + kStep <= end; c += kStep) {
      decode_step<kFormat, kWide>(row + bytes_of<kFormat>(c), c - begin, scales, v0, v1);
      store(v0, out + c);
      store(v1, out + c + kLanes);
    }
    if (c < end) {
      decode_tail<kFormat, kWide>(row + bytes_of<kFormat>(c), end - c, c - begin, scales, v0, v1);
      store(v0, out + c);
      store(v1, out + c + kLanes);
    }
  }
  const std::int64_t steps_end = (k + kStep - 1) / kStep * kStep;
  const std::int64_t padded = simd::prepared_columns(k);
  for (std::int64_t c = steps_end; c < padded; ++c) out[c] = 0.0f;
  return true;
}

std::int64_t tile_rows_of(std::int64_t in_features) {
  const std::int64_t padded = simd::prepared_columns(in_features);
  if (padded <= 512) return 32;
  return padded <= 2048 ? 16 : 8;
}

template <WeightFormat kFormat>
void matmul_format(const LinearWeight& weight, std::int64_t n_begin, std::int64_t n_end, const simd::InputRows& x,
                   const simd::OutputRows& out, std::int64_t num_rows, simd::MatmulStore how, float* tile) {
  if (num_rows == 1) {
    HWY_ALIGN float sums[4] = {};
    for (std::int64_t n = n_begin; n < n_end; n += 4) {
      const int count = n_end - n < 4 ? static_cast<int>(n_end - n) : 4;
      if (!dot_four<kFormat, false>(weight, n, count, x.row(0), sums)) {
        if constexpr (kFormat == WeightFormat::kFp8Block128) dot_four<kFormat, true>(weight, n, count, x.row(0), sums);
      }
      put(hn::LoadU(hn::CappedTag<float, 4>(), sums), how, out.row(0) + n, count);
    }
    return;
  }
  const std::int64_t padded = simd::prepared_columns(weight.in_features);
  const std::int64_t columns = (weight.in_features + kStep - 1) / kStep * kStep;
  const std::int64_t tile_rows = tile_rows_of(weight.in_features);
  // Blocks of x rows that stay in the first-level cache while the tile passes over them.
  const std::int64_t row_block = padded <= 512 ? 2 * kTileRows : kTileRows;
  for (std::int64_t n0 = n_begin; n0 < n_end; n0 += tile_rows) {
    const std::int64_t n1 = n0 + tile_rows < n_end ? n0 + tile_rows : n_end;
    for (std::int64_t n = n0; n < n1; ++n) {
      float* row = tile + (n - n0) * padded;
      if (!decode_row<kFormat, false>(weight, n, row)) {
        if constexpr (kFormat == WeightFormat::kFp8Block128) decode_row<kFormat, true>(weight, n, row);
      }
    }
    // A micro tile reads four tile rows; those beyond the last are stale and their sums are dropped.
    for (std::int64_t m = 0; m < num_rows; m += row_block) {
      const std::int64_t rows = num_rows - m < row_block ? num_rows - m : row_block;
      for (std::int64_t n = n0; n < n1; n += kTileColumns) {
        const int count = n1 - n < kTileColumns ? static_cast<int>(n1 - n) : kTileColumns;
        micro_rows(x, m, rows, tile + (n - n0) * padded, padded, columns, out, n, count, how);
      }
    }
  }
}

void matmul_any(const LinearWeight& weight, std::int64_t n_begin, std::int64_t n_end, const simd::InputRows& x,
                const simd::OutputRows& out, std::int64_t num_rows, simd::MatmulStore how, float* tile) {
  switch (weight.format) {
    case WeightFormat::kF32:
      return matmul_format<WeightFormat::kF32>(weight, n_begin, n_end, x, out, num_rows, how, tile);
    case WeightFormat::kBf16:
      return matmul_format<WeightFormat::kBf16>(weight, n_begin, n_end, x, out, num_rows, how, tile);
    case WeightFormat::kFp8Block128:
      return matmul_format<WeightFormat::kFp8Block128>(weight, n_begin, n_end, x, out, num_rows, how, tile);
    case WeightFormat::kMxfp4:
      return matmul_format<WeightFormat::kMxfp4>(weight, n_begin, n_end, x, out, num_rows, how, tile);
    case WeightFormat::kNvfp4:
      return matmul_format<WeightFormat::kNvfp4>(weight, n_begin, n_end, x, out, num_rows, how, tile);
  }
}

void decode_weight_row_any(const LinearWeight& weight, std::int64_t n, float* out) {
  switch (weight.format) {
    case WeightFormat::kF32: decode_row<WeightFormat::kF32, false>(weight, n, out); break;
    case WeightFormat::kBf16: decode_row<WeightFormat::kBf16, false>(weight, n, out); break;
    case WeightFormat::kFp8Block128:
      if (!decode_row<WeightFormat::kFp8Block128, false>(weight, n, out)) {
        decode_row<WeightFormat::kFp8Block128, true>(weight, n, out);
      }
      break;
    case WeightFormat::kMxfp4: decode_row<WeightFormat::kMxfp4, false>(weight, n, out); break;
    case WeightFormat::kNvfp4: decode_row<WeightFormat::kNvfp4, false>(weight, n, out); break;
  }
}

void prepare_row_any(const float* x, std::int64_t in_features, bool quantise, simd::ColumnOrder order, float* out) {
  const std::int64_t padded = simd::prepared_columns(in_features);
  HWY_ALIGN float block[128];
  for (std::int64_t c = 0; c < in_features; c += 128) {
    const std::int64_t n = in_features - c < 128 ? in_features - c : 128;
    const std::int64_t n_padded = padded - c < 128 ? padded - c : 128;
    float* to = order == simd::ColumnOrder::kNatural ? out + c : block;
    if (quantise)
      simulate_e4m3_block(x + c, static_cast<std::size_t>(n), to);
    else
      std::memcpy(to, x + c, static_cast<std::size_t>(n) * sizeof(float));
    for (std::int64_t i = n; i < n_padded; ++i) to[i] = 0.0f;
    if (order == simd::ColumnOrder::kNatural) continue;
    for (std::int64_t i = 0; i < n_padded; i += kStep) {
      const FloatVec a = hn::Load(FloatTag(), block + i), b = hn::Load(FloatTag(), block + i + kLanes);
      store(hn::ConcatEven(FloatTag(), b, a), out + c + i);
      store(hn::ConcatOdd(FloatTag(), b, a), out + c + i + kLanes);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom {
HWY_EXPORT(matmul_any);
HWY_EXPORT(decode_weight_row_any);
HWY_EXPORT(prepare_row_any);

namespace simd {

ColumnOrder column_order(WeightFormat format) {
  return format == WeightFormat::kMxfp4 || format == WeightFormat::kNvfp4 ? ColumnOrder::kPairs : ColumnOrder::kNatural;
}

std::int64_t tile_floats(std::int64_t in_features) {
  const std::int64_t padded = prepared_columns(in_features);
  return padded * (padded <= 512 ? 32 : padded <= 2048 ? 16 : 8);
}

void prepare_row(const float* x, std::int64_t in_features, bool quantise, ColumnOrder order, float* out) {
  HWY_DYNAMIC_DISPATCH(prepare_row_any)(x, in_features, quantise, order, out);
}

void matmul(const LinearWeight& weight, std::int64_t n_begin, std::int64_t n_end, const InputRows& x,
            const OutputRows& out, std::int64_t num_rows, MatmulStore how, float* tile) {
  if (num_rows == 0 || n_begin >= n_end) return;
  HWY_DYNAMIC_DISPATCH(matmul_any)(weight, n_begin, n_end, x, out, num_rows, how, tile);
}

void decode_weight_row(const LinearWeight& weight, std::int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(decode_weight_row_any)(weight, n, out);
}

}  // namespace simd
}  // namespace fathom
#endif  // HWY_ONCE
