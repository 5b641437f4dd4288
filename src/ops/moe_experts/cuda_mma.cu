// moe_experts/mma: grouped products over 4-bit codes, weights as the 16-row operand, eight rows of x the other.
// A block of eight warps deals the 128-wide chunks of K out like linear/mma. Codes become bf16 fragments in
// registers; the block scale joins in the same multiply (MXFP4: one a lane, NVFP4: two).
#include "ops/moe_experts/tiles.cuh"

namespace fathom::cuda {
namespace {

// Once a block's share of y is written: the last block to arrive at a row's columns adds them up, in the order and with
// the roundings of sum_experts, and leaves the counter at zero.
__device__ __forceinline__ void add_arrived_rows(const MoeCall& call, const Entries& entries) {
  __shared__ int ready[kMoeWarps * 32];
  const int tid = static_cast<int>(threadIdx.x), warp = tid >> 5, lane = tid & 31;
  const int row_pairs = call.hidden / 2, column = static_cast<int>(blockIdx.x) * (kMoeDownRows / 2) + lane;
  const unsigned last = static_cast<unsigned>(call.topk - (call.has_shared ? 0 : 1));
  static_assert(kMoeDownRows == 64, "a lane has one pair of the block's columns");
  const auto* y = reinterpret_cast<const std::uint32_t*>(call.y);
  __syncthreads();
  __threadfence();  // y, of all the block's threads, before the counters
  for (int first = 0; first < entries.count; first += kMoeWarps * 32) {
    int token = -1;
    if (first + tid < entries.count) {
      const int mine = entries.token(first + tid);
      std::uint32_t* counter = call.arrivals + static_cast<std::int64_t>(mine) * gridDim.x + blockIdx.x;
      if (atomicAdd(counter, 1u) == last) {
        *counter = 0;
        token = mine;
      }
    }
    __threadfence();  // the counters before y of other blocks
    ready[tid] = token;
    __syncthreads();
    const int end = min(entries.count - first, kMoeWarps * 32);
    for (int i = warp; i < end; i += kMoeWarps) {
      const std::int64_t row = ready[i];
      if (row < 0) continue;
      float low = 0.0f, high = 0.0f;
      for (int k = 0; k < call.topk; ++k) {
        const std::uint32_t v = __ldcg(y + (row * call.topk + k) * row_pairs + column);
        low += bf16_low(v);
        high += bf16_high(v);
      }
      if (call.has_shared) {
        const std::uint32_t v =
            __ldcg(y + (static_cast<std::int64_t>(call.num_tokens) * call.topk + row) * row_pairs + column);
        low += bf16_low(v);
        high += bf16_high(v);
      }
      reinterpret_cast<std::uint32_t*>(call.out)[row * row_pairs + column] = pack_bf16(low, high);
    }
    __syncthreads();
  }
}

// blockIdx.y: the shared expert first (it has all rows, so it runs longest), then the items; those beyond the
// items that exist leave at once.
__device__ __forceinline__ bool entries_of(const MoeCall& call, Entries& entries, int& expert) {
  int item = static_cast<int>(blockIdx.y);
  if (call.has_shared && item-- == 0) {
    entries = {nullptr, call.num_tokens, call.num_tokens * call.topk, call.topk};
    expert = -1;
    return true;
  }
  const MoeItem it = call.items[item];
  if (item >= *call.num_items) return false;
  entries = {call.entries + it.begin, it.count, 0, call.topk};
  expert = it.expert;
  return true;
}

template <WeightFormat kFormat>
__global__ void __launch_bounds__(kMoeWarps * 32, 2) experts_up(const __grid_constant__ MoeCall call) {
  __shared__ float partial[kMoeWarps][2][kMoeUpRows][9];
  const int tile = static_cast<int>(blockIdx.x);
  Entries entries{};
  int expert = 0;
  if (!entries_of(call, entries, expert)) return;
  if (expert < 0) {
    if (entries.count > 8) return shared_up_tile(call, call.shared_w1, call.shared_w3, entries, tile, partial);
    return up_tile<WeightFormat::kFp8Block128>(call, call.shared_w1, call.shared_w3, entries, tile, partial);
  }
  up_tile<kFormat>(call, expert_matrix(call.experts, call.experts.w1, 0, expert),
                   expert_matrix(call.experts, call.experts.w3, 1, expert), entries, tile, partial);
}

template <WeightFormat kFormat, bool kSums, int kRows>
__global__ void __launch_bounds__(kMoeWarps * 32, 2) experts_down(const __grid_constant__ MoeCall call) {
  __shared__ float partial[kMoeWarps][kRows][9];
  const int tile = static_cast<int>(blockIdx.x);
  Entries entries{};
  int expert = 0;
  if (!entries_of(call, entries, expert)) return;
  if (expert < 0)
    down_tile<WeightFormat::kFp8Block128, kRows>(call, call.shared_w2, entries, tile, partial);
  else
    down_tile<kFormat, kRows>(call, expert_matrix(call.experts, call.experts.w2, 2, expert), entries, tile, partial);
  if constexpr (kSums) add_arrived_rows(call, entries);
}

template <WeightFormat kFormat, bool kSums, int kRows>
void launch_down(const MoeCall& call, unsigned num_items, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(call.hidden / kRows), num_items);
  experts_down<kFormat, kSums, kRows><<<grid, kMoeWarps * 32, 0, stream>>>(call);
}

template <WeightFormat kFormat>
void launch_experts(const MoeCall& call, cudaStream_t stream) {
  const std::int64_t items = moe_max_items(call.num_tokens, call.num_experts, call.topk);
  const auto grid_y = static_cast<unsigned>(items + (call.has_shared ? 1 : 0));
  experts_up<kFormat>
      <<<dim3(static_cast<unsigned>(call.intermediate / kMoeUpRows), grid_y), kMoeWarps * 32, 0, stream>>>(call);
  if (call.arrivals != nullptr) return launch_down<kFormat, true, kMoeDownRows>(call, grid_y, stream);
  if (moe_down_rows(items, call.hidden) == kMoeDownRows)
    launch_down<kFormat, false, kMoeDownRows>(call, grid_y, stream);
  else
    launch_down<kFormat, false, 2 * kMoeDownRows>(call, grid_y, stream);
  launch_sum_experts(call, stream);
}

void run(ExecutionContext& context, const MoeExpertsPlan& plan, const MoeExpertsArgs& args, bool sums_on_arrival) {
  MoeCall call = make_moe_call(context, plan, args);
  FATHOM_CHECK(!call.has_shared || call.shared_w1.format == WeightFormat::kFp8Block128, "the shared expert is FP8");
  if (call.num_tokens == 0) return;
  if (sums_on_arrival && call.num_tokens <= kMoeArrivalTokens) {
    FATHOM_CHECK(context.num_arrivals >= plan.num_arrivals, "arrivals cover the plan's");
    call.arrivals = context.arrivals;
  }
  const cudaStream_t stream = stream_of(context);
  launch_group_rows(call, stream);
  if (call.experts.format == WeightFormat::kMxfp4)
    launch_experts<WeightFormat::kMxfp4>(call, stream);
  else
    launch_experts<WeightFormat::kNvfp4>(call, stream);
}

}  // namespace

void moe_experts_mma(ExecutionContext& context, const MoeExpertsPlan& plan, const MoeExpertsArgs& args) {
  run(context, plan, args, false);
}

void moe_experts_mma_arrival(ExecutionContext& context, const MoeExpertsPlan& plan, const MoeExpertsArgs& args) {
  run(context, plan, args, true);
}

}  // namespace fathom::cuda
