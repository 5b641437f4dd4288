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
  KeyRow keys[4] = {}, next[4] = {};  // rows g, g + 8, g + 16, g + 24
  const auto load = [&](KeyRow(&to)[4], int at) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = load_key(call, sequence, min(at + 8 * i + g, visible - 1), t);
  };
  if (first < visible) load(keys, first);
  for (; first < visible; first += step) {
    if (first + step < visible) load(next, first + step);
    // Exponents are those of small activations: 2^126 for the code's bias less 2^30 never leaves bf16's range.
    std::uint32_t a[2][8][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const KeyRow low = keys[2 * m], high = keys[2 * m + 1];
      const std::uint32_t low_scale = (low.scale + 96u) << 7, high_scale = (high.scale + 96u) << 7;
      const std::uint32_t c0[4] = {low.codes.x, low.codes.y, low.codes.z, low.codes.w};
      const std::uint32_t c1[4] = {high.codes.x, high.codes.y, high.codes.z, high.codes.w};
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        std::uint32_t p[4], r[4];
        e2m1_pairs(c0[word], low_scale | low_scale << 16, p);
        e2m1_pairs(c1[word], high_scale | high_scale << 16, r);
        a[m][2 * word][0] = p[0], a[m][2 * word][1] = r[0], a[m][2 * word][2] = p[1], a[m][2 * word][3] = r[1];
        a[m][2 * word + 1][0] = p[2], a[m][2 * word + 1][1] = r[2], a[m][2 * word + 1][2] = p[3],
                        a[m][2 * word + 1][3] = r[3];
      }
    }
    float sums[4] = {};
#pragma unroll 2
    for (int tile = 0; tile < tiles; ++tile) {
      float s[2][4] = {};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint4 x = q[(tile * 4 + j) * 32 + lane];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma_bf16(s[m], a[m][2 * j], x.x, x.y);
          mma_bf16(s[m], a[m][2 * j + 1], x.z, x.w);
        }
      }
      const float2 w = *reinterpret_cast<const float2*>(weights + 8 * tile + 2 * t);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = &s[i / 2][2 * (i % 2)];
        sums[i] += fmaxf(pair[0], 0.0f) * w.x + fmaxf(pair[1], 0.0f) * w.y;
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], 1);
      sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], 2);
      const int entry = first + 8 * i + g;
      if (t == 0 && entry < visible) out[entry] = sums[i] * 0x1p30f;
      keys[i] = next[i];
    }
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
