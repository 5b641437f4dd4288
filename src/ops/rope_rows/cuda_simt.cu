#include "ops/cuda/key_record.cuh"
#include "ops/rope_rows/rope_rows.h"

namespace fathom::cuda {
namespace {

// The product is rounded to fp32 before the accurate cosine and sine of it are taken (spec 2.1).
__global__ void __launch_bounds__(128)
    rope_angles(const std::int32_t* positions, const float* window_frequencies, const float* compressed_frequencies,
                float2* window_rope, float2* compressed_rope, int num_angles, int pairs) {
  const int i = static_cast<int>(blockIdx.x) * 128 + static_cast<int>(threadIdx.x);
  if (i >= num_angles) return;
  const float position = static_cast<float>(positions[i / pairs]);
  const float window = __fmul_rn(position, window_frequencies[i % pairs]);
  const float compressed = __fmul_rn(position, compressed_frequencies[i % pairs]);
  window_rope[i] = accurate_angle(window);
  compressed_rope[i] = accurate_angle(compressed);
}

}  // namespace

void rope_rows_simt(ExecutionContext& context, const RopeRowsPlan& plan, const RopeRowsArgs& args) {
  const int pairs = plan.desc.rope_dim / 2;
  const int num_angles = static_cast<int>(args.positions.shape[0]) * pairs;
  if (num_angles == 0) return;
  rope_angles<<<static_cast<unsigned>((num_angles + 127) / 128), 128, 0, stream_of(context)>>>(
      args.positions.as<std::int32_t>(), args.window_frequencies.as<float>(), args.compressed_frequencies.as<float>(),
      args.window_rope.as<float2>(), args.compressed_rope.as<float2>(), num_angles, pairs);
}

}  // namespace fathom::cuda
