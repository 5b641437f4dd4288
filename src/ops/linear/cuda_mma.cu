// linear/mma: weights are the 16-row operand, eight rows of x the other, so that a decode step wastes
// nothing; the 128-wide chunks of K are dealt to the block's eight warps.
#include "ops/cuda/weight_fragments.cuh"
#include "ops/linear/cuda_group.cuh"
#include "ops/linear/cuda_mma_stream.cuh"
#include "ops/linear/run.cuh"

#include <type_traits>

namespace fathom::cuda {
namespace {

template <int kRowTiles, int kTokenTiles>
struct Accumulators {
  float total[kRowTiles][kTokenTiles][4];
};

// One chunk of a weight's rows as loaded: two rows of a 16-row tile a lane.
template <int kRowTiles>
struct RawE4m3 {
  uint4 v[kRowTiles][2][2];
};
template <int kRowTiles>
struct RawBf16 {
  uint4 v[kRowTiles][2][4];
};

template <int kRowTiles>
__device__ __forceinline__ void load_chunk(RawE4m3<kRowTiles>& raw, const DeviceWeight& w, int first_row, int chunk,
                                           int g, int t) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = min(first_row + 16 * m + 8 * half + g, w.n - 1);
      const std::uint8_t* p = w.values + static_cast<std::int64_t>(row) * w.k + chunk * kLinearChunk + 16 * t;
      raw.v[m][half][0] = load_streaming(p);
      raw.v[m][half][1] = load_streaming(p + 64);
    }
  }
}
template <int kRowTiles>
__device__ __forceinline__ void load_chunk(RawBf16<kRowTiles>& raw, const DeviceWeight& w, int first_row, int chunk,
                                           int g, int t) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = min(first_row + 16 * m + 8 * half + g, w.n - 1);
      const std::uint8_t* p = w.values + (static_cast<std::int64_t>(row) * w.k + chunk * kLinearChunk) * 2 + 16 * t;
#pragma unroll
      for (int j = 0; j < 4; ++j) raw.v[m][half][j] = load_streaming(p + 64 * j);
    }
  }
}

// The fragments of the chunk's eight steps for tile m.
template <int kRowTiles>
__device__ __forceinline__ void make_fragments(const RawE4m3<kRowTiles>& raw, int m, std::uint32_t (&a)[8][4]) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint4 low = raw.v[m][0][j], high = raw.v[m][1][j];
    const std::uint32_t c0[4] = {low.x, low.y, low.z, low.w}, c1[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      e4m3_pairs(c0[i], a[4 * j + i][0], a[4 * j + i][2]);
      e4m3_pairs(c1[i], a[4 * j + i][1], a[4 * j + i][3]);
    }
  }
}
template <int kRowTiles>
__device__ __forceinline__ void make_fragments(const RawBf16<kRowTiles>& raw, int m, std::uint32_t (&a)[8][4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint4 low = raw.v[m][0][j], high = raw.v[m][1][j];
    a[2 * j][0] = low.x, a[2 * j][1] = high.x, a[2 * j][2] = low.y, a[2 * j][3] = high.y;
    a[2 * j + 1][0] = low.z, a[2 * j + 1][1] = high.z, a[2 * j + 1][2] = low.w, a[2 * j + 1][3] = high.w;
  }
}

// All chunks of a warp: weights of the next chunk are on their way while this one is multiplied; fragments are
// made once and meet every tile of rows of x.
template <int kRowTiles, int kTokenTiles, typename Raw>
__device__ __forceinline__ void multiply_rows(Accumulators<kRowTiles, kTokenTiles>& acc, const DeviceWeight& w,
                                              int first_row, bool quantise_here,
                                              const Bf16Bits* const (&x)[kTokenTiles], int warp, int g, int t) {
  constexpr bool kFp8 = std::is_same_v<Raw, RawE4m3<kRowTiles>>;
  const int num_chunks = w.k / kLinearChunk;
  if (warp >= num_chunks) return;
  Raw raw, next;
  load_chunk(raw, w, first_row, warp, g, t);
  for (int c = warp; c < num_chunks; c += kLinearWarps) {
    if (c + kLinearWarps < num_chunks) load_chunk(next, w, first_row, c + kLinearWarps, g, t);
    std::uint32_t a[kRowTiles][8][4];
    float scale[kRowTiles];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      make_fragments(raw, m, a[m]);
      scale[m] = 1.0f;
      if constexpr (kFp8) {
        const std::int64_t s =
            static_cast<std::int64_t>(min(first_row + 16 * m, w.n - 1) / 128) * ((w.k + 127) / 128) + c;
        scale[m] = chunk_scale(w, s);
      }
    }
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      std::uint32_t b[16];
      if constexpr (kFp8)
        ColumnsE4m3::load(b, x[n] + c * kLinearChunk, t);
      else
        ColumnsBf16::load(b, x[n] + c * kLinearChunk, t);
      if (kFp8 && quantise_here) simulate_aq_quad(b);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        if constexpr (kFp8) {
          float part[4] = {};
#pragma unroll
          for (int s = 0; s < 8; ++s) mma_bf16(part, a[m][s], b[2 * s], b[2 * s + 1]);
#pragma unroll
          for (int i = 0; i < 4; ++i) acc.total[m][n][i] += part[i] * scale[m];
        } else {
#pragma unroll
          for (int s = 0; s < 8; ++s) mma_bf16(acc.total[m][n], a[m][s], b[2 * s], b[2 * s + 1]);
        }
      }
    }
    raw = next;
  }
}

template <int kRowTiles, int kTokenTiles>
__global__ void __launch_bounds__(kLinearWarps * 32, kTokenTiles == 1 ? 2 : 1)
    linear_rows(LinearCall call, const __grid_constant__ LinearGroup group, const Bf16Bits* quantised) {
  constexpr int kRows = 16 * kRowTiles, kTokens = 8 * kTokenTiles;
  extern __shared__ float partial[];  // [warps][rows][tokens + 1]
  const LinearItem& item = item_of_tile(group, static_cast<int>(blockIdx.x));
  const DeviceWeight w = item.weight;
  const int first_row = (static_cast<int>(blockIdx.x) - item.first_tile) * kRows;
  const int first_token = static_cast<int>(blockIdx.y) * kTokens;
  const int warp = static_cast<int>(threadIdx.x >> 5), lane = static_cast<int>(threadIdx.x & 31);
  const int g = lane >> 2, t = lane & 3;

  const bool from_scratch = item.quantise && quantised != nullptr;
  const Bf16Bits* source = from_scratch ? quantised : call.x;
  const std::int64_t column = first_column(item, first_row);
  const Bf16Bits* x[kTokenTiles];
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
    x[n] = source + min(first_token + 8 * n + g, call.num_tokens - 1) * call.x_stride + column;
  }
  Accumulators<kRowTiles, kTokenTiles> acc = {};
  const int num_chunks = w.k / kLinearChunk;
  if (w.format == WeightFormat::kBf16)
    multiply_rows<kRowTiles, kTokenTiles, RawBf16<kRowTiles>>(acc, w, first_row, false, x, warp, g, t);
  else
    multiply_rows<kRowTiles, kTokenTiles, RawE4m3<kRowTiles>>(acc, w, first_row, item.quantise && !from_scratch, x,
                                                              warp, g, t);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        partial[(warp * kRows + 16 * m + g + 8 * (i / 2)) * (kTokens + 1) + 8 * n + 2 * t + i % 2] = acc.total[m][n][i];
      }
    }
  }
  __syncthreads();
  const int num_parts = min(num_chunks, kLinearWarps);
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kTokens; i += kLinearWarps * 32) {
    const int row = i % kRows, token = i / kRows;
    if (first_row + row >= w.n || first_token + token >= call.num_tokens) continue;
    float sum = 0.0f;
    for (int p = 0; p < num_parts; ++p) sum += partial[(p * kRows + row) * (kTokens + 1) + token];
    store_output(item, first_token + token, first_row + row, sum);
  }
}

template <int kRowTiles, int kTokenTiles>
void launch(const LinearCall& call, std::span<const LinearItem> items, const Bf16Bits* quantised, cudaStream_t stream) {
  constexpr LinearTile kTile{kRowTiles, kTokenTiles};
  const LinearGroup group = make_linear_group(items, 16 * kRowTiles);
  const dim3 grid(static_cast<unsigned>(group.num_tiles),
                  static_cast<unsigned>((call.num_tokens + 8 * kTokenTiles - 1) / (8 * kTokenTiles)));
  static const cudaError_t raised =
      cudaFuncSetAttribute(linear_rows<kRowTiles, kTokenTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(kTile.shared_bytes()));
  static_cast<void>(raised);  // a failure shows as the launch's
  linear_rows<kRowTiles, kTokenTiles>
      <<<grid, kLinearWarps * 32, kTile.shared_bytes(), stream>>>(call, group, quantised);
}

}  // namespace

void launch_linear_mma(const LinearCall& call, std::span<const LinearItem> items, Bf16Bits* scratch,
                       cudaStream_t stream) {
  const LinearTile tile = linear_tile(call.num_tokens, items.front().weight.k);
  const bool fits = fits_tensor_cores(items, 32);
  const bool in_registers = fits && tile.token_tiles == 1;
  const Bf16Bits* quantised = in_registers ? call.x_quantised : quantised_rows(call, items, scratch, stream);
  if (!fits) return launch_linear_naive(call, items, quantised, stream);
  if (in_registers && launch_linear_stream(call, items, quantised, stream)) return;
  switch (tile.token_tiles) {
    case 1:
      if (tile.row_tiles == 1) return launch<1, 1>(call, items, quantised, stream);
      return launch<2, 1>(call, items, quantised, stream);
    case 2: return launch<2, 2>(call, items, quantised, stream);
    case 4: return launch<2, 4>(call, items, quantised, stream);
    default: return launch<2, 8>(call, items, quantised, stream);
  }
}

void linear_mma(ExecutionContext& context, const LinearPlan& plan, const LinearArgs& args) {
  run_linear_group(context, plan, args, launch_linear_mma);
}

}  // namespace fathom::cuda
