// hyper_connection/mma: the two launches of `fused`, with the 24 dot products on tensor cores and a finish that
// waits less.
//
// The first launch gives a warp 16 channels of all four streams: a lane mixes h' of four channels for one row and
// feeds it, already bf16, to m16n8k16 as the operand of eight rows; fn (fp32) is the other as the sum of three bf16
// terms, 24 bits, so products are exact. `fused` spends its time on 31 shuffles for every 32 values instead.
// The second loads the streams while the partial sums arrive, and runs Sinkhorn on a matrix held whole in a
// thread: 20 iterations need no shuffle and four reciprocals a step.
// Both may begin before the launch ahead of them has ended, and read fn and the norm's weight meanwhile. No parameter
// is declared __restrict__: reads of what earlier launches write must stay behind the wait for them.
#include "ops/cuda/activation_quantiser.cuh"
#include "ops/cuda/device_rows.cuh"
#include "ops/cuda/launch_early.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/hyper_connection/launch.cuh"

namespace fathom::cuda {

void hyper_connection_fused(ExecutionContext& context, const HyperConnectionPlan& plan,
                            const HyperConnectionArgs& args);

namespace {

constexpr int kWarps = kHcSplitChannels / 16;
constexpr int kTileRows = 8;

// Four consecutive weights as three bf16 terms of two pairs each.
struct Terms {
  std::uint32_t pair[3][2];
};
__device__ __forceinline__ Terms split(const uint4& w) {
  Terms terms;
  float rest[4] = {__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z), __uint_as_float(w.w)};
#pragma unroll
  for (int term = 0; term < 3; ++term) {
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      const std::uint32_t pair = pack_bf16(rest[2 * p], rest[2 * p + 1]);
      terms.pair[term][p] = pair;
      rest[2 * p] -= bf16_low(pair);
      rest[2 * p + 1] -= bf16_high(pair);
    }
  }
  return terms;
}

__device__ __forceinline__ void unpack(uint2 v, float (&f)[4]) {
  f[0] = bf16_low(v.x), f[1] = bf16_high(v.x), f[2] = bf16_low(v.y), f[3] = bf16_high(v.y);
}

template <bool kPost, bool kPre>
__global__ void __launch_bounds__(kWarps * 32)
    mix_and_multiply(const Bf16Bits* h, const Bf16Bits* y, const float* post, const float* comb, Bf16Bits* next,
                     const float* fn, float* partials, int num_tokens, int hidden) {
  __shared__ float sums[kWarps][kTileRows][kHcPartials + 1];
  admit_next_launch();
  const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  const int c = static_cast<int>(blockIdx.x) * kHcSplitChannels + 16 * warp + 4 * t;
  const std::int64_t width = static_cast<std::int64_t>(kHcStreams) * hidden;
  Terms w[kHcStreams][3];  // rows g, g + 8, g + 16 of fn
  if constexpr (kPre) {
#pragma unroll
    for (int k = 0; k < kHcStreams; ++k) {
#pragma unroll
      for (int m = 0; m < 3; ++m) w[k][m] = split(load_weights_now(fn + (8 * m + g) * width + k * hidden + c));
    }
  }
  await_earlier_launches();
  for (int first = static_cast<int>(blockIdx.y) * kTileRows; first < num_tokens;
       first += static_cast<int>(gridDim.y) * kTileRows) {
    const std::int64_t token = min(first + g, num_tokens - 1);
    uint2 raw[kHcStreams];
#pragma unroll
    for (int j = 0; j < kHcStreams; ++j) raw[j] = *reinterpret_cast<const uint2*>(h + token * width + j * hidden + c);
    uint2 v[kHcStreams];
    if constexpr (kPost) {
      float in[4], stream[kHcStreams][4];
      unpack(*reinterpret_cast<const uint2*>(y + token * hidden + c), in);
      const float4 by_post = reinterpret_cast<const float4*>(post)[token];
      const float gain[4] = {by_post.x, by_post.y, by_post.z, by_post.w};
      float mix[kHcStreams][kHcStreams];
#pragma unroll
      for (int j = 0; j < kHcStreams; ++j) {
        const float4 row = reinterpret_cast<const float4*>(comb)[token * kHcStreams + j];
        mix[j][0] = row.x, mix[j][1] = row.y, mix[j][2] = row.z, mix[j][3] = row.w;
        unpack(raw[j], stream[j]);
      }
#pragma unroll
      for (int k = 0; k < kHcStreams; ++k) {
        float out[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          out[i] = gain[k] * in[i];
#pragma unroll
          for (int j = 0; j < kHcStreams; ++j) out[i] += mix[j][k] * stream[j][i];
        }
        v[k] = make_uint2(pack_bf16(out[0], out[1]), pack_bf16(out[2], out[3]));
        if (first + g < num_tokens) *reinterpret_cast<uint2*>(next + token * width + k * hidden + c) = v[k];
      }
    } else {
#pragma unroll
      for (int k = 0; k < kHcStreams; ++k) v[k] = raw[k];
    }
    if constexpr (kPre) {
      float low[4] = {}, high[4] = {}, square = 0.0f;
#pragma unroll
      for (int k = 0; k < kHcStreams; ++k) {
        float f[4];
        unpack(v[k], f);
#pragma unroll
        for (int i = 0; i < 4; ++i) square += f[i] * f[i];
#pragma unroll
        for (int term = 2; term >= 0; --term) {
          const std::uint32_t a[4] = {w[k][0].pair[term][0], w[k][1].pair[term][0], w[k][0].pair[term][1],
                                      w[k][1].pair[term][1]};
          const std::uint32_t b[4] = {w[k][2].pair[term][0], 0, w[k][2].pair[term][1], 0};
          mma_bf16(low, a, v[k].x, v[k].y);
          mma_bf16(high, b, v[k].x, v[k].y);
        }
      }
      square += __shfl_xor_sync(0xffffffffu, square, 1);
      square += __shfl_xor_sync(0xffffffffu, square, 2);
      __syncthreads();  // the sums of the tile before have been read
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        sums[warp][2 * t + i][g] = low[i];
        sums[warp][2 * t + i][g + 8] = low[2 + i];
        sums[warp][2 * t + i][g + 16] = high[i];
      }
      if (t == 0) sums[warp][g][kHcOutputs] = square;
      __syncthreads();
      for (int i = tid; i < kTileRows * kHcPartials; i += kWarps * 32) {
        const int row = i / kHcPartials, m = i % kHcPartials;
        if (first + row >= num_tokens || m > kHcOutputs) continue;
        float total = 0.0f;
#pragma unroll
        for (int p = 0; p < kWarps; ++p) total += sums[p][row][m];
        partials[((first + row) * static_cast<std::int64_t>(gridDim.x) + blockIdx.x) * kHcPartials + m] = total;
      }
    }
  }
}

// comb held whole: C[j][k] at 4 j + k. Divisions by a row's or column's sum as products with its reciprocal.
__device__ __forceinline__ void sinkhorn_whole(float (&c)[16], int iterations, float eps) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float peak = fmaxf(fmaxf(c[4 * j], c[4 * j + 1]), fmaxf(c[4 * j + 2], c[4 * j + 3]));
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < 4; ++k) c[4 * j + k] = expf(c[4 * j + k] - peak), sum += c[4 * j + k];
#pragma unroll
    for (int k = 0; k < 4; ++k) c[4 * j + k] = c[4 * j + k] / sum + eps;
  }
  for (int i = 0; i < iterations; ++i) {
    if (i > 0) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float r = __fdividef(1.0f, ((c[4 * j] + c[4 * j + 1]) + (c[4 * j + 2] + c[4 * j + 3])) + eps);
#pragma unroll
        for (int k = 0; k < 4; ++k) c[4 * j + k] *= r;
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float r = __fdividef(1.0f, ((c[k] + c[4 + k]) + (c[8 + k] + c[12 + k])) + eps);
#pragma unroll
      for (int j = 0; j < 4; ++j) c[4 * j + k] *= r;
    }
  }
}

constexpr int kFinishThreads = 288;  // eight warps collapse and norm; the ninth runs Sinkhorn

__device__ __forceinline__ void sync_eight_warps() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

// kPieces: 16-byte pieces of a stream that a thread has.
template <int kPieces>
__global__ void __launch_bounds__(kFinishThreads)
    finish(const Bf16Bits* h, const float* partials, HcConstants hc, const Bf16Bits* norm_weight, float* next_post,
           float* next_comb, Bf16Bits* normed, Bf16Bits* quantised, int num_splits, int hidden) {
  __shared__ float parts[9][kHcPartials];
  __shared__ float squares[8];
  const std::int64_t token = blockIdx.x;
  const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
  const int pieces = hidden / 8;
  admit_next_launch();
  uint4 raw[kHcStreams][kPieces], weights[kPieces];
  if (warp < 8) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      weights[i] = __ldg(reinterpret_cast<const uint4*>(norm_weight) + min(tid + 256 * i, pieces - 1));
  }
  await_earlier_launches();
  if (warp < 8) {
    const auto* streams = reinterpret_cast<const uint4*>(h + token * kHcStreams * hidden);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int p = min(tid + 256 * i, pieces - 1);
#pragma unroll
      for (int j = 0; j < kHcStreams; ++j) raw[j][i] = streams[j * pieces + p];
    }
  }
  float sum = 0.0f;
#pragma unroll 4
  for (int s = warp; s < num_splits; s += 9) sum += partials[(token * num_splits + s) * kHcPartials + lane];
  parts[warp][lane] = sum;
  __syncthreads();
  // Every thread adds the nine parts of the sums it needs, in one order.
  const auto sum_of = [&](int i) {
    float total = 0.0f;
#pragma unroll
    for (int p = 0; p < 9; ++p) total += parts[p][i];
    return total;
  };
  const float r = 1.0f / sqrtf(sum_of(kHcOutputs) / static_cast<float>(kHcStreams * hidden) + hc.rms_eps);
  const auto m = [&](int i, int part) { return sum_of(i) * r * hc.scale[part] + hc.base[i]; };
  if (warp == 8) {
    // Lane i makes value i; then every lane has the whole matrix.
    const float mine = lane < kHcOutputs ? m(lane, lane < 4 ? 0 : lane < 8 ? 1 : 2) : 0.0f;
    if (lane >= 4 && lane < 8) next_post[token * kHcStreams + lane - 4] = 2.0f * sigmoid(mine);
    float c[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) c[i] = __shfl_sync(0xffffffffu, mine, 8 + i);
    sinkhorn_whole(c, hc.iterations, hc.hc_eps);
    auto* out = reinterpret_cast<float4*>(next_comb + token * 16);
    if (lane == 0) {
#pragma unroll
      for (int j = 0; j < 4; ++j) out[j] = make_float4(c[4 * j], c[4 * j + 1], c[4 * j + 2], c[4 * j + 3]);
    }
    return;
  }
  float pre[kHcStreams];
#pragma unroll
  for (int j = 0; j < kHcStreams; ++j) pre[j] = sigmoid(m(j, 0)) + hc.hc_eps;
  uint4 x[kPieces];
  float square = 0.0f;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    std::uint32_t* pair = &x[i].x;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float low = 0.0f, high = 0.0f;
#pragma unroll
      for (int j = 0; j < kHcStreams; ++j) {
        const std::uint32_t v = (&raw[j][i].x)[e];
        low += pre[j] * bf16_low(v);
        high += pre[j] * bf16_high(v);
      }
      pair[e] = pack_bf16(low, high);
      if (tid + 256 * i < pieces)
        square += bf16_low(pair[e]) * bf16_low(pair[e]) + bf16_high(pair[e]) * bf16_high(pair[e]);
    }
  }
  square = warp_sum(square);
  if (lane == 0) squares[warp] = square;
  sync_eight_warps();
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < 8; ++w) total += squares[w];
  const float factor = 1.0f / sqrtf(total / static_cast<float>(hidden) + hc.rms_eps);
  auto* out = reinterpret_cast<uint4*>(normed + token * hidden);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int p = tid + 256 * i;
    std::uint32_t result[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const std::uint32_t w = (&weights[i].x)[e], v = (&x[i].x)[e];
      result[e] = pack_bf16(bf16_low(w) * (bf16_low(v) * factor), bf16_high(w) * (bf16_high(v) * factor));
    }
    if (p < pieces) out[p] = make_uint4(result[0], result[1], result[2], result[3]);
    if (quantised == nullptr) continue;
    // Sixteen lanes have a block of 128 channels; those beyond the row hold copies and store nothing.
    std::uint32_t m = max_magnitude(max_magnitude(result[0], result[1]), max_magnitude(result[2], result[3]));
#pragma unroll
    for (int offset = 8; offset > 0; offset >>= 1) m = max_magnitude(m, __shfl_xor_sync(0xffffffffu, m, offset));
    simulate_aq<4>(result, pair_maximum(m));
    if (p < pieces) {
      reinterpret_cast<uint4*>(quantised + token * hidden)[p] = make_uint4(result[0], result[1], result[2], result[3]);
    }
  }
}

}  // namespace

void hyper_connection_mma(ExecutionContext& context, const HyperConnectionPlan& plan, const HyperConnectionArgs& args) {
  const HyperConnectionDesc& d = plan.desc;
  const int tokens = static_cast<int>(args.streams.shape[0]), hidden = static_cast<int>(d.hidden);
  if (hidden % kHcSplitChannels != 0 || hidden > 8192 || d.hc_mult != kHcStreams)
    return hyper_connection_fused(context, plan, args);
  if (tokens == 0) return;
  const cudaStream_t stream = stream_of(context);
  const bool has_post = !args.sublayer_out.empty(), has_pre = !args.next.fn.empty();
  const int splits = hidden / kHcSplitChannels;
  const dim3 grid(static_cast<unsigned>(splits), static_cast<unsigned>(hc_row_blocks(tokens)));
  auto* partials = reinterpret_cast<float*>(context.scratch);
  const Bf16Bits* h = args.streams.as<Bf16Bits>();
  auto* next = args.next_streams.as<Bf16Bits>();
  launch_halves(args, [&](auto post, auto pre) {
    const auto kernel = mix_and_multiply<decltype(post)::value, decltype(pre)::value>;
    static const bool early = may_begin_early(kernel);
    launch_early(kernel, early, grid, kWarps * 32, 0, stream, h, args.sublayer_out.as<Bf16Bits>(),
                 args.post.as<float>(), args.comb.as<float>(), next, args.next.fn.as<float>(), partials, tokens,
                 hidden);
  });
  if (!has_pre) return;
  const HcConstants hc = hc_constants(d, args);
  static const bool early = may_begin_early(finish<1>);
  const auto close = [&](auto kernel) {
    launch_early(kernel, early, dim3(static_cast<unsigned>(tokens)), kFinishThreads, 0, stream, has_post ? next : h,
                 partials, hc, args.norm_weight.as<Bf16Bits>(), args.next_post.as<float>(), args.next_comb.as<float>(),
                 args.normed.as<Bf16Bits>(), args.normed_quantised.as<Bf16Bits>(), splits, hidden);
  };
  if (hidden <= 2048)
    close(finish<1>);
  else if (hidden <= 4096)
    close(finish<2>);
  else
    close(finish<4>);
}

}  // namespace fathom::cuda
