// moe_experts/mma: grouped products over 4-bit codes, weights as the 16-row operand, eight rows of x the other.
// A block of eight warps deals the 128-wide chunks of K out like linear/mma. Codes become bf16 fragments in
// registers; the block scale joins in the same multiply (MXFP4: one a lane, NVFP4: two).
#include "ops/cuda/weight_fragments.cuh"
#include "ops/moe_experts/kernels.cuh"

namespace fathom::cuda {
namespace {

constexpr int kChunk = 128;
constexpr float kUnfold = 0x1p30f;  // fragments carry 2^-30 so that 2^126 times any scale fits bf16

// One row's 32 columns of a chunk, as loaded.
template <WeightFormat kFormat>
struct RowCodes;

template <>
struct RowCodes<WeightFormat::kMxfp4> {
  uint4 codes;
  std::uint32_t scale;
  __device__ __forceinline__ void load(const DeviceWeight& w, int row, int chunk, int t) {
    codes = load_streaming(w.values + (static_cast<std::int64_t>(row) * w.k + chunk * kChunk) / 2 + 16 * t);
    scale = w.scale[static_cast<std::int64_t>(row) * (w.k / 32) + chunk * 4 + t];
  }
  // Pairs of code words 2 q and 2 q + 1 (q = 0, 1): eight fragments.
  __device__ __forceinline__ void pairs(int word, std::uint32_t (&out)[4]) const {
    const std::uint32_t bits = (scale + 96u) << 7;
    const std::uint32_t c = word == 0 ? codes.x : word == 1 ? codes.y : word == 2 ? codes.z : codes.w;
    e2m1_pairs(c, bits | bits << 16, out);
  }
};

template <>
struct RowCodes<WeightFormat::kNvfp4> {
  uint4 codes;
  std::uint32_t scale;  // two e4m3
  __device__ __forceinline__ void load(const DeviceWeight& w, int row, int chunk, int t) {
    codes = load_streaming(w.values + (static_cast<std::int64_t>(row) * w.k + chunk * kChunk) / 2 + 16 * t);
    scale = *reinterpret_cast<const std::uint16_t*>(w.scale + static_cast<std::int64_t>(row) * (w.k / 16) + chunk * 8 +
                                                    2 * t);
  }
  __device__ __forceinline__ void pairs(int word, std::uint32_t (&out)[4]) const {
    const std::uint32_t code = word < 2 ? scale & 0xffu : scale >> 8;
    const std::uint32_t placed = (code & 0x7fu) << 4 | (code & 0x80u) << 8;
    // 2^120 for the bias of e4m3, then 2^96 for that of e2m1 less the folded 2^-30.
    const std::uint32_t factor = mul_bf16x2(mul_bf16x2(placed | placed << 16, 0x7b807b80u), 0x6f806f80u);
    const std::uint32_t c = word == 0 ? codes.x : word == 1 ? codes.y : word == 2 ? codes.z : codes.w;
    e2m1_pairs(c, factor, out);
  }
};

template <>
struct RowCodes<WeightFormat::kFp8Block128> {
  uint4 first, second;
  __device__ __forceinline__ void load(const DeviceWeight& w, int row, int chunk, int t) {
    const std::uint8_t* p = w.values + static_cast<std::int64_t>(row) * w.k + chunk * kChunk + 32 * t;
    first = load_streaming(p);
    second = load_streaming(p + 16);
  }
  // Columns i and i + 4 pair up as they do in 4-bit words; the byte below a code is masked away.
  __device__ __forceinline__ void pairs(int word, std::uint32_t (&out)[4]) const {
    const uint4 c = word < 2 ? first : second;
    const std::uint32_t low = (word & 1) == 0 ? c.x : c.z, high = (word & 1) == 0 ? c.y : c.w;
    constexpr std::uint32_t kSelectors[4] = {0x4000, 0x5010, 0x6020, 0x7030};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t v = __byte_perm(low, high, kSelectors[i]);
      out[i] = mul_bf16x2((v & 0x80008000u) | ((v >> 4) & 0x07f007f0u), 0x7b807b80u);
    }
  }
};

// acc += two half rows (g, g + 8) times x, over one chunk.
template <WeightFormat kFormat>
__device__ __forceinline__ void multiply_chunk(float (&acc)[4], const RowCodes<kFormat>& low,
                                               const RowCodes<kFormat>& high, const std::uint32_t (&x)[16]) {
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    std::uint32_t p[4], q[4];
    low.pairs(word, p);
    high.pairs(word, q);
    const std::uint32_t a[4] = {p[0], q[0], p[1], q[1]};
    mma_bf16(acc, a, x[4 * word], x[4 * word + 1]);
    const std::uint32_t b[4] = {p[2], q[2], p[3], q[3]};
    mma_bf16(acc, b, x[4 * word + 2], x[4 * word + 3]);
  }
}

// What the chunk's sum is multiplied by before it joins the total.
template <WeightFormat kFormat>
__device__ __forceinline__ float chunk_scale(const DeviceWeight& w, int row, int chunk) {
  if constexpr (kFormat == WeightFormat::kFp8Block128) {
    const std::int64_t s = static_cast<std::int64_t>(row / 128) * ((w.k + 127) / 128) + chunk;
    return w.f32_scale ? reinterpret_cast<const float*>(w.scale)[s] : e8m0_to_f32(w.scale[s]);
  }
  return 1.0f;
}
template <WeightFormat kFormat>
__device__ __forceinline__ float final_scale(const DeviceWeight& w) {
  return kFormat == WeightFormat::kFp8Block128 ? 1.0f : kUnfold * w.scale_2;
}

// Which rows an item covers: entry i of the item and the row of x it reads.
struct Entries {
  const std::int32_t* list;  // null: the shared expert, all rows
  int count, shared_begin, topk;
  __device__ __forceinline__ int entry(int i) const { return list != nullptr ? list[i] : shared_begin + i; }
  __device__ __forceinline__ int token(int i) const { return list != nullptr ? list[i] / topk : i; }
};

template <WeightFormat kFormat>
__device__ __forceinline__ void up_tile(const MoeCall& call, const DeviceWeight& w1, const DeviceWeight& w3,
                                        const Entries& entries, float (*partial)[2][kMoeUpRows][9]) {
  const int tid = static_cast<int>(threadIdx.x), warp = tid >> 5, lane = tid & 31, g = lane >> 2, t = lane & 3;
  const int first_row = static_cast<int>(blockIdx.x) * kMoeUpRows;
  const int num_chunks = w1.k / kChunk, num_parts = min(num_chunks, kMoeWarps);
  for (int first = 0; first < entries.count; first += 8) {
    const Bf16Bits* x =
        call.x_quantised + static_cast<std::int64_t>(entries.token(min(first + g, entries.count - 1))) * call.hidden;
    float a[4] = {}, b[4] = {};
    RowCodes<kFormat> codes[4], next[4];
    const auto load = [&](RowCodes<kFormat>(&c)[4], int chunk) {
      c[0].load(w1, first_row + g, chunk, t);
      c[1].load(w1, first_row + 8 + g, chunk, t);
      c[2].load(w3, first_row + g, chunk, t);
      c[3].load(w3, first_row + 8 + g, chunk, t);
    };
    if (warp < num_chunks) load(codes, warp);
    for (int c = warp; c < num_chunks; c += kMoeWarps) {
      if (c + kMoeWarps < num_chunks) load(next, c + kMoeWarps);
      std::uint32_t columns[16];
      ColumnsE2m1::load(columns, x + c * kChunk, t);
      if constexpr (kFormat == WeightFormat::kFp8Block128) {
        float part_a[4] = {}, part_b[4] = {};
        multiply_chunk<kFormat>(part_a, codes[0], codes[1], columns);
        multiply_chunk<kFormat>(part_b, codes[2], codes[3], columns);
        const float scale_a = chunk_scale<kFormat>(w1, first_row, c), scale_b = chunk_scale<kFormat>(w3, first_row, c);
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] += part_a[i] * scale_a, b[i] += part_b[i] * scale_b;
      } else {
        multiply_chunk<kFormat>(a, codes[0], codes[1], columns);
        multiply_chunk<kFormat>(b, codes[2], codes[3], columns);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) codes[i] = next[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      partial[warp][0][g + 8 * (i / 2)][2 * t + i % 2] = a[i];
      partial[warp][1][g + 8 * (i / 2)][2 * t + i % 2] = b[i];
    }
    __syncthreads();
    if (tid < kMoeUpRows * 8) {
      const int row = tid % kMoeUpRows, i = first + tid / kMoeUpRows;
      if (i < entries.count) {
        float sum_a = 0.0f, sum_b = 0.0f;
        for (int p = 0; p < num_parts; ++p) {
          sum_a += partial[p][0][row][tid / kMoeUpRows];
          sum_b += partial[p][1][row][tid / kMoeUpRows];
        }
        const int entry = entries.entry(i);
        const float weight = entries.list != nullptr ? call.expert_weights[entry] : 1.0f;
        call.t[static_cast<std::int64_t>(entry) * call.intermediate + first_row + row] =
            gated(sum_a * final_scale<kFormat>(w1), sum_b * final_scale<kFormat>(w3), weight, call.limit);
      }
    }
  }
}

template <WeightFormat kFormat>
__device__ __forceinline__ void down_tile(const MoeCall& call, const DeviceWeight& w2, const Entries& entries,
                                          float (*partial)[kMoeDownRows][9]) {
  constexpr int kTiles = kMoeDownRows / 16;
  const int tid = static_cast<int>(threadIdx.x), warp = tid >> 5, lane = tid & 31, g = lane >> 2, t = lane & 3;
  const int first_row = static_cast<int>(blockIdx.x) * kMoeDownRows;
  const int num_chunks = w2.k / kChunk, num_parts = min(num_chunks, kMoeWarps);
  for (int first = 0; first < entries.count; first += 8) {
    const Bf16Bits* x =
        call.t + static_cast<std::int64_t>(entries.entry(min(first + g, entries.count - 1))) * call.intermediate;
    float acc[kTiles][4] = {};
    for (int c = warp; c < num_chunks; c += kMoeWarps) {
      RowCodes<kFormat> codes[kTiles][2];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        codes[m][0].load(w2, first_row + 16 * m + g, c, t);
        codes[m][1].load(w2, first_row + 16 * m + 8 + g, c, t);
      }
      std::uint32_t columns[16];
      ColumnsE2m1::load(columns, x + c * kChunk, t);
      if (call.quantise) simulate_aq_quad(columns);
      ColumnsE2m1::pair_like_codes(columns);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        if constexpr (kFormat == WeightFormat::kFp8Block128) {
          float part[4] = {};
          multiply_chunk<kFormat>(part, codes[m][0], codes[m][1], columns);
          const float scale = chunk_scale<kFormat>(w2, first_row + 16 * m, c);
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[m][i] += part[i] * scale;
        } else {
          multiply_chunk<kFormat>(acc[m], codes[m][0], codes[m][1], columns);
        }
      }
    }
    __syncthreads();
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) partial[warp][16 * m + g + 8 * (i / 2)][2 * t + i % 2] = acc[m][i];
    }
    __syncthreads();
    for (int o = tid; o < kMoeDownRows * 8; o += kMoeWarps * 32) {
      const int row = o % kMoeDownRows, i = first + o / kMoeDownRows;
      if (i >= entries.count) continue;
      float sum = 0.0f;
      for (int p = 0; p < num_parts; ++p) sum += partial[p][row][o / kMoeDownRows];
      call.y[static_cast<std::int64_t>(entries.entry(i)) * call.hidden + first_row + row] =
          f32_to_bf16(sum * final_scale<kFormat>(w2));
    }
  }
}

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
  if (item >= call.items[call.num_experts].count) return false;
  const MoeItem it = call.items[item];
  entries = {call.entries + it.begin, it.count, 0, call.topk};
  expert = it.expert;
  return true;
}

template <WeightFormat kFormat>
__global__ void __launch_bounds__(kMoeWarps * 32, 2) experts_up(const __grid_constant__ MoeCall call) {
  __shared__ float partial[kMoeWarps][2][kMoeUpRows][9];
  Entries entries{};
  int expert = 0;
  if (!entries_of(call, entries, expert)) return;
  if (expert < 0) return up_tile<WeightFormat::kFp8Block128>(call, call.shared_w1, call.shared_w3, entries, partial);
  up_tile<kFormat>(call, expert_matrix(call.experts, call.experts.w1, 0, expert),
                   expert_matrix(call.experts, call.experts.w3, 1, expert), entries, partial);
}

template <WeightFormat kFormat, bool kSums>
__global__ void __launch_bounds__(kMoeWarps * 32, 2) experts_down(const __grid_constant__ MoeCall call) {
  __shared__ float partial[kMoeWarps][kMoeDownRows][9];
  Entries entries{};
  int expert = 0;
  if (!entries_of(call, entries, expert)) return;
  if (expert < 0)
    down_tile<WeightFormat::kFp8Block128>(call, call.shared_w2, entries, partial);
  else
    down_tile<kFormat>(call, expert_matrix(call.experts, call.experts.w2, 2, expert), entries, partial);
  if constexpr (kSums) add_arrived_rows(call, entries);
}

template <WeightFormat kFormat>
void launch_experts(const MoeCall& call, cudaStream_t stream) {
  const auto items = static_cast<int>(moe_max_items(call.num_tokens, call.num_experts, call.topk));
  const auto grid_y = static_cast<unsigned>(items + (call.has_shared ? 1 : 0));
  experts_up<kFormat>
      <<<dim3(static_cast<unsigned>(call.intermediate / kMoeUpRows), grid_y), kMoeWarps * 32, 0, stream>>>(call);
  const dim3 down(static_cast<unsigned>(call.hidden / kMoeDownRows), grid_y);
  if (call.arrivals != nullptr) {
    experts_down<kFormat, true><<<down, kMoeWarps * 32, 0, stream>>>(call);
  } else {
    experts_down<kFormat, false><<<down, kMoeWarps * 32, 0, stream>>>(call);
    launch_sum_experts(call, stream);
  }
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
  launch_group_rows(call, true, stream);
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
