// linear/mma: weights are the 16-row operand, eight rows of x the other, so that a decode step wastes
// nothing; the 128-wide chunks of K are dealt to the block's eight warps.
#include "ops/cuda/weight_fragments.cuh"
#include "ops/linear/run.cuh"

namespace fathom::cuda {
namespace {

struct LinearGroup {
  LinearItem items[kLinearMaxGroup];
  std::int32_t num_items;
};

template <int kRowTiles, int kTokenTiles>
struct Accumulators {
  float total[kRowTiles][kTokenTiles][4];
};

// One chunk of bf16 weights.
template <int kRowTiles, int kTokenTiles>
__device__ __forceinline__ void chunk_bf16(Accumulators<kRowTiles, kTokenTiles>& acc, const DeviceWeight& w,
                                           int first_row, int chunk, const Bf16Bits* const (&x)[kTokenTiles], int g,
                                           int t) {
  uint4 raw[kRowTiles][2][4];
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = min(first_row + 16 * m + 8 * half + g, w.n - 1);
      const std::uint8_t* p = w.values + (static_cast<std::int64_t>(row) * w.k + chunk * kLinearChunk) * 2 + 16 * t;
#pragma unroll
      for (int j = 0; j < 4; ++j) raw[m][half][j] = load_streaming(p + 64 * j);
    }
  }
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
    std::uint32_t b[16];
    ColumnsBf16::load(b, x[n] + chunk * kLinearChunk, t);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint4 r0 = raw[m][0][j], r1 = raw[m][1][j];
        const std::uint32_t first[4] = {r0.x, r1.x, r0.y, r1.y};
        mma_bf16(acc.total[m][n], first, b[4 * j], b[4 * j + 1]);
        const std::uint32_t second[4] = {r0.z, r1.z, r0.w, r1.w};
        mma_bf16(acc.total[m][n], second, b[4 * j + 2], b[4 * j + 3]);
      }
    }
  }
}

template <int kRowTiles>
struct CodesE4m3 {
  uint4 raw[kRowTiles][2][2];
};

template <int kRowTiles>
__device__ __forceinline__ void load_e4m3(CodesE4m3<kRowTiles>& codes, const DeviceWeight& w, int first_row, int chunk,
                                          int g, int t) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = min(first_row + 16 * m + 8 * half + g, w.n - 1);
      const std::uint8_t* p = w.values + static_cast<std::int64_t>(row) * w.k + chunk * kLinearChunk + 16 * t;
      codes.raw[m][half][0] = load_streaming(p);
      codes.raw[m][half][1] = load_streaming(p + 64);
    }
  }
}

template <int kRowTiles, int kTokenTiles>
__device__ __forceinline__ void chunk_e4m3(Accumulators<kRowTiles, kTokenTiles>& acc, const CodesE4m3<kRowTiles>& codes,
                                           const DeviceWeight& w, int first_row, int chunk, bool quantise_here,
                                           const Bf16Bits* const (&x)[kTokenTiles], int g, int t) {
  std::uint32_t b[kTokenTiles][16];
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
    ColumnsE4m3::load(b[n], x[n] + chunk * kLinearChunk, t);
    if (quantise_here) simulate_aq_quad(b[n]);
  }
  const int scale_row_stride = (w.k + 127) / 128;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    float part[kTokenTiles][4] = {};
#pragma unroll
    for (int s = 0; s < 8; ++s) {
      const uint4 r0 = codes.raw[m][0][s / 4], r1 = codes.raw[m][1][s / 4];
      const std::uint32_t c0 = s % 4 == 0 ? r0.x : s % 4 == 1 ? r0.y : s % 4 == 2 ? r0.z : r0.w;
      const std::uint32_t c1 = s % 4 == 0 ? r1.x : s % 4 == 1 ? r1.y : s % 4 == 2 ? r1.z : r1.w;
      std::uint32_t a[4];
      e4m3_pairs(c0, a[0], a[2]);
      e4m3_pairs(c1, a[1], a[3]);
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) mma_bf16(part[n], a, b[n][2 * s], b[n][2 * s + 1]);
    }
    const std::int64_t s = static_cast<std::int64_t>(min(first_row + 16 * m, w.n - 1) / 128) * scale_row_stride + chunk;
    const float scale = w.f32_scale ? reinterpret_cast<const float*>(w.scale)[s] : e8m0_to_f32(w.scale[s]);
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc.total[m][n][i] += part[n][i] * scale;
    }
  }
}

template <int kRowTiles, int kTokenTiles>
__global__ void __launch_bounds__(kLinearWarps * 32, kTokenTiles == 1 ? 2 : 1)
    linear_rows(LinearCall call, const __grid_constant__ LinearGroup group, const Bf16Bits* quantised) {
  constexpr int kRows = 16 * kRowTiles, kTokens = 8 * kTokenTiles;
  extern __shared__ float partial[];  // [warps][rows][tokens + 1]
  int which = 0;
  while (which + 1 < group.num_items && static_cast<int>(blockIdx.x) >= group.items[which + 1].first_tile) ++which;
  const LinearItem& item = group.items[which];
  const DeviceWeight w = item.weight;
  const int first_row = (static_cast<int>(blockIdx.x) - item.first_tile) * kRows;
  const int first_token = static_cast<int>(blockIdx.y) * kTokens;
  const int warp = static_cast<int>(threadIdx.x >> 5), lane = static_cast<int>(threadIdx.x & 31);
  const int g = lane >> 2, t = lane & 3;

  const bool from_scratch = item.quantise && quantised != nullptr;
  const Bf16Bits* source = from_scratch ? quantised : call.x;
  const std::int64_t column = item.group_rows > 0 ? static_cast<std::int64_t>(first_row / item.group_rows) * w.k : 0;
  const Bf16Bits* x[kTokenTiles];
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
    x[n] = source + min(first_token + 8 * n + g, call.num_tokens - 1) * call.x_stride + column;
  }
  Accumulators<kRowTiles, kTokenTiles> acc = {};
  const int num_chunks = w.k / kLinearChunk;
  if (w.format == WeightFormat::kBf16) {
    for (int c = warp; c < num_chunks; c += kLinearWarps) chunk_bf16(acc, w, first_row, c, x, g, t);
  } else {
    CodesE4m3<kRowTiles> codes, next;
    if (warp < num_chunks) load_e4m3(codes, w, first_row, warp, g, t);
    for (int c = warp; c < num_chunks; c += kLinearWarps) {
      if (c + kLinearWarps < num_chunks) load_e4m3(next, w, first_row, c + kLinearWarps, g, t);
      chunk_e4m3(acc, codes, w, first_row, c, item.quantise && !from_scratch, x, g, t);
      codes = next;
    }
  }
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
    const std::int64_t o = static_cast<std::int64_t>(first_token + token) * w.n + first_row + row;
    if (item.f32_out)
      static_cast<float*>(item.out)[o] = sum;
    else
      static_cast<Bf16Bits*>(item.out)[o] = f32_to_bf16(sum);
  }
}

template <int kRowTiles, int kTokenTiles>
void launch(const LinearCall& call, LinearGroup& group, const Bf16Bits* quantised, cudaStream_t stream) {
  constexpr LinearTile kTile{kRowTiles, kTokenTiles};
  int tiles = 0;
  for (int i = 0; i < group.num_items; ++i) {
    group.items[i].first_tile = tiles;
    tiles += (group.items[i].weight.n + 16 * kRowTiles - 1) / (16 * kRowTiles);
  }
  const dim3 grid(static_cast<unsigned>(tiles),
                  static_cast<unsigned>((call.num_tokens + 8 * kTokenTiles - 1) / (8 * kTokenTiles)));
  linear_rows<kRowTiles, kTokenTiles>
      <<<grid, kLinearWarps * 32, kTile.shared_bytes(), stream>>>(call, group, quantised);
}

bool fits(std::span<const LinearItem> items) {
  for (const LinearItem& item : items) {
    const bool format = item.weight.format == WeightFormat::kBf16 || item.weight.format == WeightFormat::kFp8Block128;
    if (!format || item.weight.k % kLinearChunk != 0 || (item.group_rows != 0 && item.group_rows % 32 != 0))
      return false;
  }
  return true;
}

}  // namespace

void launch_linear_mma(const LinearCall& call, std::span<const LinearItem> items, Bf16Bits* scratch,
                       cudaStream_t stream) {
  bool quantise = false;
  LinearGroup group{};
  for (const LinearItem& item : items) {
    quantise = quantise || item.quantise;
    group.items[group.num_items++] = item;
  }
  const LinearTile tile = linear_tile(call.num_tokens);
  const bool prepare = quantise && (tile.token_tiles > 1 || !fits(items));
  if (prepare) launch_quantise_rows(call.x, call.x_stride, scratch, call.num_tokens, call.x_stride, stream);
  if (!fits(items)) return launch_linear_naive(call, items, scratch, stream);
  const Bf16Bits* quantised = prepare ? scratch : nullptr;
  switch (tile.token_tiles) {
    case 1: return launch<2, 1>(call, group, quantised, stream);
    case 2: return launch<2, 2>(call, group, quantised, stream);
    default: return launch<2, 4>(call, group, quantised, stream);
  }
}

void linear_mma(ExecutionContext& context, const LinearPlan& plan, const LinearArgs& args) {
  run_linear_group(context, plan, args, launch_linear_mma);
}

}  // namespace fathom::cuda
