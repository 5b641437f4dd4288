// The arithmetic that hyper_connection and hc_head share (spec 2.3 and 2.8), scalar, one token at a time.
#pragma once

#include <span>
#include <vector>

#include "ops/numerics.h"
#include "tensor/view.h"

namespace fathom {

// m = (fn . v) * rsqrt(mean(v^2) + eps), one value per row of fn. `streams`: v, [hc * hidden].
std::vector<double> mix_statistics(std::span<const float> streams, const View& fn, std::int64_t num_rows, float eps);

// x = store( sum_j weights[j] * streams[j] )
void collapse_streams(std::span<const float> streams, std::span<const double> weights, const Numerics& numerics,
                      std::span<float> x);

// Spec 2.3 step 7, in place; comb [n][n], row-major, row index j.
void sinkhorn(std::span<double> comb, std::int32_t n, std::int32_t iterations, double eps);

}  // namespace fathom
