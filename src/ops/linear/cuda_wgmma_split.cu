// linear/wgmma for calls whose tiles of 128 rows are few, bit for bit linear/mma: its eight sums of a tile (over the
// chunks c = p, p + 8, ...) are dealt to the blocks of a cluster, which leave them in shared memory and then each add a
// slice of the tile in ascending p.
//
// Weights go from memory to the registers of their lane and become the products' first operand there, as in linear/mma;
// x is sorted into the steps of the products on its way to shared memory, so no launch sorts it.
#include <cooperative_groups.h>

#include "ops/cuda/kernel_image.cuh"
#include "ops/cuda/ptx/copy_async.cuh"
#include "ops/cuda/ptx/mbarrier.cuh"
#include "ops/cuda/ptx/wgmma.cuh"
#include "ops/linear/cuda_group.cuh"
#include "ops/linear/cuda_wgmma_fragments.cuh"
#include "ops/linear/cuda_wgmma_split.cuh"

namespace fathom::cuda {
namespace {

// Two warpgroups multiply; the four warps of a third bring x, one a stage. What they write needs a fence that waits for
// all memory that a thread has asked for: in the multiplying threads that would be the weights to come.
constexpr int kThreads = 256, kProducers = 32 * kLinearSplitStages;

#if FATHOM_HAS_WGMMA
constexpr int kRows = kLinearWgmmaRows, kStride = kLinearResultStride<kRows>;
constexpr int kStages = kLinearSplitStages;
constexpr int kRowBytes = 128;  // 64 columns: half a chunk; the halves stand one after the other

struct Chunk {
  int p, index;
  __device__ __forceinline__ Chunk next(int num_chunks) const {
    if (index + kLinearWarps < num_chunks) return {p, index + kLinearWarps};
    return {p + 1, p + 1};
  }
};

__device__ __forceinline__ void sync_consumers() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

// Which sums of a tile a block makes, and what it reads for them.
struct Share {
  const Bf16Bits* x;
  std::int64_t x_stride;
  int num_chunks, p_begin, p_end, first_row, first_token, num_tokens;
};

template <bool kFp8, int kTokens>
__device__ __forceinline__ void bring_inputs(const Share& share, unsigned char* inputs, std::uint64_t* full,
                                             std::uint64_t* empty, int stage) {
  Chunk at{share.p_begin, share.p_begin};
  for (int i = 0; at.p < share.p_end; ++i, at = at.next(share.num_chunks)) {
    if (i % kStages != stage) continue;
    mbarrier_wait(empty + stage, i / kStages % 2 ^ 1);
    copy_to_steps<kFp8, kTokens>(inputs + stage * kTokens * 2 * kRowBytes,
                                 share.x + at.index * kLinearChunk + share.first_token * share.x_stride, share.x_stride,
                                 share.num_tokens - 1 - share.first_token);
    copy_async_commit();
    copy_async_wait<0>();
    fence_shared_stores();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(full + stage);
  }
}

// The sums of this block's share. kSplit 1: their total in `sum`; else each to `partials`.
template <bool kFp8, int kTokens, int kSplit>
__device__ __forceinline__ void sum_chunks(float (&sum)[kTokens / 2], float* partials, const DeviceWeight& w,
                                           const Share& share, const unsigned char* inputs, std::uint64_t* full,
                                           std::uint64_t* empty) {
  constexpr int kInputBytes = kTokens * 2 * kRowBytes;
  constexpr int kDepth = kFp8 && kSplit > 1 ? 4 : 2;  // chunks of weights on their way
  const int num_chunks = share.num_chunks, p_end = share.p_end;
  const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, g = lane >> 2, t = lane & 3;
  const int my_row = tid / 32 * 16 + g;
  const WeightRows<kFp8> weights(w, share.first_row + my_row, t);
  const CodeExchange exchange(t);
  const std::int64_t scales = static_cast<std::int64_t>(share.first_row / 128) * num_chunks;
  const auto scale_of = [&](const Chunk& chunk) {
    return !kFp8 || chunk.p >= p_end ? 1.0f : chunk_scale(w, scales + chunk.index);
  };
  Chunk at{share.p_begin, share.p_begin}, load_at = at;
  RawRows<kFp8> raw[kDepth];
  const auto load = [&](RawRows<kFp8>& to) {
    if (load_at.p < p_end) weights.load(to, load_at.index);
    load_at = load_at.next(num_chunks);
  };
#pragma unroll
  for (int d = 0; d < kDepth; ++d) load(raw[d]);
  std::uint32_t a[2][8][4];
  float scale = scale_of(at), total[kTokens / 2] = {};
  if (at.p < p_end) make_fragments(raw[0], exchange, a[0]);
  load(raw[0]);
  int slot = 0, parity = 0;
  while (at.p < p_end) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {  // the fragments of this chunk are a[d % 2]
      if (at.p >= p_end) break;
      mbarrier_wait(full + slot, parity);
      const std::uint64_t b = wgmma_operand(inputs + slot * kInputBytes, 16, 1024, WgmmaLayout::kSwizzle128);
      float part[kTokens / 2];
      float(&to)[kTokens / 2] = kFp8 ? part : total;
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < 8; ++s) {
        const std::uint64_t columns = advance(b, static_cast<std::uint32_t>(s / 4 * kTokens * kRowBytes + s % 4 * 32));
        if constexpr (kTokens == 32)
          wgmma_m64n32k16_registers(to, a[d % 2][s], columns, !kFp8 || s > 0);
        else
          wgmma_m64n64k16_registers(to, a[d % 2][s], columns, !kFp8 || s > 0);
      }
      wgmma_commit();
      const Chunk next = at.next(num_chunks);
      const float next_scale = scale_of(next);
      if (next.p < p_end) make_fragments(raw[(d + 1) % kDepth], exchange, a[(d + 1) % 2]);
      load(raw[(d + 1) % kDepth]);
      wgmma_wait<0>();
      pin_registers(to);
      if (lane == 0) mbarrier_arrive(empty + slot);
      if constexpr (kFp8) {
#pragma unroll
        for (int i = 0; i < kTokens / 2; ++i) total[i] += part[i] * scale;
      }
      if (next.p != at.p) {
        if constexpr (kSplit == 1) {
#pragma unroll
          for (int i = 0; i < kTokens / 2; ++i) sum[i] += total[i], total[i] = 0.0f;
        } else {
          float* here = partials + (at.p - share.p_begin) * kTokens * kStride + my_row;
#pragma unroll
          for (int i = 0; i < kTokens / 2; ++i) {
            here[(i / 4 * 8 + 2 * t + i % 2) * kStride + 8 * (i / 2 % 2)] = total[i];
            total[i] = 0.0f;
          }
        }
      }
      scale = next_scale;
      at = next;
      slot = (slot + 1) % kStages;
      parity ^= slot == 0 ? 1 : 0;
    }
  }
}

// The tile's results out, by the threads that multiplied.
template <int kTokens, int kSplit>
__device__ __forceinline__ void write_results(const float (&sum)[kTokens / 2], float* memory, float* partials,
                                              const LinearItem& item, const Share& share, int rank) {
  const int tid = static_cast<int>(threadIdx.x);
  if constexpr (kSplit == 1) {
    const int lane = tid & 31, g = lane >> 2, t = lane & 3, row = tid / 32 * 16 + g;
    sync_consumers();  // nobody multiplies from this memory any more
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i)
      memory[(i / 4 * 8 + 2 * t + i % 2) * kStride + row + 8 * (i / 2 % 2)] = sum[i];
    sync_consumers();
    store_tile<kRows, kTokens, kThreads>(item, memory, share.first_row, share.first_token, share.num_tokens);
  } else {
    // Each block adds a slice of the rows of x: the sums of every block in the order of p. Threads that are gone count
    // as arrived.
    const auto cluster = cooperative_groups::this_cluster();
    constexpr int kSums = kLinearWarps / kSplit, kSlice = kTokens / kSplit;
    const int num_sums = min(share.num_chunks, kLinearWarps);
    cluster.sync();
#pragma unroll
    for (int i = tid; i < kSlice * (kRows / 4); i += kThreads) {
      const int row = i % (kRows / 4) * 4, token = rank * kSlice + i / (kRows / 4);
      float4 parts[kLinearWarps];
#pragma unroll
      for (int p = 0; p < kLinearWarps; ++p) {
        const float* from = cluster.map_shared_rank(partials, static_cast<unsigned>(p / kSums)) +
                            (p % kSums * kTokens + token) * kStride + row;
        parts[p] = p < num_sums ? *reinterpret_cast<const float4*>(from) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
      float total[4] = {};
#pragma unroll
      for (int p = 0; p < kLinearWarps; ++p)
        if (p < num_sums)
          total[0] += parts[p].x, total[1] += parts[p].y, total[2] += parts[p].z, total[3] += parts[p].w;
      if (share.first_token + token < share.num_tokens)
        store_outputs(item, share.first_token + token, share.first_row + row, total);
    }
    cluster.sync();  // others may still be reading
  }
}
#endif

template <int kTokens, int kSplit>
__global__ void __launch_bounds__(kThreads + kProducers, 1)
    linear_split(LinearCall call, const __grid_constant__ LinearGroup group, const Bf16Bits* quantised) {
#if FATHOM_HAS_WGMMA
  extern __shared__ unsigned char unaligned[];
  unsigned char* memory = unaligned + (1024u - (shared_address(unaligned) & 1023u)) % 1024u;
  auto* partials = reinterpret_cast<float*>(memory + kStages * kTokens * 2 * kRowBytes);
  __shared__ std::uint64_t full[kStages], empty[kStages];
  const int tile = static_cast<int>(blockIdx.x) / kSplit, rank = static_cast<int>(blockIdx.x) % kSplit;
  const LinearItem& item = item_of_tile(group, tile);
  const DeviceWeight& w = item.weight;
  const bool fp8 = w.format != WeightFormat::kBf16;
  const int first_row = (tile - item.first_tile) * kRows, num_chunks = w.k / kLinearChunk;
  const int p_begin = rank * (kLinearWarps / kSplit);
  const Share share{(item.quantise ? quantised : call.x) + first_column(item, first_row),
                    call.x_stride,
                    num_chunks,
                    p_begin,
                    min(p_begin + kLinearWarps / kSplit, min(num_chunks, kLinearWarps)),
                    first_row,
                    static_cast<int>(blockIdx.y) * kTokens,
                    call.num_tokens};
  if (threadIdx.x == 0) {
#pragma unroll
    for (int s = 0; s < kStages; ++s) mbarrier_init(full + s, 1), mbarrier_init(empty + s, kThreads / 32);
  }
  __syncthreads();
  if (threadIdx.x >= kThreads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    const int stage = static_cast<int>(threadIdx.x) / 32 - kThreads / 32;
    if (fp8)
      bring_inputs<true, kTokens>(share, memory, full, empty, stage);
    else
      bring_inputs<false, kTokens>(share, memory, full, empty, stage);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    float sum[kTokens / 2] = {};
    if (fp8)
      sum_chunks<true, kTokens, kSplit>(sum, partials, w, share, memory, full, empty);
    else
      sum_chunks<false, kTokens, kSplit>(sum, partials, w, share, memory, full, empty);
    write_results<kTokens, kSplit>(sum, reinterpret_cast<float*>(memory), partials, item, share, rank);
  }
#endif
}

template <int kTokens, int kSplit>
void launch(const LinearCall& call, const LinearGroup& group, const Bf16Bits* quantised, cudaStream_t stream) {
  constexpr auto kBytes = static_cast<int>(linear_split_shared_bytes({kTokens, kSplit}));
  static const cudaError_t raised =
      cudaFuncSetAttribute(linear_split<kTokens, kSplit>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  static_cast<void>(raised);  // a failure shows as the launch's
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(group.num_tiles * kSplit),
                        static_cast<unsigned>((call.num_tokens + kTokens - 1) / kTokens));
  config.blockDim = dim3(kThreads + kProducers);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = kSplit;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = kSplit > 1 ? 1 : 0;
  static_cast<void>(cudaLaunchKernelEx(&config, linear_split<kTokens, kSplit>, call, group, quantised));
}

}  // namespace

void launch_linear_split(const LinearCall& call, const LinearGroup& group, const Bf16Bits* quantised,
                         const LinearSplit& split, cudaStream_t stream) {
  const auto with_tokens = [&](auto tokens) {
    constexpr int kTokens = decltype(tokens)::value;
    switch (split.blocks) {
      case 8: return launch<kTokens, 8>(call, group, quantised, stream);
      case 4: return launch<kTokens, 4>(call, group, quantised, stream);
      case 2: return launch<kTokens, 2>(call, group, quantised, stream);
      default: return launch<kTokens, 1>(call, group, quantised, stream);
    }
  };
  if (split.tokens == 32) return with_tokens(std::integral_constant<int, 32>());
  with_tokens(std::integral_constant<int, 64>());
}

}  // namespace fathom::cuda
