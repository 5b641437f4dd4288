// linear/wgmma for up to 64 rows of x and more tiles of 128 weight rows than multiprocessors, all of codes: a block
// takes one tile after another, bit for bit linear/mma. The next tile's weights and rows of x are on their way while a
// tile leaves.
//
// Weights go from memory to the registers of their lane and become the products' first operand there. Where a launch
// has to quantise x, it also sorts its columns as the fragments have them; else a lane exchanges half of its codes with
// its neighbour (cuda_wgmma_fragments.cuh).
#include <algorithm>

#include "ops/cuda/card_limits.cuh"
#include "ops/cuda/ptx/copy_async.cuh"
#include "ops/cuda/ptx/mbarrier.cuh"
#include "ops/cuda/ptx/wgmma.cuh"
#include "ops/linear/cuda_group.cuh"
#include "ops/linear/cuda_wgmma_fragments.cuh"
#include "ops/linear/cuda_wgmma_split.cuh"

namespace fathom::cuda {
namespace {

// Two warpgroups multiply; the four warps of a third bring x and the chunks' scales, one a stage.
constexpr int kStages = kLinearSplitStages, kThreads = 256, kProducers = 32 * kStages;

#if FATHOM_HAS_WGMMA
constexpr int kRows = kLinearWgmmaRows, kStride = kLinearResultStride<kRows>;
constexpr int kRowBytes = 128;  // 64 columns: half a chunk; the halves stand one after the other

__device__ __forceinline__ void sync_consumers() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

// A block's tiles: first, first + step, ... below end.
struct Work {
  LinearSplitRows inputs;
  int num_chunks, first, step, end;
};
struct Tile {
  const LinearItem* item;
  int first_row;
  __device__ __forceinline__ Tile(const LinearGroup& group, int tile)
      : item(&item_of_tile(group, tile)), first_row((tile - item->first_tile) * kRows) {}
};

// A chunk among a block's, in linear/mma's order: sum p of a tile is complete with its last one.
struct Chunk {
  int tile, p, index;
  __device__ __forceinline__ bool there(const Work& work) const { return tile < work.end; }
  __device__ __forceinline__ Chunk next(const Work& work) const {
    if (index + kLinearWarps < work.num_chunks) return {tile, p, index + kLinearWarps};
    if (p + 1 < min(work.num_chunks, kLinearWarps)) return {tile, p + 1, p + 1};
    return {tile + work.step, 0, 0};
  }
};

struct Stages {
  unsigned char* inputs;
  float* scales;
  std::uint64_t *full, *empty;
};

// kTokens sorted rows of a chunk of x by one warp; rows beyond the last repeat it.
template <int kTokens>
__device__ __forceinline__ void copy_sorted(unsigned char* tile, const Bf16Bits* x, std::int64_t stride, int last) {
  const int lane = static_cast<int>(threadIdx.x) % 32, piece = lane % 16;
  tile += piece / 8 * kTokens * kRowBytes;
#pragma unroll 8
  for (int i = 0; i < kTokens; i += 2) {
    const int row = i + lane / 16;
    copy_async_16(tile + swizzle_128(row, piece % 8), x + min(row, last) * stride + 8 * piece);
  }
}

template <int kTokens>
__device__ __forceinline__ void bring_inputs(const LinearGroup& group, const Work& work, const Stages& stages,
                                             int stage) {
  const LinearSplitRows& inputs = work.inputs;
  Chunk at{work.first, 0, 0};
  for (int i = 0; at.there(work); ++i, at = at.next(work)) {
    if (i % kStages != stage) continue;
    const Tile tile(group, at.tile);
    const LinearItem& item = *tile.item;
    const Bf16Bits* x = (item.quantise ? inputs.quantised : inputs.plain) + first_column(item, tile.first_row) +
                        at.index * kLinearChunk;
    float scale = 1.0f;
    if (threadIdx.x % 32 == 0) {
      scale = chunk_scale(item.weight, static_cast<std::int64_t>(tile.first_row / 128) * work.num_chunks + at.index);
    }
    mbarrier_wait(stages.empty + stage, i / kStages % 2 ^ 1);
    unsigned char* to = stages.inputs + stage * kTokens * 2 * kRowBytes;
    if (inputs.sorted && item.quantise)
      copy_sorted<kTokens>(to, x, inputs.stride, inputs.num_tokens - 1);
    else
      copy_to_steps<true, kTokens>(to, x, inputs.stride, inputs.num_tokens - 1);
    copy_async_commit();
    copy_async_wait<0>();
    if (threadIdx.x % 32 == 0) stages.scales[stage] = scale;
    fence_shared_stores();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(stages.full + stage);
  }
}

// A tile's results out, by the threads that multiplied.
template <int kTokens>
__device__ __forceinline__ void write_tile(const float (&sum)[kTokens / 2], float* results, const Tile& tile,
                                           int num_tokens) {
  const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, g = lane >> 2, t = lane & 3, row = tid / 32 * 16 + g;
  sync_consumers();  // nobody reads the tile before
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) results[(i / 4 * 8 + 2 * t + i % 2) * kStride + row + 8 * (i / 2 % 2)] = sum[i];
  sync_consumers();
  store_tile<kRows, kTokens, kThreads>(*tile.item, results, tile.first_row, 0, num_tokens);
}

template <bool kSorted, int kTokens>
__device__ __forceinline__ void sum_chunks(float* results, const LinearGroup& group, const Work& work,
                                           const Stages& stages) {
  constexpr int kInputBytes = kTokens * 2 * kRowBytes;
  constexpr int kDepth = 2;  // chunks of weights on their way
  const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, g = lane >> 2, t = lane & 3;
  const int my_row = tid / 32 * 16 + g;
  const CodeExchange exchange(t);
  WeightRows<true> weights;
  Chunk at{work.first, 0, 0}, load_at = at;
  int load_tile = -1;
  RawRows<true> raw[kDepth];
  const auto load = [&](RawRows<true>& to) {
    if (!load_at.there(work)) return;
    if (load_at.tile != load_tile) {
      const Tile tile(group, load_at.tile);
      weights = WeightRows<true>(tile.item->weight, tile.first_row + my_row, t);
      load_tile = load_at.tile;
    }
    weights.load(to, load_at.index);
    load_at = load_at.next(work);
  };
  const auto widen = [&](const RawRows<true>& from, std::uint32_t(&a)[8][4]) {
    if constexpr (kSorted)
      make_sorted_fragments(from, a);
    else
      make_fragments(from, exchange, a);
  };
#pragma unroll
  for (int d = 0; d < kDepth; ++d) load(raw[d]);
  std::uint32_t a[2][8][4];
  float sum[kTokens / 2] = {}, total[kTokens / 2] = {};
  if (at.there(work)) widen(raw[0], a[0]);
  load(raw[0]);
  int slot = 0, parity = 0;
  while (at.there(work)) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {  // the fragments of this chunk are a[d % 2]
      if (!at.there(work)) break;
      mbarrier_wait(stages.full + slot, parity);
      const std::uint64_t b = wgmma_operand(stages.inputs + slot * kInputBytes, 16, 1024, WgmmaLayout::kSwizzle128);
      float part[kTokens / 2];
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < 8; ++s) {
        const std::uint64_t columns = advance(b, static_cast<std::uint32_t>(s / 4 * kTokens * kRowBytes + s % 4 * 32));
        if constexpr (kTokens == 32)
          wgmma_m64n32k16_registers(part, a[d % 2][s], columns, s > 0);
        else
          wgmma_m64n64k16_registers(part, a[d % 2][s], columns, s > 0);
      }
      wgmma_commit();
      const Chunk next = at.next(work);
      // Lane 0 reads the scale, because it is the one that gives the stage back.
      const float scale = __shfl_sync(0xffffffffu, lane == 0 ? stages.scales[slot] : 0.0f, 0);
      if (next.there(work)) widen(raw[(d + 1) % kDepth], a[(d + 1) % 2]);
      load(raw[(d + 1) % kDepth]);
      wgmma_wait<0>();
      pin_registers(part);
      if (lane == 0) mbarrier_arrive(stages.empty + slot);
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) total[i] += part[i] * scale;
      if (next.p != at.p || next.tile != at.tile) {
#pragma unroll
        for (int i = 0; i < kTokens / 2; ++i) sum[i] += total[i], total[i] = 0.0f;
        if (next.tile != at.tile) {
          write_tile<kTokens>(sum, results, Tile(group, at.tile), work.inputs.num_tokens);
#pragma unroll
          for (int i = 0; i < kTokens / 2; ++i) sum[i] = 0.0f;
        }
      }
      at = next;
      slot = (slot + 1) % kStages;
      parity ^= slot == 0 ? 1 : 0;
    }
  }
}
#endif

template <int kTokens>
__global__ void __launch_bounds__(kThreads + kProducers, 1)
    linear_many_tiles(const __grid_constant__ LinearGroup group, LinearSplitRows inputs) {
#if FATHOM_HAS_WGMMA
  extern __shared__ unsigned char unaligned[];
  unsigned char* memory = unaligned + (1024u - (shared_address(unaligned) & 1023u)) % 1024u;
  auto* results = reinterpret_cast<float*>(memory + kStages * kTokens * 2 * kRowBytes);
  __shared__ std::uint64_t full[kStages], empty[kStages];
  __shared__ float scales[kStages];
  const Stages stages{memory, scales, full, empty};
  const Work work{inputs, group.items[0].weight.k / kLinearChunk, static_cast<int>(blockIdx.x),
                  static_cast<int>(gridDim.x), group.num_tiles};
  if (threadIdx.x == 0) {
#pragma unroll
    for (int s = 0; s < kStages; ++s) mbarrier_init(full + s, 1), mbarrier_init(empty + s, kThreads / 32);
  }
  __syncthreads();
  if (threadIdx.x >= kThreads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    bring_inputs<kTokens>(group, work, stages, static_cast<int>(threadIdx.x) / 32 - kThreads / 32);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    if (inputs.sorted && group.items[0].quantise)
      sum_chunks<true, kTokens>(results, group, work, stages);
    else
      sum_chunks<false, kTokens>(results, group, work, stages);
  }
#endif
}

template <int kTokens>
void launch(const LinearGroup& group, const LinearSplitRows& inputs, int num_multiprocessors, cudaStream_t stream) {
  constexpr auto kBytes = static_cast<int>(linear_split_shared_bytes({kTokens, 1}));
  static const cudaError_t raised =
      cudaFuncSetAttribute(linear_many_tiles<kTokens>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  static_cast<void>(raised);  // a failure shows as the launch's
  linear_many_tiles<kTokens><<<static_cast<unsigned>(std::min(num_multiprocessors, group.num_tiles)),
                               kThreads + kProducers, kBytes, stream>>>(group, inputs);
}

}  // namespace

void launch_linear_many_tiles(const LinearGroup& group, const LinearSplitRows& inputs, cudaStream_t stream) {
  static const int num_multiprocessors = card_limits().num_multiprocessors;
  if (inputs.num_tokens <= 32) return launch<32>(group, inputs, num_multiprocessors, stream);
  launch<64>(group, inputs, num_multiprocessors, stream);
}

}  // namespace fathom::cuda
