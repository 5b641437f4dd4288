// sparse_attention/mma and /mma_splitk: heads batched into 16-row tiles, so a key is gathered and widened once
// for all heads of a block and both products run on tensor cores (S2); mma_splitk gives small batches one
// block a group of 128 keys and folds the groups in a second launch (S3), mma_splitk_arrival by the block of a row and
// 16 heads that ends last, above eight rows. All do the arithmetic of group_softmax.cuh, as `wgmma` does, so a row's
// bits do not depend on which of them ran.
//
// Keys pass through shared memory as bf16 tiles of 64. S: a warp has one tile of heads and some of the keys.
// P V: a warp has all heads and 64 of the channels. Sums of P come from the fragments that P V reads.
#include "ops/cuda/launch_early.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/sparse_attention/group_softmax.cuh"
#include "ops/sparse_attention/raw_key.cuh"
#include "ops/sparse_attention/row_keys.cuh"

namespace fathom::cuda {
namespace {

constexpr int kRowStride = kHeadDim + 8;  // bf16 elements of a padded row
constexpr int kProbStride = kAttentionTile + 8;

__device__ __forceinline__ void load_raw(RawKey& raw, const AttentionCall& call, const RowKeys& keys, int group,
                                         int first, int size) {
  const int i = first + static_cast<int>(threadIdx.x) / 4, part = static_cast<int>(threadIdx.x) % 4;
  if (i >= size) return raw.clear();
  const RecordAddress key = keys.key(call, group, i);
  raw.load(key.data, key.scale, part);
}

__device__ __forceinline__ void store_raw(const RawKey& raw, Bf16Bits* tile) {
  const int key = static_cast<int>(threadIdx.x) / 4, part = static_cast<int>(threadIdx.x) % 4;
  Bf16Bits* row = tile + key * kRowStride;
#pragma unroll
  for (int j = 0; j < 7; ++j) {
    uint4 low, high;
    raw.widen(j, low, high);
    auto* to = reinterpret_cast<uint4*>(row + 16 * (part + 4 * j));
    to[0] = low;
    to[1] = high;
  }
  *reinterpret_cast<uint4*>(row + kNopeDim + 8 * part) = raw.rope[0];
  *reinterpret_cast<uint4*>(row + kNopeDim + 8 * (part + 4)) = raw.rope[1];
}

// (m, l, o) of a set of keys: rows g and g + 8 of every tile of heads, channels 64 warp + 8 n + 2 t + {0, 1}.
template <int kTiles>
struct Partial {
  float m[kTiles][2], l[kTiles][2], o[kTiles][8][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      m[i][0] = m[i][1] = -INFINITY;
      l[i][0] = l[i][1] = 0.0f;
#pragma unroll
      for (int n = 0; n < 8; ++n) o[i][n][0] = o[i][n][1] = o[i][n][2] = o[i][n][3] = 0.0f;
    }
  }
  // this, then `next`.
  __device__ __forceinline__ void fold(const Partial& next) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const FoldFactors factors = fold_maximum(m[i][half], next.m[i][half]);
        l[i][half] = fold_value(l[i][half], next.l[i][half], factors);
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& value = o[i][n][2 * half + e];
            value = fold_value(value, next.o[i][n][2 * half + e], factors);
          }
        }
      }
    }
  }
};

template <int kTiles>
struct Shared {
  Bf16Bits *q, *keys, *probs;  // probs: two terms of [16 * kTiles][kProbStride]
  float* peaks;                // [warps across the keys][16 * kTiles]
};

// One tile of up to 64 keys into the group's (m, l, o).
template <int kTiles>
__device__ __forceinline__ void attend_tile(Partial<kTiles>& group, const Shared<kTiles>& shared, int num_keys) {
  constexpr int kKeyWarps = 8 / kTiles, kKeyTiles = kTiles;  // a warp: one tile of heads, kKeyTiles * 8 keys
  const int tid = static_cast<int>(threadIdx.x), warp = tid >> 5, lane = tid & 31, g = lane >> 2, t = lane & 3;
  const int head_tile = warp / kKeyWarps, key_warp = warp % kKeyWarps;
  float s[kKeyTiles][4] = {};
#pragma unroll 4
  for (int k = 0; k < kHeadDim; k += 32) {
    std::uint32_t a0[4], a1[4];
    const Bf16Bits* q = shared.q + (16 * head_tile + (lane & 15)) * kRowStride + k + 8 * (lane >> 4);
    load_matrix_x4(a0, q);
    load_matrix_x4(a1, q + 16);
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      std::uint32_t b[4];
      load_matrix_x4(b, shared.keys + ((key_warp * kKeyTiles + n) * 8 + (lane & 7)) * kRowStride + k + 8 * (lane >> 3));
      mma_bf16(s[n], a0, b[0], b[1]);
      mma_bf16(s[n], a1, b[2], b[3]);
    }
  }
  float peak[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if ((key_warp * kKeyTiles + n) * 8 + 2 * t + (e & 1) >= num_keys) s[n][e] = -INFINITY;
      peak[e / 2] = fmaxf(peak[e / 2], s[n][e]);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    peak[half] = quad_max(peak[half]);
    if (t == 0) shared.peaks[key_warp * 16 * kTiles + 16 * head_tile + 8 * half + g] = peak[half];
  }
  __syncthreads();
  float m_new[kTiles][2];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float tile = -INFINITY;
#pragma unroll
      for (int w = 0; w < kKeyWarps; ++w) tile = fmaxf(tile, shared.peaks[w * 16 * kTiles + 16 * i + 8 * half + g]);
      m_new[i][half] = fmaxf(group.m[i][half], tile * kLogitScale);
    }
  }
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float m = m_new[0][half];
      if constexpr (kTiles == 2) m = head_tile == 1 ? m_new[1][half] : m;
      const ProbPair p = split_pair(probability(s[n][2 * half], m), probability(s[n][2 * half + 1], m));
      const int at = (16 * head_tile + 8 * half + g) * kProbStride + (key_warp * kKeyTiles + n) * 8 + 2 * t;
      *reinterpret_cast<std::uint32_t*>(shared.probs + at) = p.high;
      *reinterpret_cast<std::uint32_t*>(shared.probs + 16 * kTiles * kProbStride + at) = p.low;
    }
  }
  float shrink[kTiles][2];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float a = exp2_fast(group.m[i][half] - m_new[i][half]);
      group.m[i][half] = m_new[i][half];
      shrink[i][half] = a;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        group.o[i][n][2 * half] *= a;
        group.o[i][n][2 * half + 1] *= a;
      }
    }
  }
  __syncthreads();
  float sums[kTiles][2] = {};
#pragma unroll
  for (int k = 0; k < kAttentionTile; k += 16) {
    std::uint32_t p[kTiles][2][4];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int term = 0; term < 2; ++term) {
        load_matrix_x4(p[i][term],
                       shared.probs + (16 * (kTiles * term + i) + (lane & 15)) * kProbStride + k + 8 * (lane >> 4));
      }
      // Of a fragment, 0 and 2 are row g's columns 2 t and 8 + 2 t; 1 and 3 are row g + 8's.
#pragma unroll
      for (int f = 0; f < 4; ++f) sums[i][f & 1] = __fadd_rn(sums[i][f & 1], pair_sum(p[i][0][f], p[i][1][f]));
    }
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      std::uint32_t v[4];
      load_matrix_x4_transposed(
          v, shared.keys + (k + 8 * ((lane >> 3) & 1) + (lane & 7)) * kRowStride + 64 * warp + 8 * n + 8 * (lane >> 4));
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int term = 0; term < 2; ++term) {
          mma_bf16(group.o[i][n], p[i][term], v[0], v[1]);
          mma_bf16(group.o[i][n + 1], p[i][term], v[2], v[3]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      group.l[i][half] = add_tile_sum(group.l[i][half], shrink[i][half], quad_sum(sums[i][half]));
    }
  }
}

// Channels 4 part .. of a (row, head): its groups, which lie in scratch, folded left to right.
__device__ __forceinline__ void fold_groups(const AttentionCall& call, int row, int head, int part, int num_groups) {
  float m = -INFINITY, l = 0.0f, o[4] = {};
  float4 values[kMaxSplitGroups];
  float2 ml[kMaxSplitGroups];
#pragma unroll
  for (int i = 0; i < kMaxSplitGroups; ++i) {
    if (i >= num_groups) break;
    const std::int64_t at = (static_cast<std::int64_t>(row) * call.num_splits + i) * call.num_heads + head;
    values[i] = __ldcg(reinterpret_cast<const float4*>(call.partial_o + at * kHeadDim) + part);
    ml[i] = __ldcg(call.partial_ml + at);
  }
#pragma unroll
  for (int i = 0; i < kMaxSplitGroups; ++i) {
    if (i >= num_groups) break;
    const FoldFactors factors = fold_maximum(m, ml[i].x);
    l = fold_value(l, ml[i].y, factors);
    const float v[4] = {values[i].x, values[i].y, values[i].z, values[i].w};
#pragma unroll
    for (int c = 0; c < 4; ++c) o[c] = fold_value(o[c], v[c], factors);
  }
  const float inverse = inverse_denominator(m, l, call.sink[head]);
  const float2* rope = call.rope + static_cast<std::int64_t>(row) * (kRopeDim / 2);
  auto* out = reinterpret_cast<uint2*>(call.out + (static_cast<std::int64_t>(row) * call.num_heads + head) * kHeadDim);
  out[part] = make_uint2(finish_pair(o[0], o[1], inverse, 4 * part, rope),
                         finish_pair(o[2], o[3], inverse, 4 * part + 2, rope));
}

// A block has left its group's results in scratch: whether it is the last of its row and heads, which folds them.
__device__ __forceinline__ bool arrives_last(const AttentionCall& call, int row, int num_groups) {
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    std::uint32_t* counter = call.arrivals + static_cast<std::int64_t>(row) * gridDim.y + blockIdx.y;
    __threadfence();  // the block's results before the counter
    is_last = atomicAdd(counter, 1u) == static_cast<unsigned>(num_groups - 1);
    if (is_last) *counter = 0;
    __threadfence();  // the counter before other blocks' results
  }
  __syncthreads();
  return is_last;
}

template <int kTiles, bool kSplit, bool kFolds>
__global__ void __launch_bounds__(kAttentionThreads, kTiles == 1 ? 2 : 1)
    attend(const __grid_constant__ AttentionCall call) {
  admit_next_launch();
  extern __shared__ __align__(128) unsigned char memory[];
  Shared<kTiles> shared;
  shared.q = reinterpret_cast<Bf16Bits*>(memory);
  shared.keys = shared.q + 16 * kTiles * kRowStride;
  shared.probs = shared.keys + kAttentionTile * kRowStride;
  shared.peaks = reinterpret_cast<float*>(shared.probs + 2 * 16 * kTiles * kProbStride);
  const int row = static_cast<int>(blockIdx.x), first_head = static_cast<int>(blockIdx.y) * 16 * kTiles;
  const int tid = static_cast<int>(threadIdx.x), warp = tid >> 5, lane = tid & 31, g = lane >> 2, t = lane & 3;
  const RowKeys keys = row_keys(call, row);
  // A row with more groups than splits is folded whole by its first block.
  const bool whole = !kSplit || keys.num_groups() > call.num_splits;
  int group_begin = 0, group_end = keys.num_groups();
  if (kSplit) {
    const int split = static_cast<int>(blockIdx.z);
    if (whole ? split > 0 : split >= group_end) return;
    if (!whole) group_begin = split, group_end = split + 1;
  }
  RawKey raw;
  int size = keys.group_size(group_begin);
  load_raw(raw, call, keys, group_begin, 0, size);
  for (int i = tid; i < 16 * kTiles * (kHeadDim / 8); i += kAttentionThreads) {
    const int head = i / (kHeadDim / 8), piece = i % (kHeadDim / 8);
    uint4 v = make_uint4(0, 0, 0, 0);
    if (first_head + head < call.num_heads) {
      v = reinterpret_cast<const uint4*>(
          call.q + (static_cast<std::int64_t>(row) * call.num_heads + first_head + head) * kHeadDim)[piece];
    }
    *reinterpret_cast<uint4*>(shared.q + head * kRowStride + 8 * piece) = v;
  }
  Partial<kTiles> total, group;
  total.clear();
  for (int index = group_begin; index < group_end; ++index) {
    group.clear();
    for (int first = 0; first < size; first += kAttentionTile) {
      __syncthreads();  // everyone is done with the tile before
      store_raw(raw, shared.keys);
      // Load what comes next while this tile is multiplied.
      if (first + kAttentionTile < size) {
        load_raw(raw, call, keys, index, first + kAttentionTile, size);
      } else if (index + 1 < group_end) {
        load_raw(raw, call, keys, index + 1, 0, keys.group_size(index + 1));
      }
      __syncthreads();
      attend_tile<kTiles>(group, shared, size - first);
    }
    if (index + 1 < group_end) size = keys.group_size(index + 1);
    if (whole) total.fold(group);
  }
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = first_head + 16 * i + 8 * half + g;
      if (head >= call.num_heads) continue;
      if (whole) {
        const float inverse = inverse_denominator(total.m[i][half], total.l[i][half], call.sink[head]);
        const float2* rope = call.rope + static_cast<std::int64_t>(row) * (kRopeDim / 2);
        auto* out = reinterpret_cast<std::uint32_t*>(
            call.out + (static_cast<std::int64_t>(row) * call.num_heads + head) * kHeadDim);
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          const int channel = 64 * warp + 8 * n + 2 * t;
          out[channel / 2] = finish_pair(total.o[i][n][2 * half], total.o[i][n][2 * half + 1], inverse, channel, rope);
        }
      } else {
        const std::int64_t at =
            (static_cast<std::int64_t>(row) * call.num_splits + group_begin) * call.num_heads + head;
        float* o = call.partial_o + at * kHeadDim;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          *reinterpret_cast<float2*>(o + 64 * warp + 8 * n + 2 * t) =
              make_float2(group.o[i][n][2 * half], group.o[i][n][2 * half + 1]);
        }
        if (warp == 0 && t == 0) call.partial_ml[at] = make_float2(group.m[i][half], group.l[i][half]);
      }
    }
  }
  if constexpr (kFolds) {
    const int num_groups = keys.num_groups();
    if (whole || !arrives_last(call, row, num_groups)) return;
    for (int i = tid; i < 16 * kTiles * (kHeadDim / 4); i += kAttentionThreads) {
      const int head = first_head + i / (kHeadDim / 4);
      if (head < call.num_heads) fold_groups(call, row, head, i % (kHeadDim / 4), num_groups);
    }
  }
}

// Folds a row's groups left to right, one block a (row, head), four channels a thread.
__global__ void __launch_bounds__(kHeadDim / 4) combine(const __grid_constant__ AttentionCall call) {
  admit_next_launch();
  const int row = static_cast<int>(blockIdx.x), num_groups = row_keys(call, row).num_groups();
  if (num_groups > call.num_splits) return;
  fold_groups(call, row, static_cast<int>(blockIdx.y), static_cast<int>(threadIdx.x), num_groups);
}

template <int kTiles, bool kSplit, bool kFolds>
void launch(const AttentionCall& call, const AttentionTiling& tiling, cudaStream_t stream) {
  static const cudaError_t raised =
      cudaFuncSetAttribute(attend<kTiles, kSplit, kFolds>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(attention_shared_bytes(kTiles)));
  static_cast<void>(raised);  // a failure shows as the launch's
  const dim3 grid(static_cast<unsigned>(call.rows.num_tokens),
                  static_cast<unsigned>((call.num_heads + 16 * kTiles - 1) / (16 * kTiles)),
                  static_cast<unsigned>(tiling.num_splits));
  attend<kTiles, kSplit, kFolds><<<grid, kAttentionThreads, tiling.shared_bytes, stream>>>(call);
}

enum class Groups : std::uint8_t { kWhole, kCombined, kFoldedOnArrival };

void run(ExecutionContext& context, const SparseAttentionPlan& plan, const SparseAttentionArgs& args, Groups groups) {
  const SparseAttentionDesc& d = plan.desc;
  FATHOM_CHECK(d.cache.kv.head_dim == kHeadDim && d.cache.kv.rope_dim == kRopeDim, "heads of 512 channels, 64 rotated");
  if (args.rows->num_tokens == 0) return;
  AttentionCall call = attention_call(plan, args);
  const AttentionTiling tiling = attention_tiling(call.rows.num_tokens, d.num_heads, d.cache.ratio, d.topk,
                                                  plan.shared_memory_per_block_bytes, groups != Groups::kWhole);
  call.num_splits = tiling.num_splits;
  const cudaStream_t stream = stream_of(context);
  if (!tiling.split) {
    if (tiling.head_tiles == 2) return launch<2, false, false>(call, tiling, stream);
    return launch<1, false, false>(call, tiling, stream);
  }
  const std::int64_t parts = static_cast<std::int64_t>(call.rows.num_tokens) * tiling.num_splits * d.num_heads;
  call.partial_o = reinterpret_cast<float*>(context.scratch);
  call.partial_ml = reinterpret_cast<float2*>(call.partial_o + parts * kHeadDim);
  if (groups == Groups::kFoldedOnArrival && call.rows.num_tokens > kAttentionCombineRows) {
    FATHOM_CHECK(context.num_arrivals >= plan.num_arrivals, "arrivals cover the plan's");
    call.arrivals = context.arrivals;
    return launch<1, true, true>(call, tiling, stream);
  }
  launch<1, true, false>(call, tiling, stream);
  combine<<<dim3(static_cast<unsigned>(call.rows.num_tokens), static_cast<unsigned>(d.num_heads)), kHeadDim / 4, 0,
            stream>>>(call);
}

}  // namespace

void sparse_attention_mma(ExecutionContext& context, const SparseAttentionPlan& plan, const SparseAttentionArgs& args) {
  run(context, plan, args, Groups::kWhole);
}

void sparse_attention_mma_splitk(ExecutionContext& context, const SparseAttentionPlan& plan,
                                 const SparseAttentionArgs& args) {
  run(context, plan, args, Groups::kCombined);
}

void sparse_attention_mma_splitk_arrival(ExecutionContext& context, const SparseAttentionPlan& plan,
                                         const SparseAttentionArgs& args) {
  run(context, plan, args, Groups::kFoldedOnArrival);
}

}  // namespace fathom::cuda
