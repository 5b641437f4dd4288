// moe_experts/wgmma: the products and sums of `mma`, bit for bit, on warpgroups, for calls in which an expert has many
// rows (prompts). A warp turns its 16 weight rows' codes into the same fragments, in registers; one product takes 32 or
// 64 rows of x from shared memory where `mma` takes eight, so a code is read and turned once for all of them.
//
// Up: the first warpgroup has 64 rows of w1, the second the same of w3, and they meet in shared memory. Down: 128 rows
// of w2. Chunks come in the order of mma's sums: p, p + 8, ... for each p, then the sums in ascending p.
#include "ops/cuda/kernel_image.cuh"
#include "ops/cuda/ptx/copy_async.cuh"
#include "ops/cuda/ptx/wgmma.cuh"
#include "ops/moe_experts/tiles.cuh"

namespace fathom::cuda {

void moe_experts_mma(ExecutionContext& context, const MoeExpertsPlan& plan, const MoeExpertsArgs& args);

namespace {

constexpr int kThreads = kMoeWarps * 32;
constexpr int kStages = 3;

template <int kTokens>
constexpr int kStageBytes = kTokens * kMoeChunk * 2;
template <int kTokens>
constexpr int kResultBytes = kTokens * (kMoeWgmmaRows + 2) * 4;
template <int kTokens>
constexpr int kSharedBytes =
    1024 +
    (kStages * kStageBytes<kTokens> > kResultBytes<kTokens> ? kStages * kStageBytes<kTokens> : kResultBytes<kTokens>);

#if FATHOM_HAS_WGMMA
__device__ __forceinline__ void multiply(float (&d)[16], const std::uint32_t (&a)[4], std::uint64_t b, bool add) {
  wgmma_m64n32k16_registers(d, a, b, add);
}
__device__ __forceinline__ void multiply(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b, bool add) {
  wgmma_m64n64k16_registers(d, a, b, add);
}

// The chunk after `chunk`, and whether that begins another sum.
__device__ __forceinline__ int next_chunk(int chunk, int num_chunks) {
  return chunk + kMoeWarps < num_chunks ? chunk + kMoeWarps : chunk % kMoeWarps + 1;
}

// Rows of x as a block's threads copy them: 16 threads a row, 16 bytes each.
template <int kTokens>
struct InputRows {
  static constexpr int kPieces = kTokens / 16;
  const Bf16Bits* from[kPieces];
  int to;
  template <typename RowOf>
  __device__ __forceinline__ explicit InputRows(const RowOf& row_of) {
    const int piece = static_cast<int>(threadIdx.x) % 16, row = static_cast<int>(threadIdx.x) / 16;
    to = piece / 8 * kTokens * 128 + swizzle_128(row, piece % 8);  // rows + 16 i are swizzled alike
#pragma unroll
    for (int i = 0; i < kPieces; ++i) from[i] = row_of(row + 16 * i) + 8 * piece;
  }
  __device__ __forceinline__ void copy(unsigned char* stage, int chunk) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) copy_async_16(stage + to + i * 16 * 128, from[i] + chunk * kMoeChunk);
  }
};

// 64 weight rows of a warpgroup from `first_row` on, 16 a warp, times the block's rows of x.
template <WeightFormat kFormat, int kTokens>
__device__ __forceinline__ void sum_chunks(float (&sum)[kTokens / 2], const DeviceWeight& w, int first_row,
                                           const InputRows<kTokens>& x, unsigned char* memory) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4, lane = static_cast<int>(threadIdx.x) % 32, g = lane >> 2,
            t = lane & 3;
  const int row = first_row + 16 * warp + g, num_chunks = w.k / kMoeChunk;
  constexpr bool kScaled = kFormat == WeightFormat::kFp8Block128;
  // FP8 codes are read one step ahead, the others two: as many as the registers hold.
  RowCodes<kFormat> now[2], next[2], after[2];
  const auto load = [&](RowCodes<kFormat>(&codes)[2], int chunk) {
    codes[0].load(w, row, chunk, t);
    codes[1].load(w, row + 8, chunk, t);
  };
  // Chunks one, two and three steps on.
  int chunk = 0, chunk_1 = next_chunk(0, num_chunks), chunk_2 = next_chunk(chunk_1, num_chunks);
  load(now, 0);
  if (!kScaled && num_chunks > 1) load(next, chunk_1);
  x.copy(memory, 0);
  copy_async_commit();
  if (num_chunks > 1) x.copy(memory + kStageBytes<kTokens>, chunk_1);
  copy_async_commit();
  float total[kTokens / 2] = {};
  int slot = 0;
  for (int step = 0; step < num_chunks; ++step) {
    if (!kScaled && step + 2 < num_chunks) load(after, chunk_2);
    float scale = 1.0f;
    if constexpr (kScaled) scale = chunk_scale<kFormat>(w, first_row, chunk);
    std::uint32_t a[8][4];
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      std::uint32_t p[4], q[4];
      now[0].pairs(word, p);
      now[1].pairs(word, q);
      a[2 * word][0] = p[0], a[2 * word][1] = q[0], a[2 * word][2] = p[1], a[2 * word][3] = q[1];
      a[2 * word + 1][0] = p[2], a[2 * word + 1][1] = q[2], a[2 * word + 1][2] = p[3], a[2 * word + 1][3] = q[3];
    }
    if (kScaled && step + 1 < num_chunks) load(next, chunk_1);
    copy_async_wait<1>();
    fence_shared_stores();
    __syncthreads();  // this chunk of x is there, and everyone is done with the one before
    const std::uint64_t b = wgmma_operand(memory + slot * kStageBytes<kTokens>, 16, 1024, WgmmaLayout::kSwizzle128);
    float part[kTokens / 2];
    float(&d)[kTokens / 2] = kScaled ? part : total;
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 8; ++s)
      multiply(d, a[s], advance(b, static_cast<std::uint32_t>(s / 4 * kTokens * 128 + s % 4 * 32)), !kScaled || s > 0);
    wgmma_commit();
    const int free_slot = slot == 0 ? kStages - 1 : slot - 1;
    if (step + 2 < num_chunks) x.copy(memory + free_slot * kStageBytes<kTokens>, chunk_2);
    copy_async_commit();
    wgmma_wait<0>();
    pin_registers(d);
#pragma unroll
    for (int s = 0; s < 8; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(a[s][i])::"memory");  // products read them until here
    if constexpr (kScaled) {
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) total[i] += part[i] * scale;
    }
    if (chunk + kMoeWarps >= num_chunks) {
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) sum[i] += total[i], total[i] = 0.0f;
    }
    now[0] = next[0], now[1] = next[1];
    if constexpr (!kScaled) next[0] = after[0], next[1] = after[1];
    chunk = chunk_1, chunk_1 = chunk_2, chunk_2 = next_chunk(chunk_2, num_chunks);
    slot = slot + 1 == kStages ? 0 : slot + 1;
  }
}

// Sums to shared memory: [kTokens][128 + 2] by token, first warpgroup's rows first.
template <int kTokens>
__device__ __forceinline__ void leave_sums(const float (&sum)[kTokens / 2], float* results) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane >> 2, t = lane & 3;
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 + g;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i)
    results[(i / 4 * 8 + 2 * t + i % 2) * (kMoeWgmmaRows + 2) + row + 8 * (i / 2 % 2)] = sum[i];
  __syncthreads();
}

template <WeightFormat kFormat, int kTokens>
__device__ __forceinline__ void up_block(const MoeCall& call, const DeviceWeight& w1, const DeviceWeight& w3,
                                         const Entries& entries, unsigned char* memory) {
  const int tid = static_cast<int>(threadIdx.x), first_row = static_cast<int>(blockIdx.x) * (kMoeWgmmaRows / 2);
  const InputRows<kTokens> x([&](int i) {
    return call.x_quantised + static_cast<std::int64_t>(entries.token(min(i, entries.count - 1))) * call.hidden;
  });
  float sum[kTokens / 2] = {};
  DeviceWeight mine = w1;
  mine.values = tid < 128 ? w1.values : w3.values;
  mine.scale = tid < 128 ? w1.scale : w3.scale;
  sum_chunks<kFormat, kTokens>(sum, mine, first_row, x, memory);
  auto* results = reinterpret_cast<float*>(memory);
  leave_sums<kTokens>(sum, results);
  for (int i = tid; i < entries.count * (kMoeWgmmaRows / 2); i += kThreads) {
    const int r = i % (kMoeWgmmaRows / 2), token = i / (kMoeWgmmaRows / 2), entry = entries.entry(token);
    const float weight = entries.list != nullptr ? call.expert_weights[entry] : 1.0f;
    const float* at = results + token * (kMoeWgmmaRows + 2) + r;
    call.t[static_cast<std::int64_t>(entry) * call.intermediate + first_row + r] =
        gated(at[0] * final_scale<kFormat>(w1), at[kMoeWgmmaRows / 2] * final_scale<kFormat>(w3), weight, call.limit);
  }
}

template <WeightFormat kFormat, int kTokens>
__device__ __forceinline__ void down_block(const MoeCall& call, const DeviceWeight& w2, const Entries& entries,
                                           unsigned char* memory) {
  const int tid = static_cast<int>(threadIdx.x), first_row = static_cast<int>(blockIdx.x) * kMoeWgmmaRows;
  const InputRows<kTokens> x([&](int i) {
    return call.t + static_cast<std::int64_t>(entries.entry(min(i, entries.count - 1))) * call.intermediate;
  });
  float sum[kTokens / 2] = {};
  sum_chunks<kFormat, kTokens>(sum, w2, first_row + tid / 128 * 64, x, memory);
  auto* results = reinterpret_cast<float*>(memory);
  leave_sums<kTokens>(sum, results);
  for (int i = tid; i < entries.count * kMoeWgmmaRows; i += kThreads) {
    const int r = i % kMoeWgmmaRows, token = i / kMoeWgmmaRows;
    call.y[static_cast<std::int64_t>(entries.entry(token)) * call.hidden + first_row + r] =
        f32_to_bf16(results[token * (kMoeWgmmaRows + 2) + r] * final_scale<kFormat>(w2));
  }
}
#endif

// blockIdx.y: pieces of the shared expert's rows, then the items; those beyond the items that exist leave at once.
template <WeightFormat kFormat, bool kUp, int kTokens>
__global__ void __launch_bounds__(kThreads, kTokens > kMoeWgmmaTokens ? 1 : 2)
    experts_grouped(const __grid_constant__ MoeCall call, int shared_pieces) {
#if FATHOM_HAS_WGMMA
  extern __shared__ unsigned char unaligned[];
  unsigned char* memory = unaligned + (1024u - (shared_address(unaligned) & 1023u)) % 1024u;
  const int piece = static_cast<int>(blockIdx.y), item = piece - shared_pieces;
  if (item < 0) {
    const int first = piece * kTokens;
    // The shared expert's entry i is row i of x: a list of its own, counted from the first of the piece.
    const Entries rows{nullptr, min(kTokens, call.num_tokens - first), call.num_tokens * call.topk, call.topk, first};
    if constexpr (kUp)
      up_block<WeightFormat::kFp8Block128, kTokens>(call, call.shared_w1, call.shared_w3, rows, memory);
    else
      down_block<WeightFormat::kFp8Block128, kTokens>(call, call.shared_w2, rows, memory);
    return;
  }
  const MoeItem it = call.items[item];
  if (item >= *call.num_items) return;
  const Entries rows{call.entries + it.begin, it.count, 0, call.topk, 0};
  const DeviceExperts& experts = call.experts;
  if constexpr (kUp)
    up_block<kFormat, kTokens>(call, expert_matrix(experts, experts.w1, 0, it.expert),
                               expert_matrix(experts, experts.w3, 1, it.expert), rows, memory);
  else
    down_block<kFormat, kTokens>(call, expert_matrix(experts, experts.w2, 2, it.expert), rows, memory);
#endif
}

template <WeightFormat kFormat, bool kUp, int kTokens>
void launch_part(const MoeCall& call, cudaStream_t stream) {
  static const cudaError_t raised = cudaFuncSetAttribute(
      experts_grouped<kFormat, kUp, kTokens>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<kTokens>);
  static_cast<void>(raised);  // a failure shows as the launch's
  const int shared_pieces = call.has_shared ? (call.num_tokens + kTokens - 1) / kTokens : 0;
  const std::int64_t items = moe_max_pieces(call.num_tokens, call.num_experts, call.topk, kTokens);
  const dim3 grid(static_cast<unsigned>(kUp ? call.intermediate / (kMoeWgmmaRows / 2) : call.hidden / kMoeWgmmaRows),
                  static_cast<unsigned>(shared_pieces + items));
  experts_grouped<kFormat, kUp, kTokens><<<grid, kThreads, kSharedBytes<kTokens>, stream>>>(call, shared_pieces);
}

template <WeightFormat kFormat, int kTokens>
void launch_experts(MoeCall call, cudaStream_t stream) {
  call.item_entries = kTokens;
  launch_group_rows(call, MoeOrder::kBySteps, stream);
  launch_part<kFormat, true, kTokens>(call, stream);
  launch_order_intermediate(call, stream);
  launch_part<kFormat, false, kTokens>(call, stream);
  launch_sum_experts(call, stream);
}

template <int kTokens>
void launch_format(const MoeCall& call, cudaStream_t stream) {
  if (call.experts.format == WeightFormat::kMxfp4)
    launch_experts<WeightFormat::kMxfp4, kTokens>(call, stream);
  else
    launch_experts<WeightFormat::kNvfp4, kTokens>(call, stream);
}

}  // namespace

void moe_experts_wgmma(ExecutionContext& context, const MoeExpertsPlan& plan, const MoeExpertsArgs& args) {
  static const bool compiled = compiled_for_sm90(experts_grouped<WeightFormat::kMxfp4, true, kMoeWgmmaTokens>);
  const int tokens = moe_wgmma_tokens(args.x.shape[0], plan.desc.num_experts, plan.desc.topk);
  if (!compiled || tokens == 0) return moe_experts_mma(context, plan, args);
  const MoeCall call = make_moe_call(context, plan, args);
  FATHOM_CHECK(!call.has_shared || call.shared_w1.format == WeightFormat::kFp8Block128, "the shared expert is FP8");
  const cudaStream_t stream = stream_of(context);
  if (tokens == kMoeWgmmaTokens) return launch_format<kMoeWgmmaTokens>(call, stream);
  launch_format<2 * kMoeWgmmaTokens>(call, stream);
}

}  // namespace fathom::cuda
