// hyper_connection/fused: two launches a transition. The first splits a row's 4 * hidden values over blocks:
// each makes h', writes it and leaves 25 partial sums. The second, one block a row, finishes the sums, makes
// pre, collapses and norms with eight warps while a ninth runs Sinkhorn.
#include "ops/cuda/device_rows.cuh"
#include "ops/hyper_connection/launch.cuh"
#include "ops/linear/kernels.cuh"

namespace fathom::cuda {
namespace {

constexpr int kThreads = kHcStreams * kHcSplitChannels;  // (stream, channel)
constexpr int kWarps = kThreads / 32;

// Sums v[i] over the warp's lanes for 32 values at once; lane i gets the sum of v[i].
template <int kHalf>
__device__ __forceinline__ void transpose_step(float (&v)[32], int lane) {
  const bool upper = (lane & kHalf) != 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float send = upper ? v[i] : v[i + kHalf];
    const float keep = upper ? v[i + kHalf] : v[i];
    v[i] = keep + __shfl_xor_sync(0xffffffffu, send, kHalf);
  }
  if constexpr (kHalf > 1) transpose_step<kHalf / 2>(v, lane);
}

template <bool kPost, bool kPre>
__global__ void __launch_bounds__(kThreads)
    mix_and_sum(const Bf16Bits* __restrict__ h, const Bf16Bits* __restrict__ y, const float* __restrict__ post,
                const float* __restrict__ comb, Bf16Bits* __restrict__ next, const float* fn, float* partials,
                int num_tokens, int hidden) {
  __shared__ float sums[kHcRowsPerBlock][kWarps][kHcPartials];
  const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
  const int k = tid / kHcSplitChannels, c = static_cast<int>(blockIdx.x) * kHcSplitChannels + tid % kHcSplitChannels;
  const int first = static_cast<int>(blockIdx.y) * kHcRowsPerBlock;
  const int rows = min(kHcRowsPerBlock, num_tokens - first);
  const bool active = c < hidden;
  float w[kHcOutputs];
  if constexpr (kPre) {
#pragma unroll
    for (int m = 0; m < kHcOutputs; ++m)
      w[m] = active ? fn[static_cast<std::int64_t>(m) * kHcStreams * hidden + k * hidden + c] : 0.0f;
  }
  // Four rows at a time: their loads are on the way together.
  constexpr int kTogether = 4;
  for (int base = 0; base < rows; base += kTogether) {
    float v[kTogether];
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
      const std::int64_t token = first + min(base + r, rows - 1);
      v[r] = 0.0f;
      if (!active) continue;
      const Bf16Bits* row = h + token * kHcStreams * hidden + c;
      if constexpr (kPost) {
        const float* mix = comb + token * kHcStreams * kHcStreams + k;
        float sum = post[token * kHcStreams + k] * bf16_to_f32(y[token * hidden + c]);
#pragma unroll
        for (int j = 0; j < kHcStreams; ++j) sum += mix[j * kHcStreams] * bf16_to_f32(row[j * hidden]);
        v[r] = round_bf16(sum);
      } else {
        v[r] = bf16_to_f32(row[k * hidden]);
      }
    }
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
      if (base + r >= rows) break;
      if constexpr (kPost) {
        if (active)
          next[(static_cast<std::int64_t>(first + base + r) * kHcStreams + k) * hidden + c] = f32_to_bf16(v[r]);
      }
      if constexpr (kPre) {
        float terms[32];
#pragma unroll
        for (int m = 0; m < kHcOutputs; ++m) terms[m] = w[m] * v[r];
        terms[kHcOutputs] = v[r] * v[r];
#pragma unroll
        for (int m = kHcOutputs + 1; m < 32; ++m) terms[m] = 0.0f;
        transpose_step<16>(terms, lane);
        sums[base + r][warp][lane] = terms[0];
      }
    }
  }
  if constexpr (kPre) {
    __syncthreads();
    for (int i = warp; i < rows; i += kWarps) {
      float total = 0.0f;
#pragma unroll
      for (int p = 0; p < kWarps; ++p) total += sums[i][p][lane];
      partials[((first + i) * static_cast<std::int64_t>(gridDim.x) + blockIdx.x) * kHcPartials + lane] = total;
    }
  }
}

constexpr int kFinishThreads = 288;  // eight warps collapse and norm; the ninth runs Sinkhorn

__device__ __forceinline__ void sync_eight_warps() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

__global__ void __launch_bounds__(kFinishThreads)
    finish(const Bf16Bits* h, const float* partials, HcConstants hc, const Bf16Bits* norm_weight, float* next_post,
           float* next_comb, Bf16Bits* normed, int num_splits, int hidden) {
  __shared__ float parts[9][kHcPartials];
  __shared__ float sums[kHcPartials];
  __shared__ float squares[8];
  const std::int64_t token = blockIdx.x;
  const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
  float sum = 0.0f;
  for (int s = warp; s < num_splits; s += 9) sum += partials[(token * num_splits + s) * kHcPartials + lane];
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp == 0) {
    float total = 0.0f;
#pragma unroll
    for (int p = 0; p < 9; ++p) total += parts[p][lane];
    sums[lane] = total;
  }
  __syncthreads();
  const float r = 1.0f / sqrtf(sums[kHcOutputs] / static_cast<float>(kHcStreams * hidden) + hc.rms_eps);
  const auto m = [&](int i, int part) { return sums[i] * r * hc.scale[part] + hc.base[i]; };
  if (warp == 8) {
    if (lane < 4) next_post[token * kHcStreams + lane] = 2.0f * sigmoid(m(4 + lane, 1));
    const float c = sinkhorn_lane(m(8 + (lane & 15), 2), hc.iterations, hc.hc_eps);
    if (lane < 16) next_comb[token * 16 + lane] = c;
    return;
  }
  float pre[kHcStreams];
#pragma unroll
  for (int j = 0; j < kHcStreams; ++j) pre[j] = sigmoid(m(j, 0)) + hc.hc_eps;
  // Pairs of channels; a row of up to 8192 channels stays in registers.
  constexpr int kMaxPairs = 16;
  std::uint32_t x[kMaxPairs];
  float square = 0.0f;
  const auto* streams = reinterpret_cast<const std::uint32_t*>(h + token * kHcStreams * hidden);
  const int pairs = hidden / 2;
#pragma unroll
  for (int i = 0; i < kMaxPairs; ++i) {
    const int p = tid + 256 * i;
    if (p >= pairs) continue;
    float low = 0.0f, high = 0.0f;
#pragma unroll
    for (int j = 0; j < kHcStreams; ++j) {
      const std::uint32_t v = streams[j * pairs + p];
      low += pre[j] * bf16_low(v);
      high += pre[j] * bf16_high(v);
    }
    x[i] = pack_bf16(low, high);
    square += bf16_low(x[i]) * bf16_low(x[i]) + bf16_high(x[i]) * bf16_high(x[i]);
  }
  square = warp_sum(square);
  if (lane == 0) squares[warp] = square;
  sync_eight_warps();
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < 8; ++w) total += squares[w];
  const float factor = 1.0f / sqrtf(total / static_cast<float>(hidden) + hc.rms_eps);
  const auto* weights = reinterpret_cast<const std::uint32_t*>(norm_weight);
  auto* out = reinterpret_cast<std::uint32_t*>(normed + token * hidden);
#pragma unroll
  for (int i = 0; i < kMaxPairs; ++i) {
    const int p = tid + 256 * i;
    if (p >= pairs) continue;
    const std::uint32_t w = weights[p];
    out[p] = pack_bf16(bf16_low(w) * (bf16_low(x[i]) * factor), bf16_high(w) * (bf16_high(x[i]) * factor));
  }
}

}  // namespace

void hyper_connection_fused(ExecutionContext& context, const HyperConnectionPlan& plan,
                            const HyperConnectionArgs& args) {
  const HyperConnectionDesc& d = plan.desc;
  FATHOM_CHECK(d.hc_mult == kHcStreams && d.hidden % 2 == 0 && d.hidden <= 8192, "four streams of up to 8192 channels");
  const int tokens = static_cast<int>(args.streams.shape[0]), hidden = static_cast<int>(d.hidden);
  if (tokens == 0) return;
  const cudaStream_t stream = stream_of(context);
  const bool has_post = !args.sublayer_out.empty(), has_pre = !args.next.fn.empty();
  const int splits = static_cast<int>(hc_num_splits(hidden));
  const dim3 grid(static_cast<unsigned>(splits),
                  static_cast<unsigned>((tokens + kHcRowsPerBlock - 1) / kHcRowsPerBlock));
  auto* partials = reinterpret_cast<float*>(context.scratch);
  const Bf16Bits* h = args.streams.as<Bf16Bits>();
  auto* next = args.next_streams.as<Bf16Bits>();
  launch_halves(args, [&](auto post, auto pre) {
    mix_and_sum<decltype(post)::value, decltype(pre)::value><<<grid, kThreads, 0, stream>>>(
        h, args.sublayer_out.as<Bf16Bits>(), args.post.as<float>(), args.comb.as<float>(), next,
        args.next.fn.as<float>(), partials, tokens, hidden);
  });
  if (!has_pre) return;
  const HcConstants hc = hc_constants(d, args);
  finish<<<static_cast<unsigned>(tokens), kFinishThreads, 0, stream>>>(
      has_post ? next : h, partials, hc, args.norm_weight.as<Bf16Bits>(), args.next_post.as<float>(),
      args.next_comb.as<float>(), args.normed.as<Bf16Bits>(), splits, hidden);
  if (!args.normed_quantised.empty()) {
    launch_quantise_rows(args.normed.as<Bf16Bits>(), hidden, args.normed_quantised.as<Bf16Bits>(), tokens, hidden,
                         stream);
  }
}

}  // namespace fathom::cuda
