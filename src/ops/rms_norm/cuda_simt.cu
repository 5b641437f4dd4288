#include "ops/cuda/device_rows.cuh"
#include "ops/cuda/numerics.cuh"
#include "ops/rms_norm/rms_norm.h"

namespace fathom::cuda {
namespace {

constexpr int kThreads = 256;

// One block a row; pairs of channels.
__global__ void __launch_bounds__(kThreads)
    rms_norm_rows(const std::uint32_t* x, const std::uint32_t* weight, std::uint32_t* out, int pairs, float eps) {
  __shared__ float shared[kThreads / 32];
  const std::uint32_t* row = x + static_cast<std::int64_t>(blockIdx.x) * pairs;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < pairs; i += kThreads) {
    const std::uint32_t v = row[i];
    sum += bf16_low(v) * bf16_low(v) + bf16_high(v) * bf16_high(v);
  }
  sum = block_sum<kThreads>(sum, shared);
  const float factor = 1.0f / sqrtf(sum / static_cast<float>(2 * pairs) + eps);
  for (int i = threadIdx.x; i < pairs; i += kThreads) {
    const std::uint32_t v = row[i], w = weight[i];
    out[static_cast<std::int64_t>(blockIdx.x) * pairs + i] =
        pack_bf16(bf16_low(w) * (bf16_low(v) * factor), bf16_high(w) * (bf16_high(v) * factor));
  }
}

}  // namespace

void rms_norm_simt(ExecutionContext& context, const RmsNormPlan& plan, const RmsNormArgs& args) {
  const std::int64_t rows = args.x.shape.num_elements() / plan.desc.width;
  FATHOM_CHECK(plan.desc.width % 2 == 0, "rows are read in pairs");
  if (rows == 0) return;
  rms_norm_rows<<<static_cast<unsigned>(rows), kThreads, 0, stream_of(context)>>>(
      args.x.as<std::uint32_t>(), args.weight.as<std::uint32_t>(), args.out.as<std::uint32_t>(),
      static_cast<int>(plan.desc.width / 2), plan.desc.eps);
}

}  // namespace fathom::cuda
