#include <climits>

#include "ops/cuda/ptx/wgmma.cuh"
#include "ops/cuda/weight_fragments.cuh"
#include "ops/moe_experts/kernels.cuh"

namespace fathom::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kGroupThreads = 1024;
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
  const int tid = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x),
            num_entries = call.num_tokens * call.topk;
  for (int e = tid; e < call.num_experts; e += threads) counts[e] = 0;
  __syncthreads();
#pragma unroll 4
  for (int i = tid; i < num_entries; i += threads) atomicAdd(&counts[__ldg(call.expert_ids + i)], 1);
  __syncthreads();
  if (tid < 32) {  // one warp: running sums of counts and of used experts
    int entries = 0, items = 0;
    for (int base = 0; base < call.num_experts; base += 32) {
      const int e = base + tid;
      const int count = e < call.num_experts ? counts[e] : 0;
      const int num = count > 0 ? (count - 1) / call.item_entries + 1 : 0;
      const int sum = running_sum(count), item = running_sum(num), begin = entries + sum - count;
      if (e < call.num_experts) begins[e] = begin;
      const int least = num > 0 ? count / num : 0, longer = count - num * least;  // pieces alike to one entry
      for (int i = 0; i < num; ++i)
        call.items[items + item - num + i] = {e, begin + i * least + min(i, longer), least + (i < longer ? 1 : 0), 0};
      entries += __shfl_sync(0xffffffffu, sum, 31);
      items += __shfl_sync(0xffffffffu, item, 31);
    }
    if (tid == 0) total_items = items;
  }
  __syncthreads();
  if (tid == 0) *call.num_items = total_items;
#pragma unroll 4
  for (int i = tid; i < num_entries; i += threads) call.entries[atomicAdd(&begins[__ldg(call.expert_ids + i)], 1)] = i;
}

// Eight columns of a row through AQ 128 if asked for, columns c and c + 4 paired like codes. The sixteen lanes of a
// chunk of 128 call together.
__device__ __forceinline__ void pair_piece(const uint4& x, bool quantise, std::uint32_t (&pairs)[4]) {
  std::uint32_t v[4] = {x.x, x.y, x.z, x.w};
  std::uint32_t m = max_magnitude(max_magnitude(v[0], v[1]), max_magnitude(v[2], v[3]));
#pragma unroll
  for (int offset = 8; offset > 0; offset >>= 1) m = max_magnitude(m, __shfl_xor_sync(0xffffffffu, m, offset));
  if (quantise) simulate_aq<4>(v, pair_maximum(m));
  pairs[0] = __byte_perm(v[0], v[2], 0x5410), pairs[1] = __byte_perm(v[0], v[2], 0x7632);
  pairs[2] = __byte_perm(v[1], v[3], 0x5410), pairs[3] = __byte_perm(v[1], v[3], 0x7632);
}

// Block 0 groups; the others put rows of x in order.
__global__ void __launch_bounds__(kThreads) group_rows(MoeCall call, std::int64_t num_pieces) {
  if (blockIdx.x == 0) return group_entries(call);
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) - 1) * kThreads + threadIdx.x;
  std::uint32_t pairs[4];
  pair_piece(reinterpret_cast<const uint4*>(call.x)[i < num_pieces ? i : num_pieces - 1], call.quantise, pairs);
  if (i < num_pieces)
    reinterpret_cast<uint4*>(call.x_quantised)[i] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

__global__ void __launch_bounds__(kGroupThreads) group_entries_alone(MoeCall call) { group_entries(call); }

// v[i] of lane 4 j + w becomes v[j] of lane 4 i + w: pair i of the four lanes that share a word of codes.
__device__ __forceinline__ void transpose_lanes(std::uint32_t (&v)[4]) {
  const int mine = static_cast<int>(threadIdx.x) % 16 / 4;
#pragma unroll
  for (int bit = 1; bit <= 2; bit <<= 1) {
    const bool high = (mine & bit) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & bit) != 0) continue;
      const std::uint32_t other = __shfl_xor_sync(0xffffffffu, high ? v[i] : v[i | bit], 4 * bit);
      if (high)
        v[i] = other;
      else
        v[i | bit] = other;
    }
  }
}

// A block has eight rows of a tile, a warp each; blockIdx.y: pieces of the shared expert's rows, then items.
__global__ void __launch_bounds__(kThreads) order_tiles(MoeCall call, int shared_pieces, int shared_row, bool input) {
  const int piece = static_cast<int>(blockIdx.y), item = piece - shared_pieces,
            first = 8 * static_cast<int>(blockIdx.x), r = first + static_cast<int>(threadIdx.x) / 32,
            lane = static_cast<int>(threadIdx.x) % 32;
  const int width = input ? call.hidden : call.intermediate, num_chunks = width / 128;
  int count, row, rows, entry;
  if (item < 0) {
    count = min(kMoeWgmmaSharedTokens, call.num_tokens - piece * kMoeWgmmaSharedTokens);
    row = shared_row + piece * kMoeWgmmaSharedTokens, rows = kMoeWgmmaSharedTokens;
    if (first >= count) return;
    entry = call.num_tokens * call.topk + piece * kMoeWgmmaSharedTokens + min(r, count - 1);
  } else {
    if (item >= *call.num_items) return;
    const MoeItem it = call.items[item];
    count = it.count, row = static_cast<int>(moe_tile_row(it.begin, item)), rows = (count + 7) / 8 * 8;
    if (first >= count) return;
    entry = call.entries[it.begin + min(r, count - 1)];
  }
  const int token = item < 0 ? entry - call.num_tokens * call.topk : entry / call.topk;
  if (input && lane == 0) {
    const float weight = item < 0 || r >= count ? 1.0f : call.expert_weights[entry];
    call.tile_rows[row + r] = {r < count ? entry : -1, weight};
  }
  if (r >= count) return;  // a whole warp
  const auto* from = reinterpret_cast<const uint4*>((input ? call.x : call.t) +
                                                    static_cast<std::int64_t>(input ? token : entry) * width);
  auto* tile = reinterpret_cast<unsigned char*>(call.tiles) + static_cast<std::int64_t>(row) * width * 2;
  // Lane 4 t + word of a chunk's sixteen will have, of step 2 word + t / 2, the half t % 2 of the fragment.
  const int place = lane % 4 * 4 + lane % 16 / 4;
  unsigned char* to = tile + place / 8 * rows * 128 + swizzle_128(r, place % 8);
  constexpr int kAtOnce = 4;
  for (int base = 0; base < width / 8; base += 32 * kAtOnce) {
    uint4 x[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (base + 32 * k < width / 8) x[k] = from[base + 32 * k + lane];  // alike in a warp: widths are of two chunks
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (base + 32 * k >= width / 8) break;
      std::uint32_t pairs[4];
      pair_piece(x[k], call.quantise, pairs);
      transpose_lanes(pairs);
      const int chunk = (base + 32 * k + lane) / 16;
      *reinterpret_cast<uint4*>(to + static_cast<std::int64_t>(moe_step_of_chunk(chunk, num_chunks)) * rows * 256) =
          make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  }
}

// A thread has kPairs pairs of neighbouring columns.
template <int kPairs>
struct alignas(4 * kPairs) ColumnPairs {
  std::uint32_t v[kPairs];
};
template <int kPairs>
__global__ void __launch_bounds__(kThreads) sum_experts(MoeCall call, std::int64_t num_pieces) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= num_pieces) return;
  const int row_pieces = call.hidden / (2 * kPairs);
  const std::int64_t token = i / row_pieces, column = i % row_pieces;
  const auto* y = reinterpret_cast<const ColumnPairs<kPairs>*>(call.y);
  float low[kPairs] = {}, high[kPairs] = {};
  const auto add = [&](std::int64_t row) {
    const ColumnPairs<kPairs> pairs = y[row * row_pieces + column];
#pragma unroll
    for (int p = 0; p < kPairs; ++p) low[p] += bf16_low(pairs.v[p]), high[p] += bf16_high(pairs.v[p]);
  };
#pragma unroll 2
  for (int k = 0; k < call.topk; ++k) add(token * call.topk + k);
  if (call.has_shared) add(static_cast<std::int64_t>(call.num_tokens) * call.topk + token);
  ColumnPairs<kPairs> sum;
#pragma unroll
  for (int p = 0; p < kPairs; ++p) sum.v[p] = pack_bf16(low[p], high[p]);
  reinterpret_cast<ColumnPairs<kPairs>*>(call.out)[i] = sum;
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

void launch_group_rows(const MoeCall& call, cudaStream_t stream) {
  const std::int64_t pieces = static_cast<std::int64_t>(call.num_tokens) * call.hidden / 8;
  const auto blocks = static_cast<unsigned>(1 + (pieces + kThreads - 1) / kThreads);
  group_rows<<<blocks, kThreads, 0, stream>>>(call, pieces);
}

void launch_group_entries(const MoeCall& call, cudaStream_t stream) {
  group_entries_alone<<<1, kGroupThreads, 0, stream>>>(call);
}

void launch_order_tiles(const MoeCall& call, MoeTiles which, cudaStream_t stream) {
  const int shared_pieces = call.has_shared ? (call.num_tokens + kMoeWgmmaSharedTokens - 1) / kMoeWgmmaSharedTokens : 0;
  const std::int64_t items = moe_max_pieces(call.num_tokens, call.num_experts, call.topk, call.item_entries);
  const dim3 grid(static_cast<unsigned>(call.item_entries / 8), static_cast<unsigned>(shared_pieces + items));
  const std::int64_t shared_row = moe_shared_tile_row(call.num_tokens, call.num_experts, call.topk, call.item_entries);
  order_tiles<<<grid, kThreads, 0, stream>>>(call, shared_pieces, static_cast<int>(shared_row),
                                             which == MoeTiles::kInput);
}

void launch_sum_experts(const MoeCall& call, cudaStream_t stream) {
  const std::int64_t pairs = static_cast<std::int64_t>(call.num_tokens) * call.hidden / 2;
  const auto blocks = [](std::int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); };
  if (call.num_tokens > kMoeDecodeTokens)
    sum_experts<4><<<blocks(pairs / 4), kThreads, 0, stream>>>(call, pairs / 4);
  else
    sum_experts<1><<<blocks(pairs), kThreads, 0, stream>>>(call, pairs);
}

}  // namespace fathom::cuda
