// linear/wgmma: the arithmetic of linear/mma bit for bit, on warpgroup products, for calls of more than 32 rows. A
// tensor core of sm_90 adds the 16 products of a step to an accumulator at once, whichever instruction asks and
// wherever in the step a column stands; so equal bits need no more than the same columns in every step, the same
// chain of steps, and linear/mma's order of chunks: eight sums over the chunks c = p, p + 8, ..., then these in
// ascending p.
//
// A block has 128 weight rows, 64 a warpgroup, and 64 or 128 rows of x. Chunks of both pass through shared memory
// with their columns sorted by step; E4M3 is widened on the way, while the chunk before is multiplied.
#include "ops/cuda/kernel_image.cuh"
#include "ops/cuda/ptx/copy_async.cuh"
#include "ops/cuda/ptx/wgmma.cuh"
#include "ops/cuda/weight_fragments.cuh"
#include "ops/linear/cuda_group.cuh"
#include "ops/linear/cuda_wgmma_split.cuh"
#include "ops/linear/run.cuh"

namespace fathom::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = kLinearWgmmaRows;

// x, its columns in the order that each format of weights asks for.
struct SortedInputs {
  const Bf16Bits *for_fp8, *for_bf16;
  std::int64_t stride;
  std::int32_t num_tokens;
};

// A step is the 16 columns that the four lanes of linear/mma bring to one product, four each. Which four, by the
// format of the weight (weight_fragments.cuh): columns 4 q .. 4 q + 3 of a chunk go to step `s`, as those of lane `t`.
struct StepColumns {
  int s, t;
};
__device__ __forceinline__ StepColumns step_of_columns(bool fp8, int q) {
  if (fp8) return {4 * (q / 16) + q % 4, q / 4 % 4};
  return {2 * (q / 8) + q % 2, q / 2 % 4};
}

// Where the four columns of a lane stand in their step: together; together, but 0 2 1 3, as e4m3_alternate_pairs leaves
// the codes; or 0 2 and 1 3 in the two halves of the step, where a product's first operand has them in registers.
enum class LinearOrder { kBf16, kCodes, kFragments };
__device__ __forceinline__ void store_columns(Bf16Bits* chunk, LinearOrder order, int q, std::uint32_t low,
                                              std::uint32_t high) {
  const StepColumns at = step_of_columns(order != LinearOrder::kBf16, q);
  if (order != LinearOrder::kBf16) {
    const std::uint32_t even = __byte_perm(low, high, 0x5410);
    high = __byte_perm(low, high, 0x7632), low = even;
  }
  Bf16Bits* step = chunk + 16 * at.s;
  if (order == LinearOrder::kFragments) {
    *reinterpret_cast<std::uint32_t*>(step + 2 * at.t) = low;
    *reinterpret_cast<std::uint32_t*>(step + 8 + 2 * at.t) = high;
  } else {
    *reinterpret_cast<uint2*>(step + 4 * at.t) = make_uint2(low, high);
  }
}

// Rows of x with the columns of every chunk sorted by step, and AQ 128 before it if asked for. Sixteen lanes a chunk,
// a piece of 8 columns each.
__global__ void __launch_bounds__(256)
    sort_rows(const Bf16Bits* x, std::int64_t x_stride, Bf16Bits* out, std::int64_t num_pieces, int row_pieces,
              LinearOrder order, bool quantise) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
  const std::int64_t piece = i < num_pieces ? i : num_pieces - 1;
  const uint4 in = *reinterpret_cast<const uint4*>(x + piece / row_pieces * x_stride + piece % row_pieces * 8);
  std::uint32_t v[4] = {in.x, in.y, in.z, in.w};
  if (quantise) {
    std::uint32_t m = max_magnitude(max_magnitude(v[0], v[1]), max_magnitude(v[2], v[3]));
#pragma unroll
    for (int offset = 8; offset > 0; offset >>= 1) m = max_magnitude(m, __shfl_xor_sync(0xffffffffu, m, offset));
    simulate_aq<4>(v, pair_maximum(m));
  }
  if (i >= num_pieces) return;
  Bf16Bits* chunk = out + i / 16 * kLinearChunk;
  const int q = static_cast<int>(i % 16) * 2;
  store_columns(chunk, order, q, v[0], v[1]);
  store_columns(chunk, order, q + 1, v[2], v[3]);
}

#if FATHOM_HAS_WGMMA
constexpr int kRowBytes = 128;  // 64 sorted columns: half a chunk; the halves stand one after the other

// kTokens sorted rows of x from `first` on; rows beyond the last repeat it.
template <int kTokens>
__device__ __forceinline__ void copy_inputs(unsigned char* tile, const Bf16Bits* x, std::int64_t stride, int first,
                                            int num_rows, int chunk) {
  const int piece = static_cast<int>(threadIdx.x) % 16, row = static_cast<int>(threadIdx.x) / 16;
  tile += piece / 8 * kTokens * kRowBytes + swizzle_128(row, piece % 8);  // rows + 16 i are swizzled alike
  x += chunk * kLinearChunk + 8 * piece;
#pragma unroll
  for (int i = 0; i < kTokens / 16; ++i)
    copy_async_16(tile + i * 16 * kRowBytes, x + min(first + row + 16 * i, num_rows - 1) * stride);
}

// A thread's share of a chunk of 128 weight rows: 16 bytes of rows `row` + i * kRowStep, which are those of lane t.
template <bool kFp8>
struct RawWeights {
  static constexpr int kPieces = kFp8 ? 4 : 8, kRowStep = kRows / kPieces;
  uint4 v[kPieces];
};
template <bool kFp8>
struct WeightsPlace {
  int row, j, t;
  __device__ __forceinline__ WeightsPlace() {
    constexpr int kParts = kFp8 ? 2 : 4;  // pieces of lane t in a row
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    row = warp / kParts * 8 + lane / 4, j = warp % kParts, t = lane % 4;
  }
};
template <bool kFp8>
__device__ __forceinline__ void load_weights(RawWeights<kFp8>& raw, const DeviceWeight& w, int first_row, int chunk) {
  const WeightsPlace<kFp8> at;
  const std::int64_t row_bytes = static_cast<std::int64_t>(w.k) * (kFp8 ? 1 : 2);
  const std::uint8_t* from = w.values + chunk * kLinearChunk * (kFp8 ? 1 : 2) + 64 * at.j + 16 * at.t;
#pragma unroll
  for (int i = 0; i < raw.kPieces; ++i)
    raw.v[i] = load_streaming(from + min(first_row + at.row + raw.kRowStep * i, w.n - 1) * row_bytes);
}
template <bool kFp8>
__device__ __forceinline__ void store_weights(const RawWeights<kFp8>& raw, unsigned char* tile) {
  const WeightsPlace<kFp8> at;
  constexpr int kSteps = kFp8 ? 4 : 2;  // that a piece of 16 bytes has columns of
#pragma unroll
  for (int e = 0; e < kSteps; ++e) {
    const int s = kSteps * at.j + e;
    unsigned char* to = tile + s / 4 * kRows * kRowBytes + swizzle_128(at.row, 2 * (s % 4) + at.t / 2) + 8 * (at.t % 2);
#pragma unroll
    for (int i = 0; i < raw.kPieces; ++i) {
      const std::uint32_t words[4] = {raw.v[i].x, raw.v[i].y, raw.v[i].z, raw.v[i].w};
      uint2 pairs;
      if constexpr (kFp8)
        e4m3_alternate_pairs(words[e], pairs.x, pairs.y);
      else
        pairs = make_uint2(words[2 * e], words[2 * e + 1]);
      *reinterpret_cast<uint2*>(to + i * raw.kRowStep * kRowBytes) = pairs;
    }
  }
}

// A chunk in the order above; sum p is complete with its last one.
struct Chunk {
  int p, index;
  __device__ __forceinline__ Chunk next(int num_chunks) const {
    if (index + kLinearWarps < num_chunks) return {p, index + kLinearWarps};
    return {p + 1, p + 1};
  }
};

// The block's sums: 64 rows a warpgroup, kTokens columns. While a chunk is multiplied, the next one's weights are
// widened, and the weights and rows of x of the one after it are on their way.
template <bool kFp8, int kTokens>
__device__ __forceinline__ void sum_chunks(float (&sum)[kTokens / 2], const DeviceWeight& w, const Bf16Bits* x,
                                           std::int64_t x_stride, int num_tokens, int first_row, int first_token,
                                           unsigned char* memory) {
  constexpr int kWeightBytes = kRows * 2 * kRowBytes, kInputBytes = kTokens * 2 * kRowBytes;
  unsigned char* inputs = memory + 2 * kWeightBytes;
  const int num_chunks = w.k / kLinearChunk, num_sums = min(num_chunks, kLinearWarps);
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  const std::int64_t scales = static_cast<std::int64_t>(first_row / 128) * num_chunks;
  const auto scale_of = [&](const Chunk& chunk) {
    if (!kFp8 || chunk.p >= num_sums) return 1.0f;
    return chunk_scale(w, scales + chunk.index);
  };
  const auto begin_inputs = [&](const Chunk& chunk, int slot) {
    if (chunk.p < num_sums)
      copy_inputs<kTokens>(inputs + slot * kInputBytes, x, x_stride, first_token, num_tokens, chunk.index);
    copy_async_commit();
  };
  RawWeights<kFp8> raw;
  Chunk chunk{0, 0}, next = chunk.next(num_chunks), beyond = next.next(num_chunks);
  load_weights(raw, w, first_row, 0);
  begin_inputs(chunk, 0);
  begin_inputs(next, 1);
  float scale = scale_of(chunk);
  store_weights(raw, memory);
  if (next.p < num_sums) load_weights(raw, w, first_row, next.index);
  float total[kTokens / 2] = {};
  int slot = 0, free_slot = 2;
  for (int buffer = 0; chunk.p < num_sums; buffer ^= 1) {
    copy_async_wait<1>();
    fence_shared_stores();
    __syncthreads();  // this chunk is there, and everyone is done with the one before
    const std::uint64_t a =
        wgmma_operand(memory + buffer * kWeightBytes + warpgroup * 64 * kRowBytes, 16, 1024, WgmmaLayout::kSwizzle128);
    const std::uint64_t b = wgmma_operand(inputs + slot * kInputBytes, 16, 1024, WgmmaLayout::kSwizzle128);
    float part[kTokens / 2];
    float(&d)[kTokens / 2] = kFp8 ? part : total;
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 8; ++s) {
      wgmma_m64k16(d, advance(a, static_cast<std::uint32_t>(s / 4 * kRows * kRowBytes + s % 4 * 32)),
                   advance(b, static_cast<std::uint32_t>(s / 4 * kTokens * kRowBytes + s % 4 * 32)), !kFp8 || s > 0);
    }
    wgmma_commit();
    const float next_scale = scale_of(next);
    begin_inputs(beyond, free_slot);
    if (next.p < num_sums) store_weights(raw, memory + (buffer ^ 1) * kWeightBytes);
    if (beyond.p < num_sums) load_weights(raw, w, first_row, beyond.index);
    wgmma_wait<0>();
    pin_registers(d);
    if constexpr (kFp8) {
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) total[i] += part[i] * scale;
    }
    if (next.p != chunk.p) {
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) sum[i] += total[i], total[i] = 0.0f;
    }
    scale = next_scale;
    chunk = next, next = beyond, beyond = beyond.next(num_chunks);
    free_slot = slot, slot = slot == 2 ? 0 : slot + 1;
  }
}
#endif

template <int kTokens>
__global__ void __launch_bounds__(kThreads, 1)
    linear_groups(const __grid_constant__ LinearGroup group, SortedInputs inputs) {
#if FATHOM_HAS_WGMMA
  extern __shared__ unsigned char unaligned[];
  unsigned char* memory = unaligned + (1024u - (shared_address(unaligned) & 1023u)) % 1024u;
  const LinearItem& item = item_of_tile(group, static_cast<int>(blockIdx.x));
  const DeviceWeight w = item.weight;
  const int first_row = (static_cast<int>(blockIdx.x) - item.first_tile) * kRows;
  const int first_token = static_cast<int>(blockIdx.y) * kTokens;
  const std::int64_t column = first_column(item, first_row);

  float sum[kTokens / 2] = {};
  if (w.format == WeightFormat::kBf16)
    sum_chunks<false, kTokens>(sum, w, inputs.for_bf16 + column, inputs.stride, inputs.num_tokens, first_row,
                               first_token, memory);
  else
    sum_chunks<true, kTokens>(sum, w, inputs.for_fp8 + column, inputs.stride, inputs.num_tokens, first_row, first_token,
                              memory);

  auto* results = reinterpret_cast<float*>(memory);  // [kTokens][kLinearResultStride<kRows>]
  const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, g = lane >> 2, t = lane & 3;
  const int row = tid / 32 * 16 + g;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i)
    results[(i / 4 * 8 + 2 * t + i % 2) * kLinearResultStride<kRows> + row + 8 * (i / 2 % 2)] = sum[i];
  __syncthreads();
  store_tile<kRows, kTokens, kThreads>(item, results, first_row, first_token, inputs.num_tokens);
#endif
}

template <int kTokens>
void launch(const LinearGroup& group, const SortedInputs& inputs, cudaStream_t stream) {
  constexpr auto kBytes = static_cast<int>(linear_wgmma_shared_bytes(kTokens));
  static const cudaError_t raised =
      cudaFuncSetAttribute(linear_groups<kTokens>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  static_cast<void>(raised);  // a failure shows as the launch's
  const dim3 grid(static_cast<unsigned>(group.num_tiles),
                  static_cast<unsigned>((inputs.num_tokens + kTokens - 1) / kTokens));
  linear_groups<kTokens><<<grid, kThreads, kBytes, stream>>>(group, inputs);
}

// There are at most two orders of x.
bool sorts_inputs(std::span<const LinearItem> items) {
  const LinearItem* fp8 = nullptr;
  for (const LinearItem& item : items) {
    const bool codes = item.weight.format == WeightFormat::kFp8Block128;
    if (!codes && item.quantise) return false;
    if (codes && fp8 != nullptr && fp8->quantise != item.quantise) return false;
    if (codes) fp8 = &item;
  }
  return true;
}

void launch_sort(const LinearCall& call, Bf16Bits* out, LinearOrder order, bool quantise, cudaStream_t stream) {
  const std::int64_t pieces = call.num_tokens * call.x_stride / 8;
  sort_rows<<<static_cast<unsigned>((pieces + 255) / 256), 256, 0, stream>>>(
      call.x, call.x_stride, out, pieces, static_cast<int>(call.x_stride / 8), order, quantise);
}

SortedInputs sort_inputs(const LinearCall& call, std::span<const LinearItem> items, Bf16Bits* scratch,
                         cudaStream_t stream) {
  SortedInputs inputs{nullptr, nullptr, call.x_stride, call.num_tokens};
  const auto sort = [&](const LinearItem& item) {
    const bool fp8 = item.weight.format == WeightFormat::kFp8Block128;
    const Bf16Bits*& sorted = fp8 ? inputs.for_fp8 : inputs.for_bf16;
    if (sorted != nullptr) return;
    launch_sort(call, scratch, fp8 ? LinearOrder::kCodes : LinearOrder::kBf16, item.quantise, stream);
    sorted = scratch;
    scratch += call.num_tokens * call.x_stride;
  };
  for (const LinearItem& item : items) sort(item);
  return inputs;
}

// Whether all weights are of codes that read x alike.
bool same_codes(std::span<const LinearItem> items) {
  for (const LinearItem& item : items) {
    if (item.weight.format == WeightFormat::kBf16 || item.quantise != items[0].quantise) return false;
  }
  return true;
}

// x for launch_linear_many_tiles: sorted, where a launch has to quantise it.
LinearSplitRows rows_for_tiles(const LinearCall& call, std::span<const LinearItem> items, Bf16Bits* scratch,
                               cudaStream_t stream) {
  LinearSplitRows rows{call.x, call.x_quantised, call.x_stride, call.num_tokens, false};
  if (items[0].quantise && call.x_quantised == nullptr) {
    launch_sort(call, scratch, LinearOrder::kFragments, true, stream);
    rows.quantised = scratch, rows.sorted = true;
  }
  return rows;
}

}  // namespace

void launch_linear_wgmma(const LinearCall& call, std::span<const LinearItem> items, Bf16Bits* scratch,
                         cudaStream_t stream) {
  const LinearGroup group = make_linear_group(items, kRows);
  static const bool compiled = compiled_for_sm90(linear_groups<128>);
  if (!compiled || !fits_tensor_cores(items, kRows)) return launch_linear_mma_tiled(call, items, scratch, stream);
  bool has_codes = false;
  for (const LinearItem& item : items) has_codes = has_codes || item.weight.format == WeightFormat::kFp8Block128;
  if (linear_many_tiles(call.num_tokens, group.num_tiles) && same_codes(items))
    return launch_linear_many_tiles(group, rows_for_tiles(call, items, scratch, stream), stream);
  const bool sorts = items.front().quantise && call.x_quantised == nullptr;
  const LinearSplit split = linear_split(call.num_tokens, group.num_tiles, items.front().weight.k, has_codes, sorts);
  if (split.tokens > 0)
    return launch_linear_split(call, group, quantised_rows(call, items, scratch, stream), split, stream);
  const int tokens = linear_wgmma_tokens(call.num_tokens, group.num_tiles);
  if (tokens == 0 || !sorts_inputs(items)) return launch_linear_mma_tiled(call, items, scratch, stream);
  const SortedInputs inputs = sort_inputs(call, items, scratch, stream);
  if (tokens == 64) return launch<64>(group, inputs, stream);
  launch<128>(group, inputs, stream);
}

void linear_wgmma(ExecutionContext& context, const LinearPlan& plan, const LinearArgs& args) {
  run_linear_group(context, plan, args, launch_linear_wgmma);
}

}  // namespace fathom::cuda
