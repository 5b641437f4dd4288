// LinearWeight as kernels take it, and one element of it in fp32 for the naive kernels.
#pragma once

#include "ops/cuda/numerics.cuh"
#include "tensor/weights.h"

namespace fathom::cuda {

struct DeviceWeight {
  const std::uint8_t* values;
  const std::uint8_t* scale;
  float scale_2;
  WeightFormat format;
  bool f32_scale;
  std::int32_t n, k;
};

inline DeviceWeight device_weight(const LinearWeight& weight) {
  return {weight.values.as<std::uint8_t>(),
          weight.scale.as<std::uint8_t>(),
          weight.scale_2,
          weight.format,
          weight.scale.dtype == DType::kF32,
          static_cast<std::int32_t>(weight.out_features),
          static_cast<std::int32_t>(weight.in_features)};
}

__device__ __forceinline__ float weight_value(const DeviceWeight& w, std::int64_t row, std::int64_t column) {
  const std::int64_t i = row * w.k + column;
  switch (w.format) {
    case WeightFormat::kF32: return reinterpret_cast<const float*>(w.values)[i];
    case WeightFormat::kBf16: return bf16_to_f32(reinterpret_cast<const Bf16Bits*>(w.values)[i]);
    case WeightFormat::kFp8Block128: {
      const std::int64_t s = row / 128 * ((w.k + 127) / 128) + column / 128;
      const float scale = w.f32_scale ? reinterpret_cast<const float*>(w.scale)[s] : e8m0_to_f32(w.scale[s]);
      return e4m3_to_f32(w.values[i]) * scale;
    }
    case WeightFormat::kMxfp4:
    case WeightFormat::kNvfp4: {
      const std::uint32_t byte = w.values[i / 2];
      const float code = e2m1_to_f32((column & 1) != 0 ? byte >> 4 : byte & 15u);
      if (w.format == WeightFormat::kMxfp4) return code * e8m0_to_f32(w.scale[row * (w.k / 32) + column / 32]);
      return code * e4m3_to_f32(w.scale[row * (w.k / 16) + column / 16]) * w.scale_2;
    }
  }
  return 0.0f;
}

}  // namespace fathom::cuda
