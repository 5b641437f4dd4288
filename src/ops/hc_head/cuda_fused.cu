// hc_head/fused: one block a row: the four dots, the collapse and the norm.
#include "ops/cuda/device_rows.cuh"
#include "ops/hc_head/hc_head.h"
#include "ops/hyper_connection/coefficients.cuh"

namespace fathom::cuda {
namespace {

constexpr int kThreads = 512;

__global__ void __launch_bounds__(kThreads)
    collapse_rows(const Bf16Bits* streams, const std::int32_t* row_indices, HcConstants hc, const Bf16Bits* norm_weight,
                  Bf16Bits* collapsed, Bf16Bits* normed, int hidden) {
  __shared__ float shared[kThreads / 32];
  const std::int64_t row = blockIdx.x;
  const std::int64_t token = row_indices != nullptr ? row_indices[row] : row;
  const int tid = static_cast<int>(threadIdx.x), pairs = hidden / 2, width = kHcStreams * hidden;
  const auto* v = reinterpret_cast<const std::uint32_t*>(streams + token * width);
  float dots[kHcStreams] = {}, square = 0.0f;
  for (int p = tid; p < width / 2; p += kThreads) {
    const float low = bf16_low(v[p]), high = bf16_high(v[p]);
    square += low * low + high * high;
#pragma unroll
    for (int j = 0; j < kHcStreams; ++j) {
      const float2 w = reinterpret_cast<const float2*>(hc.fn + static_cast<std::int64_t>(j) * width)[p];
      dots[j] += w.x * low + w.y * high;
    }
  }
  const float r = 1.0f / sqrtf(block_sum<kThreads>(square, shared) / static_cast<float>(width) + hc.rms_eps);
  float pre[kHcStreams];
#pragma unroll
  for (int j = 0; j < kHcStreams; ++j) {
    pre[j] = sigmoid(block_sum<kThreads>(dots[j], shared) * r * hc.scale[0] + hc.base[j]) + hc.hc_eps;
  }
  auto* x = reinterpret_cast<std::uint32_t*>(collapsed + row * hidden);
  square = 0.0f;
  for (int p = tid; p < pairs; p += kThreads) {
    float low = 0.0f, high = 0.0f;
#pragma unroll
    for (int j = 0; j < kHcStreams; ++j) {
      low += pre[j] * bf16_low(v[j * pairs + p]);
      high += pre[j] * bf16_high(v[j * pairs + p]);
    }
    const std::uint32_t packed = pack_bf16(low, high);
    x[p] = packed;
    square += bf16_low(packed) * bf16_low(packed) + bf16_high(packed) * bf16_high(packed);
  }
  const float factor = 1.0f / sqrtf(block_sum<kThreads>(square, shared) / static_cast<float>(hidden) + hc.rms_eps);
  const auto* weights = reinterpret_cast<const std::uint32_t*>(norm_weight);
  for (int p = tid; p < pairs; p += kThreads) {
    const std::uint32_t value = x[p], w = weights[p];
    reinterpret_cast<std::uint32_t*>(normed + row * hidden)[p] =
        pack_bf16(bf16_low(w) * (bf16_low(value) * factor), bf16_high(w) * (bf16_high(value) * factor));
  }
}

}  // namespace

void hc_head_fused(ExecutionContext& context, const HcHeadPlan& plan, const HcHeadArgs& args) {
  const HcHeadDesc& d = plan.desc;
  FATHOM_CHECK(d.hc_mult == kHcStreams, "four streams");
  const auto rows = static_cast<unsigned>(args.normed.shape[0]);
  if (rows == 0) return;
  const HcConstants hc{args.params.fn.as<float>(),
                       args.params.base.as<float>(),
                       args.params.scale.as<float>(),
                       d.hc_eps,
                       d.rms_norm_eps,
                       0};
  collapse_rows<<<rows, kThreads, 0, stream_of(context)>>>(
      args.streams.as<Bf16Bits>(), args.row_indices.as<std::int32_t>(), hc, args.norm_weight.as<Bf16Bits>(),
      args.collapsed.as<Bf16Bits>(), args.normed.as<Bf16Bits>(), static_cast<int>(d.hidden));
}

}  // namespace fathom::cuda
