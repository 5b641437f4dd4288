// What the streams are weighted with, from statistics m (spec 2.3 steps 4 to 7): shared by the `cpu` variants of
// hyper_connection and hc_head.
#pragma once

#include <cstdint>

#include "ops/hyper_connection/hyper_connection.h"
#include "ops/simd/products.h"

namespace fathom {

float mix_sigmoid(float z);

// Sinkhorn on comb [n][n] in place, fp32; sums run in ascending order.
void sinkhorn_cpu(float* comb, std::int32_t n, std::int32_t iterations, float eps);

// m[row][i] = (fn . v)[i] * rsqrt(mean(v^2) + eps) for rows of `width` channels at v + row * width (or
// v + index[row] * width), num_rows <= simd::kRowChunk; fn [outputs, width]. `padded`: one chunk of prepared rows.
void mix_statistics_cpu(const ExecutionContext& context, const float* v, const std::int32_t* index,
                        std::int64_t num_rows, std::int64_t width, const View& fn, float eps, float* padded, float* m,
                        const simd::Tiles& tiles);

}  // namespace fathom
