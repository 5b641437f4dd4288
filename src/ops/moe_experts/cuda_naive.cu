// moe_experts/naive: one thread an output, fp32, ascending k.
#include "ops/cuda/device_rows.cuh"
#include "ops/linear/kernels.cuh"
#include "ops/moe_experts/code_layout.h"
#include "ops/moe_experts/kernels.cuh"

namespace fathom::cuda {
namespace {

// An expert's code, from the order of device memory.
__device__ __forceinline__ float code_value(const DeviceWeight& w, std::int64_t i) {
  std::uint32_t pairs[4];
  device_pairs(reinterpret_cast<const std::uint32_t*>(w.values)[i / 8], pairs);
  const std::uint32_t bits = pairs[i % 4] >> (i % 8 < 4 ? 0 : 16);
  return e2m1_to_f32((bits >> 12 & 8u) | (bits >> 6 & 7u));
}

__device__ __forceinline__ float value_of(const DeviceWeight& w, std::int64_t row, std::int64_t k) {
  if (w.format == WeightFormat::kMxfp4)
    return code_value(w, row * w.k + k) * e8m0_to_f32(w.scale[row * (w.k / 32) + k / 32]);
  if (w.format == WeightFormat::kNvfp4)
    return code_value(w, row * w.k + k) * e4m3_to_f32(w.scale[row * (w.k / 16) + k / 16]) * w.scale_2;
  return weight_value(w, row, k);
}

__device__ __forceinline__ float dot_row(const Bf16Bits* x, const DeviceWeight& w, int row) {
  float sum = 0.0f;
  for (int k = 0; k < w.k; ++k) sum += bf16_to_f32(x[k]) * value_of(w, row, k);
  return sum;
}

// Entry e of [0, tokens * topk) is a routed one, the next `tokens` are the shared expert's.
__device__ __forceinline__ int expert_of(const MoeCall& call, int entry) {
  return entry < call.num_tokens * call.topk ? call.expert_ids[entry] : -1;
}

__global__ void __launch_bounds__(128) up(MoeCall call, const Bf16Bits* x, int num_entries) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * 128 + threadIdx.x;
  if (i >= static_cast<std::int64_t>(num_entries) * call.intermediate) return;
  const int entry = static_cast<int>(i / call.intermediate), row = static_cast<int>(i % call.intermediate);
  const int expert = expert_of(call, entry);
  const int token = expert >= 0 ? entry / call.topk : entry - call.num_tokens * call.topk;
  const DeviceWeight w1 = expert >= 0 ? expert_matrix(call.experts, call.experts.w1, 0, expert) : call.shared_w1;
  const DeviceWeight w3 = expert >= 0 ? expert_matrix(call.experts, call.experts.w3, 1, expert) : call.shared_w3;
  const Bf16Bits* in = x + static_cast<std::int64_t>(token) * call.hidden;
  call.t[i] =
      gated(dot_row(in, w1, row), dot_row(in, w3, row), expert >= 0 ? call.expert_weights[entry] : 1.0f, call.limit);
}

__global__ void __launch_bounds__(128) down(MoeCall call, const Bf16Bits* t, int num_entries) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * 128 + threadIdx.x;
  if (i >= static_cast<std::int64_t>(num_entries) * call.hidden) return;
  const int entry = static_cast<int>(i / call.hidden), row = static_cast<int>(i % call.hidden);
  const int expert = expert_of(call, entry);
  const DeviceWeight w2 = expert >= 0 ? expert_matrix(call.experts, call.experts.w2, 2, expert) : call.shared_w2;
  call.y[i] = f32_to_bf16(dot_row(t + static_cast<std::int64_t>(entry) * call.intermediate, w2, row));
}

}  // namespace

void moe_experts_naive(ExecutionContext& context, const MoeExpertsPlan& plan, const MoeExpertsArgs& args) {
  const MoeCall call = make_moe_call(context, plan, args);
  if (call.num_tokens == 0) return;
  const cudaStream_t stream = stream_of(context);
  const int entries = call.num_tokens * (call.topk + (call.has_shared ? 1 : 0));
  const auto blocks = [&](std::int64_t width) { return static_cast<unsigned>((entries * width + 127) / 128); };
  const Bf16Bits* x = call.x;
  if (call.quantise) {
    launch_quantise_rows(call.x, call.hidden, call.x_quantised, call.num_tokens, call.hidden, stream);
    x = call.x_quantised;
  }
  up<<<blocks(call.intermediate), 128, 0, stream>>>(call, x, entries);
  // AQ of t in place: every block of 128 is read before it is written, by the threads that write it.
  if (call.quantise) launch_quantise_rows(call.t, call.intermediate, call.t, entries, call.intermediate, stream);
  down<<<blocks(call.hidden), 128, 0, stream>>>(call, call.t, entries);
  launch_sum_experts(call, stream);
}

}  // namespace fathom::cuda
