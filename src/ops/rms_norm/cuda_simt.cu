#include "ops/cuda/activation_quantiser.cuh"
#include "ops/cuda/device_rows.cuh"
#include "ops/cuda/launch_early.cuh"
#include "ops/rms_norm/rms_norm.h"

namespace fathom::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ std::uint32_t norm_pair(std::uint32_t v, std::uint32_t w, float factor) {
  return pack_bf16(bf16_low(w) * (bf16_low(v) * factor), bf16_high(w) * (bf16_high(v) * factor));
}

// One block a row; pairs of channels. kQuantise: AQ 128 of the row beside it; a warp's lanes then have two pairs of one
// block of 128 channels each.
template <bool kQuantise>
__global__ void __launch_bounds__(kThreads)
    rms_norm_rows(const std::uint32_t* x, const std::uint32_t* weight, std::uint32_t* out, std::uint32_t* quantised,
                  int pairs, float eps) {
  __shared__ float shared[kThreads / 32];
  admit_next_launch();
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * pairs;
  const std::uint32_t* row = x + begin;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < pairs; i += kThreads) {
    const std::uint32_t v = row[i];
    sum += bf16_low(v) * bf16_low(v) + bf16_high(v) * bf16_high(v);
  }
  sum = block_sum<kThreads>(sum, shared);
  const float factor = 1.0f / sqrtf(sum / static_cast<float>(2 * pairs) + eps);
  if constexpr (kQuantise) {
    // pairs / 2 is a multiple of 32: whole warps leave.
    for (int i = threadIdx.x; i < pairs / 2; i += kThreads) {
      const uint2 v = reinterpret_cast<const uint2*>(row)[i], w = reinterpret_cast<const uint2*>(weight)[i];
      std::uint32_t normed[2] = {norm_pair(v.x, w.x, factor), norm_pair(v.y, w.y, factor)};
      reinterpret_cast<uint2*>(out + begin)[i] = make_uint2(normed[0], normed[1]);
      std::uint32_t m = max_magnitude(normed[0], normed[1]);
#pragma unroll
      for (int offset = 16; offset > 0; offset >>= 1) m = max_magnitude(m, __shfl_xor_sync(0xffffffffu, m, offset));
      simulate_aq<2>(normed, pair_maximum(m));
      reinterpret_cast<uint2*>(quantised + begin)[i] = make_uint2(normed[0], normed[1]);
    }
  } else {
    for (int i = threadIdx.x; i < pairs; i += kThreads) out[begin + i] = norm_pair(row[i], weight[i], factor);
  }
}

}  // namespace

void rms_norm_simt(ExecutionContext& context, const RmsNormPlan& plan, const RmsNormArgs& args) {
  const std::int64_t rows = args.x.shape.num_elements() / plan.desc.width;
  FATHOM_CHECK(plan.desc.width % 2 == 0, "rows are read in pairs");
  if (rows == 0) return;
  const auto launch = [&](auto kernel) {
    kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream_of(context)>>>(
        args.x.as<std::uint32_t>(), args.weight.as<std::uint32_t>(), args.out.as<std::uint32_t>(),
        args.out_quantised.as<std::uint32_t>(), static_cast<int>(plan.desc.width / 2), plan.desc.eps);
  };
  if (args.out_quantised.empty())
    launch(rms_norm_rows<false>);
  else
    launch(rms_norm_rows<true>);
}

}  // namespace fathom::cuda
