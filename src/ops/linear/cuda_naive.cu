#include "ops/cuda/activation_quantiser.cuh"
#include "ops/cuda/device_rows.cuh"
#include "ops/linear/kernels.cuh"
#include "ops/linear/linear.h"
#include "ops/linear/run.cuh"

namespace fathom::cuda {
namespace {

// Sixteen lanes a block of 128 channels, one 16-byte piece a lane.
__global__ void __launch_bounds__(256)
    quantise_rows(const Bf16Bits* x, std::int64_t x_stride, Bf16Bits* out, std::int64_t num_pieces, int row_pieces) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
  const std::int64_t piece = i < num_pieces ? i : num_pieces - 1;
  const uint4 in = *reinterpret_cast<const uint4*>(x + piece / row_pieces * x_stride + piece % row_pieces * 8);
  std::uint32_t v[4] = {in.x, in.y, in.z, in.w};
  std::uint32_t m = max_magnitude(max_magnitude(v[0], v[1]), max_magnitude(v[2], v[3]));
#pragma unroll
  for (int offset = 8; offset > 0; offset >>= 1) m = max_magnitude(m, __shfl_xor_sync(0xffffffffu, m, offset));
  simulate_aq<4>(v, pair_maximum(m));
  if (i < num_pieces) reinterpret_cast<uint4*>(out)[i] = make_uint4(v[0], v[1], v[2], v[3]);
}

__global__ void __launch_bounds__(128) linear_outputs(LinearCall call, LinearItem item, const Bf16Bits* quantised) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * 128 + threadIdx.x;
  if (i >= static_cast<std::int64_t>(call.num_tokens) * item.weight.n) return;
  const std::int64_t token = i / item.weight.n, row = i % item.weight.n;
  const Bf16Bits* x = item.quantise ? quantised : call.x;
  x += token * call.x_stride + (item.group_rows > 0 ? row / item.group_rows * item.weight.k : 0);
  float sum = 0.0f;
  for (int k = 0; k < item.weight.k; ++k) sum += bf16_to_f32(x[k]) * weight_value(item.weight, row, k);
  if (item.f32_out)
    static_cast<float*>(item.out)[i] = sum;
  else
    static_cast<Bf16Bits*>(item.out)[i] = f32_to_bf16(sum);
}

}  // namespace

void launch_quantise_rows(const Bf16Bits* x, std::int64_t x_stride, Bf16Bits* out, std::int64_t num_tokens,
                          std::int64_t width, cudaStream_t stream) {
  const std::int64_t pieces = num_tokens * width / 8;
  if (pieces == 0) return;
  quantise_rows<<<static_cast<unsigned>((pieces + 255) / 256), 256, 0, stream>>>(x, x_stride, out, pieces,
                                                                                 static_cast<int>(width / 8));
}

void launch_linear_naive(const LinearCall& call, std::span<const LinearItem> items, const Bf16Bits* quantised,
                         cudaStream_t stream) {
  for (const LinearItem& item : items) {
    const std::int64_t outputs = static_cast<std::int64_t>(call.num_tokens) * item.weight.n;
    if (outputs == 0) continue;
    linear_outputs<<<static_cast<unsigned>((outputs + 127) / 128), 128, 0, stream>>>(call, item, quantised);
  }
}

void linear_naive(ExecutionContext& context, const LinearPlan& plan, const LinearArgs& args) {
  run_linear_group(
      context, plan, args,
      [](const LinearCall& call, std::span<const LinearItem> items, Bf16Bits* scratch, cudaStream_t stream) {
        bool quantise = false;
        for (const LinearItem& item : items) quantise = quantise || item.quantise;
        const Bf16Bits* quantised = call.x_quantised != nullptr ? call.x_quantised : scratch;
        if (quantise && quantised == scratch)
          launch_quantise_rows(call.x, call.x_stride, scratch, call.num_tokens, call.x_stride, stream);
        launch_linear_naive(call, items, quantised, stream);
      });
}

}  // namespace fathom::cuda
