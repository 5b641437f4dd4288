// hyper_connection/naive: one launch a step of the formula, the "before" of the fused transition.
#include "ops/cuda/device_rows.cuh"
#include "ops/hyper_connection/launch.cuh"
#include "ops/rms_norm/rms_norm.h"

namespace fathom::cuda {

void rms_norm_simt(ExecutionContext& context, const RmsNormPlan& plan, const RmsNormArgs& args);

namespace {

__global__ void __launch_bounds__(256) post_mix(const Bf16Bits* h, const Bf16Bits* y, const float* post,
                                                const float* comb, Bf16Bits* next, std::int64_t count, int hidden) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i >= count) return;
  const std::int64_t token = i / (kHcStreams * hidden);
  const int k = static_cast<int>(i / hidden % kHcStreams), c = static_cast<int>(i % hidden);
  float sum = post[token * kHcStreams + k] * bf16_to_f32(y[token * hidden + c]);
  for (int j = 0; j < kHcStreams; ++j) {
    sum += comb[(token * kHcStreams + j) * kHcStreams + k] * bf16_to_f32(h[(token * kHcStreams + j) * hidden + c]);
  }
  next[i] = f32_to_bf16(sum);
}

// Block (token, m): dot with row m of fn; m == 24: the sum of squares.
__global__ void __launch_bounds__(256) statistics(const Bf16Bits* h, const float* fn, float* sums, int width) {
  __shared__ float shared[8];
  const std::int64_t token = blockIdx.x;
  const int m = static_cast<int>(blockIdx.y);
  float sum = 0.0f;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += 256) {
    const float v = bf16_to_f32(h[token * width + i]);
    sum += v * (m < kHcOutputs ? fn[static_cast<std::int64_t>(m) * width + i] : v);
  }
  sum = block_sum<256>(sum, shared);
  if (threadIdx.x == 0) sums[token * kHcPartials + m] = sum;
}

__global__ void __launch_bounds__(32)
    coefficients(const float* sums, HcConstants hc, float* pre, float* post, float* comb, int width) {
  const std::int64_t token = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x);
  const float r = 1.0f / sqrtf(sums[token * kHcPartials + kHcOutputs] / static_cast<float>(width) + hc.rms_eps);
  const auto m = [&](int i, int part) { return sums[token * kHcPartials + i] * r * hc.scale[part] + hc.base[i]; };
  if (lane < 4) pre[token * kHcStreams + lane] = sigmoid(m(lane, 0)) + hc.hc_eps;
  if (lane < 4) post[token * kHcStreams + lane] = 2.0f * sigmoid(m(4 + lane, 1));
  const float c = sinkhorn_lane(m(8 + (lane & 15), 2), hc.iterations, hc.hc_eps);
  if (lane < 16) comb[token * 16 + lane] = c;
}

__global__ void __launch_bounds__(256)
    collapse(const Bf16Bits* h, const float* pre, Bf16Bits* x, std::int64_t count, int hidden) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i >= count) return;
  const std::int64_t token = i / hidden;
  float sum = 0.0f;
  for (int j = 0; j < kHcStreams; ++j) {
    sum += pre[token * kHcStreams + j] * bf16_to_f32(h[(token * kHcStreams + j) * hidden + i % hidden]);
  }
  x[i] = f32_to_bf16(sum);
}

unsigned blocks_of(std::int64_t count) { return static_cast<unsigned>((count + 255) / 256); }

}  // namespace

void hyper_connection_naive(ExecutionContext& context, const HyperConnectionPlan& plan,
                            const HyperConnectionArgs& args) {
  const HyperConnectionDesc& d = plan.desc;
  FATHOM_CHECK(d.hc_mult == kHcStreams, "four streams");
  const std::int64_t tokens = args.streams.shape[0];
  const int hidden = static_cast<int>(d.hidden), width = kHcStreams * hidden;
  if (tokens == 0) return;
  const cudaStream_t stream = stream_of(context);
  const Bf16Bits* h = args.streams.as<Bf16Bits>();
  if (!args.sublayer_out.empty()) {
    post_mix<<<blocks_of(tokens * width), 256, 0, stream>>>(h, args.sublayer_out.as<Bf16Bits>(), args.post.as<float>(),
                                                            args.comb.as<float>(), args.next_streams.as<Bf16Bits>(),
                                                            tokens * width, hidden);
    h = args.next_streams.as<Bf16Bits>();
  }
  if (args.next.fn.empty()) return;
  auto* sums = reinterpret_cast<float*>(context.scratch);
  float* pre = sums + tokens * kHcPartials;
  auto* x = reinterpret_cast<Bf16Bits*>(pre + tokens * kHcStreams);
  const HcConstants hc = hc_constants(d, args);
  statistics<<<dim3(static_cast<unsigned>(tokens), kHcOutputs + 1), 256, 0, stream>>>(h, hc.fn, sums, width);
  coefficients<<<static_cast<unsigned>(tokens), 32, 0, stream>>>(sums, hc, pre, args.next_post.as<float>(),
                                                                 args.next_comb.as<float>(), width);
  collapse<<<blocks_of(tokens * hidden), 256, 0, stream>>>(h, pre, x, tokens * hidden, hidden);
  rms_norm_simt(context, {{d.hidden, d.rms_norm_eps, d.numerics}, 0},
                {make_view(x, DType::kBF16, {tokens, d.hidden}), args.norm_weight, args.normed, args.normed_quantised});
}

}  // namespace fathom::cuda
