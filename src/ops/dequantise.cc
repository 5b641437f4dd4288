#include "ops/dequantise.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/units.h"
#include "tensor/scalar_formats.h"

namespace fathom {
namespace {

constexpr std::int64_t kFp8Block = 128;
constexpr std::int64_t kMxfp4Block = 32;
constexpr std::int64_t kNvfp4Block = 16;

std::uint8_t fp4_code(const LinearWeight& weight, std::int64_t n, std::int64_t k) {
  const auto pair = load_element<std::uint8_t>(weight.values, n * (weight.in_features / 2) + k / 2);
  return k % 2 == 0 ? pair & 15 : pair >> 4;
}

// The scale that multiplies the code at (n, k), without NVFP4's weight_scale_2.
float block_scale(const LinearWeight& weight, std::int64_t n, std::int64_t k) {
  switch (weight.format) {
    case WeightFormat::kF32:
    case WeightFormat::kBf16: return 1.0f;
    case WeightFormat::kFp8Block128: {
      const std::int64_t index = n / kFp8Block * ceil_div(weight.in_features, kFp8Block) + k / kFp8Block;
      return weight.scale.dtype == DType::kF32 ? load_element<float>(weight.scale, index)
                                               : e8m0_to_float(load_element<std::uint8_t>(weight.scale, index));
    }
    case WeightFormat::kMxfp4:
      return e8m0_to_float(
          load_element<std::uint8_t>(weight.scale, n * (weight.in_features / kMxfp4Block) + k / kMxfp4Block));
    case WeightFormat::kNvfp4:
      return e4m3_to_float(
          load_element<std::uint8_t>(weight.scale, n * (weight.in_features / kNvfp4Block) + k / kNvfp4Block));
  }
  return 0.0f;
}

const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> made;
    for (std::size_t code = 0; code < made.size(); ++code) made[code] = e4m3_to_float(static_cast<std::uint8_t>(code));
    return made;
  }();
  return values;
}

// Element (n, k) with its block's scale.
inline float scaled_element(const LinearWeight& weight, std::int64_t n, std::int64_t k, float scale) {
  const std::int64_t index = n * weight.in_features + k;
  switch (weight.format) {
    case WeightFormat::kF32: return load_element<float>(weight.values, index);
    case WeightFormat::kBf16: return bf16_to_float(load_element<Bf16>(weight.values, index));
    case WeightFormat::kFp8Block128: return e4m3_values()[load_element<std::uint8_t>(weight.values, index)] * scale;
    case WeightFormat::kMxfp4: return kE2m1Values[fp4_code(weight, n, k)] * scale;
    case WeightFormat::kNvfp4: return kE2m1Values[fp4_code(weight, n, k)] * scale * weight.scale_2;
  }
  return 0.0f;
}

}  // namespace

float load_float(const View& view, std::int64_t index) {
  if (view.dtype == DType::kF32) return load_element<float>(view, index);
  FATHOM_CHECK(view.dtype == DType::kBF16, "a parameter is F32 or BF16");
  return bf16_to_float(load_element<Bf16>(view, index));
}

std::vector<float> widen(const View& view) {
  std::vector<float> values(static_cast<std::size_t>(view.shape.num_elements()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = load_float(view, static_cast<std::int64_t>(i));
  return values;
}

void check_linear_weight(const LinearWeight& weight, std::int64_t out_features, std::int64_t in_features) {
  FATHOM_CHECK(weight.out_features == out_features && weight.in_features == in_features, "features of a weight");
  FATHOM_CHECK(!weight.values.empty(), "a weight has values");
  const bool is_fp4 = weight.format == WeightFormat::kMxfp4 || weight.format == WeightFormat::kNvfp4;
  FATHOM_CHECK(weight.values.shape.num_elements() == out_features * (is_fp4 ? in_features / 2 : in_features),
               "values of a weight cover its shape");
  std::int64_t num_scales = 0;
  switch (weight.format) {
    case WeightFormat::kF32: FATHOM_CHECK(weight.values.dtype == DType::kF32, "F32 weight"); break;
    case WeightFormat::kBf16: FATHOM_CHECK(weight.values.dtype == DType::kBF16, "BF16 weight"); break;
    case WeightFormat::kFp8Block128:
      FATHOM_CHECK(dtype_bytes(weight.values.dtype) == 1, "FP8 codes are bytes");
      FATHOM_CHECK(weight.scale.dtype == DType::kF32 || weight.scale.dtype == DType::kF8E8M0, "FP8 block scales");
      num_scales = ceil_div(out_features, kFp8Block) * ceil_div(in_features, kFp8Block);
      break;
    case WeightFormat::kMxfp4:
      FATHOM_CHECK(dtype_bytes(weight.values.dtype) == 1 && in_features % kMxfp4Block == 0, "whole MXFP4 blocks");
      FATHOM_CHECK(dtype_bytes(weight.scale.dtype) == 1, "MXFP4 scales are E8M0");
      num_scales = out_features * (in_features / kMxfp4Block);
      break;
    case WeightFormat::kNvfp4:
      FATHOM_CHECK(dtype_bytes(weight.values.dtype) == 1 && in_features % kNvfp4Block == 0, "whole NVFP4 blocks");
      FATHOM_CHECK(dtype_bytes(weight.scale.dtype) == 1, "NVFP4 scales are E4M3");
      num_scales = out_features * (in_features / kNvfp4Block);
      break;
  }
  if (num_scales == 0) return;
  FATHOM_CHECK(!weight.scale.empty() && weight.scale.shape.num_elements() == num_scales, "scales of a weight");
}

float weight_element(const LinearWeight& weight, std::int64_t n, std::int64_t k) {
  return scaled_element(weight, n, k, block_scale(weight, n, k));
}

void dequantise_row(const LinearWeight& weight, std::int64_t n, std::span<float> row) {
  FATHOM_CHECK(static_cast<std::int64_t>(row.size()) == weight.in_features, "a row holds in_features elements");
  // A scale covers a multiple of 16 columns in every format: it is looked up once for each 16.
  for (std::int64_t begin = 0; begin < weight.in_features; begin += kNvfp4Block) {
    const std::int64_t end = std::min(begin + kNvfp4Block, weight.in_features);
    const float scale = block_scale(weight, n, begin);
    for (std::int64_t k = begin; k < end; ++k) {
      row[static_cast<std::size_t>(k)] = scaled_element(weight, n, k, scale);
    }
  }
}

}  // namespace fathom
