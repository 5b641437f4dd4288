// markov_head/warp: a warp an output; its lanes split the rank and fold in one order, so a row is a function of itself.
#include "ops/cuda/device_rows.cuh"
#include "ops/cuda/device_weight.cuh"
#include "ops/markov_head/markov_head.h"

namespace fathom::cuda {
namespace {

constexpr int kWarps = 8;

// Blocks [0, vocab / 8) of a row: its logits. The block behind them: its confidence.
__global__ void __launch_bounds__(32 * kWarps)
    correct_logits(const std::int32_t* previous, const std::int32_t* row_indices, const float* logits,
                   const Bf16Bits* collapsed, const Bf16Bits* w1, DeviceWeight w2, DeviceWeight confidence_proj,
                   float* out, float* confidence, int vocab, int hidden, int rank) {
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5);
  const int i = static_cast<int>(blockIdx.y);
  const std::int64_t row = row_indices[i];
  const Bf16Bits* embedded = w1 + static_cast<std::int64_t>(previous[i]) * rank;
  if (blockIdx.x == gridDim.x - 1) {
    if (warp != 0) return;
    float sum = 0.0f;
    for (int k = lane; k < hidden; k += 32) {
      sum += weight_value(confidence_proj, 0, k) * bf16_to_f32(collapsed[row * hidden + k]);
    }
    for (int k = lane; k < rank; k += 32)
      sum += weight_value(confidence_proj, 0, hidden + k) * bf16_to_f32(embedded[k]);
    sum = warp_sum(sum);
    if (lane == 0) confidence[i] = sum;
    return;
  }
  const int token = static_cast<int>(blockIdx.x) * kWarps + warp;
  if (token >= vocab) return;
  float sum = 0.0f;
  for (int k = lane; k < rank; k += 32) sum += weight_value(w2, token, k) * bf16_to_f32(embedded[k]);
  sum = warp_sum(sum);
  if (lane == 0) out[static_cast<std::int64_t>(i) * vocab + token] = logits[row * vocab + token] + sum;
}

}  // namespace

void markov_head_warp(ExecutionContext& context, const MarkovHeadPlan& plan, const MarkovHeadArgs& args) {
  const MarkovHeadDesc& d = plan.desc;
  const auto rows = static_cast<unsigned>(args.out.shape[0]);
  if (rows == 0) return;
  const dim3 grid(static_cast<unsigned>((d.vocab + kWarps - 1) / kWarps + 1), rows);
  correct_logits<<<grid, 32 * kWarps, 0, stream_of(context)>>>(
      args.previous.as<std::int32_t>(), args.row_indices.as<std::int32_t>(), args.logits.as<float>(),
      args.collapsed.as<Bf16Bits>(), args.markov_w1.as<Bf16Bits>(), device_weight(*args.markov_w2),
      device_weight(*args.confidence_proj), args.out.as<float>(), args.confidence.as<float>(),
      static_cast<int>(d.vocab), static_cast<int>(d.hidden), static_cast<int>(d.rank));
}

}  // namespace fathom::cuda
