// From the 24 dot products of a row to pre, post and comb (spec 2.3, steps 4 to 7).
#pragma once

#include "ops/cuda/numerics.cuh"
#include "ops/hyper_connection/plan.h"

namespace fathom::cuda {

struct HcConstants {
  const float *fn, *base, *scale;
  float hc_eps, rms_eps;
  std::int32_t iterations;
};

__device__ __forceinline__ float sigmoid(float z) { return 1.0f / (1.0f + expf(-z)); }

// comb by 16 lanes of a warp: lane 4 j + k holds C[j][k]. All 32 lanes call; lanes 16.. repeat 0..15.
__device__ __forceinline__ float sinkhorn_lane(float c, int iterations, float eps) {
  const auto sum_row = [](float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
  };
  const auto sum_column = [](float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 4);
    return v + __shfl_xor_sync(0xffffffffu, v, 8);
  };
  float peak = fmaxf(c, __shfl_xor_sync(0xffffffffu, c, 1));
  peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 2));
  c = expf(c - peak);
  c = c / sum_row(c) + eps;
  c = c / (sum_column(c) + eps);
  for (int i = 1; i < iterations; ++i) {
    c = c / (sum_row(c) + eps);
    c = c / (sum_column(c) + eps);
  }
  return c;
}

}  // namespace fathom::cuda
