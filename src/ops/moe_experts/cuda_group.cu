#include <climits>

#include "ops/cuda/weight_fragments.cuh"
#include "ops/moe_experts/kernels.cuh"

namespace fathom::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxExperts = 1024;

// The sum over the lanes below and this one.
__device__ __forceinline__ int running_sum(int value) {
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const int below = __shfl_up_sync(0xffffffffu, value, offset);
    if (static_cast<int>(threadIdx.x) >= offset) value += below;
  }
  return value;
}

// Which rows go to which expert, in items of at most item_entries. The order of an expert's entries is free: columns of
// a product do not see each other, so nothing downstream depends on it.
__device__ void group_entries(const MoeCall& call) {
  __shared__ int counts[kMaxExperts], begins[kMaxExperts], total_items;
  const int tid = static_cast<int>(threadIdx.x), num_entries = call.num_tokens * call.topk;
  for (int e = tid; e < call.num_experts; e += kThreads) counts[e] = 0;
  __syncthreads();
  for (int i = tid; i < num_entries; i += kThreads) atomicAdd(&counts[call.expert_ids[i]], 1);
  __syncthreads();
  if (tid < 32) {  // one warp: running sums of counts and of used experts
    int entries = 0, items = 0;
    for (int base = 0; base < call.num_experts; base += 32) {
      const int e = base + tid;
      const int count = e < call.num_experts ? counts[e] : 0;
      const int num = count > 0 ? (count - 1) / call.item_entries + 1 : 0;
      const int sum = running_sum(count), item = running_sum(num), begin = entries + sum - count;
      if (e < call.num_experts) begins[e] = begin;
      for (int i = 0; i < num; ++i) {
        const int first = i * call.item_entries;
        call.items[items + item - num + i] = {e, begin + first, min(count - first, call.item_entries), 0};
      }
      entries += __shfl_sync(0xffffffffu, sum, 31);
      items += __shfl_sync(0xffffffffu, item, 31);
    }
    if (tid == 0) total_items = items;
  }
  __syncthreads();
  if (tid == 0) *call.num_items = total_items;
  for (int i = tid; i < num_entries; i += kThreads) call.entries[atomicAdd(&begins[call.expert_ids[i]], 1)] = i;
}

// Piece i of eight columns through AQ 128 if asked for, and in the order of the products: columns c and c + 4 paired
// like codes; `by_step`, the pairs of a chunk of 128 by the 16-column step that takes them (tiles.cuh, multiply_chunk),
// in it those of lanes 0 to 3 for the first half of the fragment, then for the second. A chunk is read before it is
// written, so `out` may be `in`.
__device__ __forceinline__ void order_piece(const Bf16Bits* in, Bf16Bits* out, std::int64_t i, std::int64_t num_pieces,
                                            bool quantise, bool by_step) {
  const uint4 x = reinterpret_cast<const uint4*>(in)[i < num_pieces ? i : num_pieces - 1];
  std::uint32_t v[4] = {x.x, x.y, x.z, x.w};
  std::uint32_t m = max_magnitude(max_magnitude(v[0], v[1]), max_magnitude(v[2], v[3]));
#pragma unroll
  for (int offset = 8; offset > 0; offset >>= 1) m = max_magnitude(m, __shfl_xor_sync(0xffffffffu, m, offset));
  if (quantise) simulate_aq<4>(v, pair_maximum(m));
  if (i >= num_pieces) return;
  const uint4 pairs = make_uint4(__byte_perm(v[0], v[2], 0x5410), __byte_perm(v[0], v[2], 0x7632),
                                 __byte_perm(v[1], v[3], 0x5410), __byte_perm(v[1], v[3], 0x7632));
  if (!by_step) {
    reinterpret_cast<uint4*>(out)[i] = pairs;
    return;
  }
  const int t = static_cast<int>(i % 16) / 4, word = static_cast<int>(i % 4);
  std::uint32_t* steps = reinterpret_cast<std::uint32_t*>(out) + i / 16 * 64 + word * 16 + t;
  steps[0] = pairs.x, steps[4] = pairs.y, steps[8] = pairs.z, steps[12] = pairs.w;
}

// Block 0 groups; the others put rows of x in order.
__global__ void __launch_bounds__(kThreads) group_rows(MoeCall call, std::int64_t num_pieces, bool by_step) {
  if (blockIdx.x == 0) return group_entries(call);
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) - 1) * kThreads + threadIdx.x;
  order_piece(call.x, call.x_quantised, i, num_pieces, call.quantise, by_step);
}

__global__ void __launch_bounds__(kThreads) order_intermediate(MoeCall call, std::int64_t num_pieces) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  order_piece(call.t, call.t, i, num_pieces, call.quantise, true);
}

__global__ void __launch_bounds__(kThreads) sum_experts(MoeCall call, std::int64_t num_pairs) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= num_pairs) return;
  const int row_pairs = call.hidden / 2;
  const std::int64_t token = i / row_pairs, column = i % row_pairs;
  const auto* y = reinterpret_cast<const std::uint32_t*>(call.y);
  float low = 0.0f, high = 0.0f;
  for (int k = 0; k < call.topk; ++k) {
    const std::uint32_t v = y[(token * call.topk + k) * row_pairs + column];
    low += bf16_low(v);
    high += bf16_high(v);
  }
  if (call.has_shared) {
    const std::uint32_t v = y[(static_cast<std::int64_t>(call.num_tokens) * call.topk + token) * row_pairs + column];
    low += bf16_low(v);
    high += bf16_high(v);
  }
  reinterpret_cast<std::uint32_t*>(call.out)[i] = pack_bf16(low, high);
}

}  // namespace

MoeCall make_moe_call(ExecutionContext& context, const MoeExpertsPlan& plan, const MoeExpertsArgs& args) {
  const MoeExpertsDesc& d = plan.desc;
  FATHOM_CHECK(args.packed != nullptr, "the CUDA backend packs experts when it loads them");
  FATHOM_CHECK(d.num_experts <= kMaxExperts && d.hidden % 128 == 0 && d.intermediate % 128 == 0,
               "widths of whole scale blocks");
  MoeCall call{};
  call.experts = *static_cast<const DeviceExperts*>(args.packed);
  call.has_shared = args.shared != nullptr;
  if (call.has_shared) {
    call.shared_w1 = device_weight(args.shared->w1);
    call.shared_w3 = device_weight(args.shared->w3);
    call.shared_w2 = device_weight(args.shared->w2);
  }
  call.x = args.x.as<Bf16Bits>();
  call.expert_ids = args.expert_ids.as<std::int32_t>();
  call.expert_weights = args.expert_weights.as<float>();
  call.out = args.out.as<Bf16Bits>();
  call.num_tokens = static_cast<std::int32_t>(args.x.shape[0]);
  call.topk = d.topk;
  call.hidden = static_cast<std::int32_t>(d.hidden);
  call.intermediate = static_cast<std::int32_t>(d.intermediate);
  call.num_experts = d.num_experts;
  call.limit = d.swiglu_limit;
  call.quantise = d.numerics.quantise_linear_input;
  const MoeScratch s = moe_scratch(call.num_tokens, d.hidden, d.intermediate, d.num_experts, d.topk);
  call.num_items = reinterpret_cast<std::int32_t*>(context.scratch);
  call.items = reinterpret_cast<MoeItem*>(context.scratch + s.items);
  call.item_entries = INT_MAX;
  call.entries = reinterpret_cast<std::int32_t*>(context.scratch + s.entries);
  call.x_quantised = reinterpret_cast<Bf16Bits*>(context.scratch + s.x);
  call.t = reinterpret_cast<Bf16Bits*>(context.scratch + s.t);
  call.y = reinterpret_cast<Bf16Bits*>(context.scratch + s.y);
  return call;
}

void launch_group_rows(const MoeCall& call, MoeOrder order, cudaStream_t stream) {
  const std::int64_t pieces = static_cast<std::int64_t>(call.num_tokens) * call.hidden / 8;
  const auto blocks = static_cast<unsigned>(1 + (pieces + kThreads - 1) / kThreads);
  group_rows<<<blocks, kThreads, 0, stream>>>(call, pieces, order == MoeOrder::kBySteps);
}

void launch_order_intermediate(const MoeCall& call, cudaStream_t stream) {
  const std::int64_t rows = static_cast<std::int64_t>(call.num_tokens) * (call.topk + (call.has_shared ? 1 : 0));
  const std::int64_t pieces = rows * call.intermediate / 8;
  order_intermediate<<<static_cast<unsigned>((pieces + kThreads - 1) / kThreads), kThreads, 0, stream>>>(call, pieces);
}

void launch_sum_experts(const MoeCall& call, cudaStream_t stream) {
  const std::int64_t pairs = static_cast<std::int64_t>(call.num_tokens) * call.hidden / 2;
  sum_experts<<<static_cast<unsigned>((pairs + kThreads - 1) / kThreads), kThreads, 0, stream>>>(call, pairs);
}

}  // namespace fathom::cuda
