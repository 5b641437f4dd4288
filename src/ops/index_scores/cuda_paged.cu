// index_scores/paged: keys are the 16-row operand straight from their 4-bit pages, eight heads of the query the
// other; relu and the weighted sum over heads happen on the accumulators. A block strides over the row's keys
// and leaves at the row's own length: nothing is sized by the configured maximum.
#include "ops/cuda/weight_fragments.cuh"
#include "ops/index_scores/index_keys.cuh"

namespace fathom::cuda {
namespace {

struct KeyRow {
  uint4 codes;
  std::uint32_t scale;
};

__device__ __forceinline__ KeyRow load_key(const IndexCall& call, int sequence, int entry, int t) {
  const IndexKey key = index_key(call, sequence, entry);
  const std::uint8_t* p = key.data + 16 * t;
  if ((reinterpret_cast<std::uintptr_t>(p) & 15) == 0) return {__ldg(reinterpret_cast<const uint4*>(p)), key.scale[t]};
  // Where an odd number of 584-byte entries stands before the page, it is aligned to 8 bytes only.
  const uint2 low = __ldg(reinterpret_cast<const uint2*>(p)), high = __ldg(reinterpret_cast<const uint2*>(p + 8));
  return {make_uint4(low.x, low.y, high.x, high.y), key.scale[t]};
}

__global__ void __launch_bounds__(kIndexWarps * 32) score_pages(const __grid_constant__ IndexCall call) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int row = static_cast<int>(blockIdx.y), token = call.first_row + row;
  const int visible = (call.rows.positions[token] + 1) / call.cache.ratio;
  if (visible <= call.topk || static_cast<int>(blockIdx.x) * kIndexBlockKeys >= visible) return;
  const int tid = static_cast<int>(threadIdx.x), warp = tid >> 5, lane = tid & 31, g = lane >> 2, t = lane & 3;
  const int tiles = (call.num_heads + 7) / 8;
  auto* q = reinterpret_cast<uint4*>(memory);  // [tiles][4 pieces][32 lanes]
  auto* weights = reinterpret_cast<float*>(memory + static_cast<std::size_t>(tiles) * 32 * 64);
  for (int tile = warp; tile < tiles; tile += kIndexWarps) {
    const int head = 8 * tile + g;
    std::uint32_t x[16] = {};
    if (head < call.num_heads) {
      ColumnsE2m1::load(x, call.q + (static_cast<std::int64_t>(token) * call.num_heads + head) * kIndexDim, t);
      ColumnsE2m1::pair_like_codes(x);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j)
      q[(tile * 4 + j) * 32 + lane] = make_uint4(x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]);
  }
  for (int h = tid; h < 8 * tiles; h += kIndexWarps * 32) {
    weights[h] = h < call.num_heads ? bf16_to_f32(call.weights[static_cast<std::int64_t>(token) * call.num_heads + h]) *
                                          call.weight_scale
                                    : 0.0f;
  }
  __syncthreads();
  const int sequence = call.rows.sequence_of[token];
  float* out = call.scores + row * call.stride;
  const int step = static_cast<int>(gridDim.x) * kIndexBlockKeys;
  int first = static_cast<int>(blockIdx.x) * kIndexBlockKeys + warp * kIndexWarpKeys;
  KeyRow low{}, high{};
  if (first < visible) {
    low = load_key(call, sequence, min(first + g, visible - 1), t);
    high = load_key(call, sequence, min(first + 8 + g, visible - 1), t);
  }
  for (; first < visible; first += step) {
    KeyRow next_low = low, next_high = high;
    if (first + step < visible) {
      next_low = load_key(call, sequence, min(first + step + g, visible - 1), t);
      next_high = load_key(call, sequence, min(first + step + 8 + g, visible - 1), t);
    }
    // Exponents are those of small activations: 2^126 for the code's bias less 2^30 never leaves bf16's range.
    std::uint32_t a[8][4];
    const std::uint32_t low_scale = (low.scale + 96u) << 7, high_scale = (high.scale + 96u) << 7;
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const std::uint32_t c0 = word == 0   ? low.codes.x
                               : word == 1 ? low.codes.y
                               : word == 2 ? low.codes.z
                                           : low.codes.w;
      const std::uint32_t c1 = word == 0   ? high.codes.x
                               : word == 1 ? high.codes.y
                               : word == 2 ? high.codes.z
                                           : high.codes.w;
      std::uint32_t p[4], r[4];
      e2m1_pairs(c0, low_scale | low_scale << 16, p);
      e2m1_pairs(c1, high_scale | high_scale << 16, r);
      a[2 * word][0] = p[0], a[2 * word][1] = r[0], a[2 * word][2] = p[1], a[2 * word][3] = r[1];
      a[2 * word + 1][0] = p[2], a[2 * word + 1][1] = r[2], a[2 * word + 1][2] = p[3], a[2 * word + 1][3] = r[3];
    }
    float sum_low = 0.0f, sum_high = 0.0f;
    for (int tile = 0; tile < tiles; ++tile) {
      float s[4] = {};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint4 x = q[(tile * 4 + j) * 32 + lane];
        mma_bf16(s, a[2 * j], x.x, x.y);
        mma_bf16(s, a[2 * j + 1], x.z, x.w);
      }
      const float2 w = *reinterpret_cast<const float2*>(weights + 8 * tile + 2 * t);
      sum_low += fmaxf(s[0], 0.0f) * w.x + fmaxf(s[1], 0.0f) * w.y;
      sum_high += fmaxf(s[2], 0.0f) * w.x + fmaxf(s[3], 0.0f) * w.y;
    }
#pragma unroll
    for (int mask = 1; mask <= 2; mask <<= 1) {
      sum_low += __shfl_xor_sync(0xffffffffu, sum_low, mask);
      sum_high += __shfl_xor_sync(0xffffffffu, sum_high, mask);
    }
    if (t == 0) {
      if (first + g < visible) out[first + g] = sum_low * 0x1p30f;
      if (first + 8 + g < visible) out[first + 8 + g] = sum_high * 0x1p30f;
    }
    low = next_low;
    high = next_high;
  }
}

}  // namespace

void index_scores_paged(ExecutionContext& context, const IndexScoresPlan& plan, const IndexScoresArgs& args) {
  const IndexScoresDesc& d = plan.desc;
  FATHOM_CHECK(d.cache.index_key.head_dim == kIndexDim && d.cache.ratio == 4 && d.num_heads <= kIndexMaxHeads,
               "index keys of 128 channels, at most 128 heads");
  const std::int64_t rows = args.scores.shape[0];
  if (rows == 0) return;
  const dim3 grid(static_cast<unsigned>(index_blocks_per_row(rows, plan.num_multiprocessors)),
                  static_cast<unsigned>(rows));
  score_pages<<<grid, kIndexWarps * 32, index_shared_bytes(d.num_heads), stream_of(context)>>>(index_call(plan, args));
}

}  // namespace fathom::cuda
