// linear/mma_tiled: the arithmetic of linear/mma bit for bit, for calls of many rows. There every warp reads the
// whole of x for its chunks of K from the L2; here a block stages a chunk of 64 weight rows (widened to bf16 once)
// and of 128 rows of x in shared memory, and a warp multiplies 32 of each. The order over K stays linear/mma's: eight
// sums over the chunks c = p, p + 8, ..., then these in ascending p.
#include "ops/cuda/ptx/copy_async.cuh"
#include "ops/cuda/weight_fragments.cuh"
#include "ops/linear/cuda_group.cuh"
#include "ops/linear/run.cuh"

namespace fathom::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = kLinearTiledRows, kTokens = kLinearTiledTokens;
constexpr int kStride = kLinearTiledStride;    // bf16 elements of a row in shared memory
constexpr int kRowTiles = 2, kTokenTiles = 4;  // of a warp: 16 weight rows, 8 rows of x each

// A thread's share of a chunk of weights on its way to shared memory.
struct RawChunk {
  uint4 v[4];
};

// E4M3: pieces of 16 codes, 8 a row; bf16: pieces of 8 values, 16 a row.
template <bool kFp8>
__device__ __forceinline__ void load_weights(RawChunk& raw, const DeviceWeight& w, int first_row, int chunk) {
  constexpr int kPieces = kFp8 ? 8 : 16, kLoads = kRows * kPieces / kThreads;
  const std::int64_t row_bytes = static_cast<std::int64_t>(w.k) * (kFp8 ? 1 : 2);
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    const int row = min(first_row + at / kPieces, w.n - 1);
    raw.v[i] =
        __ldg(reinterpret_cast<const uint4*>(w.values + row * row_bytes + chunk * (16 * kPieces)) + at % kPieces);
  }
}
template <bool kFp8>
__device__ __forceinline__ void store_weights(const RawChunk& raw, Bf16Bits* tile) {
  constexpr int kPieces = kFp8 ? 8 : 16, kLoads = kRows * kPieces / kThreads;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    auto* to = reinterpret_cast<uint4*>(tile + at / kPieces * kStride + at % kPieces * (kFp8 ? 16 : 8));
    if constexpr (kFp8) {
      const std::uint32_t codes[4] = {raw.v[i].x, raw.v[i].y, raw.v[i].z, raw.v[i].w};
      std::uint32_t pairs[8];
#pragma unroll
      for (int j = 0; j < 4; ++j) e4m3_pairs(codes[j], pairs[2 * j], pairs[2 * j + 1]);
      to[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      to[1] = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
    } else {
      *to = raw.v[i];
    }
  }
}

// 128 rows of x, 16 pieces each; rows beyond the last repeat it.
__device__ __forceinline__ void copy_inputs(Bf16Bits* tile, const Bf16Bits* x, const LinearCall& call, int first_token,
                                            int chunk) {
#pragma unroll
  for (int i = 0; i < kTokens * 16 / kThreads; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    const int token = min(first_token + at / 16, call.num_tokens - 1);
    copy_async_16(tile + at / 16 * kStride + at % 16 * 8,
                  x + token * call.x_stride + chunk * kLinearChunk + at % 16 * 8);
  }
  copy_async_commit();
}

template <bool kFp8>
__device__ __forceinline__ void load_columns(std::uint32_t (&v)[16], const Bf16Bits* row, int t) {
  if constexpr (kFp8)
    ColumnsE4m3::load(v, row, t);
  else
    ColumnsBf16::load(v, row, t);
}

// One chunk, from shared memory.
template <bool kFp8>
__device__ __forceinline__ void multiply_chunk(float (&total)[kRowTiles][kTokenTiles][4], const Bf16Bits* weights,
                                               const Bf16Bits* inputs, float scale, int g, int t) {
  std::uint32_t b[kTokenTiles][16];
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) load_columns<kFp8>(b[n], inputs + (8 * n + g) * kStride, t);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    std::uint32_t low[16], high[16];
    load_columns<kFp8>(low, weights + (16 * m + g) * kStride, t);
    load_columns<kFp8>(high, weights + (16 * m + 8 + g) * kStride, t);
    float part[kTokenTiles][4] = {};
#pragma unroll
    for (int s = 0; s < 8; ++s) {
      const std::uint32_t a[4] = {low[2 * s], high[2 * s], low[2 * s + 1], high[2 * s + 1]};
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) mma_bf16(kFp8 ? part[n] : total[m][n], a, b[n][2 * s], b[n][2 * s + 1]);
    }
    if constexpr (kFp8) {
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) total[m][n][i] += part[n][i] * scale;
      }
    }
  }
}

// The next chunk in the order above; `p` is its sum.
__device__ __forceinline__ void advance_chunk(int& p, int& chunk, int num_chunks) {
  chunk += kLinearWarps;
  if (chunk >= num_chunks) chunk = ++p;
}

template <bool kFp8>
__device__ __forceinline__ void sum_chunks(float (&sum)[kRowTiles][kTokenTiles][4], const LinearCall& call,
                                           const DeviceWeight& w, const Bf16Bits* x, int first_row, int first_token,
                                           Bf16Bits* inputs, Bf16Bits* weights) {
  const int warp = static_cast<int>(threadIdx.x >> 5), lane = static_cast<int>(threadIdx.x & 31);
  const int g = lane >> 2, t = lane & 3;
  const int num_chunks = w.k / kLinearChunk, num_sums = min(num_chunks, kLinearWarps);
  const Bf16Bits* my_weights = weights + warp % 2 * 32 * kStride;
  const Bf16Bits* my_inputs = inputs + warp / 2 * 32 * kStride;
  const std::int64_t scales = static_cast<std::int64_t>(first_row / 128) * num_chunks;
  float total[kRowTiles][kTokenTiles][4] = {};
  RawChunk raw;
  load_weights<kFp8>(raw, w, first_row, 0);
  copy_inputs(inputs, x, call, first_token, 0);
  int p = 0, chunk = 0, buffer = 0;
  while (p < num_sums) {
    int next_p = p, next = chunk;
    advance_chunk(next_p, next, num_chunks);
    copy_async_wait<0>();
    __syncthreads();  // the inputs are there, and everyone is done with the weights before
    store_weights<kFp8>(raw, weights);
    if (next_p < num_sums) {
      load_weights<kFp8>(raw, w, first_row, next);
      copy_inputs(inputs + (buffer ^ 1) * kTokens * kStride, x, call, first_token, next);
    }
    float scale = 1.0f;
    if constexpr (kFp8) scale = chunk_scale(w, scales + chunk);
    __syncthreads();
    multiply_chunk<kFp8>(total, my_weights, my_inputs + buffer * kTokens * kStride, scale, g, t);
    if (next_p != p) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            sum[m][n][i] += total[m][n][i];
            total[m][n][i] = 0.0f;
          }
        }
      }
    }
    p = next_p, chunk = next, buffer ^= 1;
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    linear_tiles(LinearCall call, const __grid_constant__ LinearGroup group, const Bf16Bits* quantised) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto* inputs = reinterpret_cast<Bf16Bits*>(memory);  // two tiles
  Bf16Bits* weights = inputs + 2 * kTokens * kStride;
  const LinearItem& item = item_of_tile(group, static_cast<int>(blockIdx.x));
  const DeviceWeight w = item.weight;
  const int first_row = (static_cast<int>(blockIdx.x) - item.first_tile) * kRows;
  const int first_token = static_cast<int>(blockIdx.y) * kTokens;
  const Bf16Bits* x = (item.quantise ? quantised : call.x) + first_column(item, first_row);

  float sum[kRowTiles][kTokenTiles][4] = {};
  if (w.format == WeightFormat::kBf16)
    sum_chunks<false>(sum, call, w, x, first_row, first_token, inputs, weights);
  else
    sum_chunks<true>(sum, call, w, x, first_row, first_token, inputs, weights);

  auto* results = reinterpret_cast<float*>(memory);  // [kTokens][kLinearResultStride<kRows>]
  const int tid = static_cast<int>(threadIdx.x), warp = tid >> 5, lane = tid & 31, g = lane >> 2, t = lane & 3;
  __syncthreads();
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        results[(warp / 2 * 32 + 8 * n + 2 * t + i % 2) * kLinearResultStride<kRows> + warp % 2 * 32 + 16 * m + g +
                8 * (i / 2)] = sum[m][n][i];
      }
    }
  }
  __syncthreads();
  store_tile<kRows, kTokens, kThreads>(item, results, first_row, first_token, call.num_tokens);
}

}  // namespace

void launch_linear_mma_tiled(const LinearCall& call, std::span<const LinearItem> items, Bf16Bits* scratch,
                             cudaStream_t stream) {
  const LinearGroup group = make_linear_group(items, kRows);
  if (!fits_tensor_cores(items, kRows) || !linear_uses_tiles(call.num_tokens, group.num_tiles))
    return launch_linear_mma(call, items, scratch, stream);
  const Bf16Bits* quantised = quantised_rows(call, items, scratch, stream);
  static const cudaError_t raised = cudaFuncSetAttribute(linear_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                         static_cast<int>(kLinearTiledSharedBytes));
  static_cast<void>(raised);  // a failure shows as the launch's
  const dim3 grid(static_cast<unsigned>(group.num_tiles),
                  static_cast<unsigned>((call.num_tokens + kTokens - 1) / kTokens));
  linear_tiles<<<grid, kThreads, kLinearTiledSharedBytes, stream>>>(call, group, quantised);
}

void linear_mma_tiled(ExecutionContext& context, const LinearPlan& plan, const LinearArgs& args) {
  run_linear_group(context, plan, args, launch_linear_mma_tiled);
}

}  // namespace fathom::cuda
