// sparse_attention/wgmma (sm_90a; elsewhere, and for at most 32 heads, it runs `mma_splitk`): one block takes 64
// heads, so a key is gathered and widened once for all of them, and both products run on warpgroups.
//
// A tile of 64 keys lies in shared memory as bf16, 128-byte swizzled: the same bytes are K for Q K^T and, channels
// contiguous, V for P V. The first warpgroup multiplies Q K^T while all threads widen the next tile; its softmax
// leaves P as two bf16 terms; then each warpgroup multiplies P with 256 of the channels, accumulators in registers,
// while the tile after next is on its way from the pools.
//
// Groups of 128 keys fold left to right by one formula, whoever folds them. A block that has a row's first groups
// folds them itself: the running result rests in scratch (it never leaves the L2) and only its owner touches it.
// Blocks of a split row that have later groups leave each as (m, l, o), and `combine` folds these. So a row's bits
// do not depend on how many blocks it got.
#include "ops/cuda/kernel_image.cuh"
#include "ops/cuda/ptx/wgmma.cuh"
#include "ops/sparse_attention/raw_key.cuh"
#include "ops/sparse_attention/row_keys.cuh"

namespace fathom::cuda {

void sparse_attention_mma_splitk(ExecutionContext& context, const SparseAttentionPlan& plan,
                                 const SparseAttentionArgs& args);

namespace {

constexpr int kThreads = 256;
constexpr int kSlotValues = 64 * kHeadDim;  // fp32 results of one group and 64 heads

struct WgmmaCall {
  AttentionCall base;
  float4* slots;    // [slot][32][256 threads]: results in accumulator order
  float2* slot_ml;  // [slot][64 heads]
  std::int32_t head_blocks, num_units, slots_per_unit;
};

// Blocks of a split row take runs of groups; the first takes the most.
__device__ __forceinline__ int first_group(int block, int num_blocks, int num_groups) {
  return (block * num_groups + num_blocks - 1) / num_blocks;
}

#if FATHOM_HAS_WGMMA
constexpr int kTileKeys = 64;
constexpr int kBlockBytes = 64 * 128;        // 64 rows of 64 channels
constexpr int kTileBytes = 8 * kBlockBytes;  // 64 rows of 512 channels

struct Tile {
  int group, first, size;  // keys [first, first + 64) of a group of `size`
};

// Where the thread's key of a tile lies: the block is looked up a tile earlier than the record is read.
struct KeyPlace {
  std::int32_t block = 0, slot = -1;  // slot -1: the tile has no such key
};

__device__ __forceinline__ KeyPlace find_key(const AttentionCall& call, const RowKeys& keys, const Tile& tile) {
  const int i = tile.first + static_cast<int>(threadIdx.x) / 4;
  if (i >= tile.size) return {};
  if (tile.group == 0) {
    const std::int32_t position = keys.window_begin + i;
    const std::int64_t at =
        call.rows.window_offset[keys.sequence] + position / kBlockTokens - call.rows.window_first[keys.sequence];
    return {__ldg(call.rows.window_table + at), position % kBlockTokens};
  }
  const int j = (tile.group - 1) * kAttentionGroup + i, per_block = kBlockTokens / call.cache.ratio;
  const std::int32_t entry = keys.selected != nullptr ? __ldg(keys.selected + j) : j;
  return {__ldg(call.rows.context_table + call.rows.context_offset[keys.sequence] + entry / per_block),
          entry % per_block};
}

__device__ __forceinline__ void load_raw(RawKey& raw, const AttentionCall& call, const KeyPlace& place, bool window) {
  const int part = static_cast<int>(threadIdx.x) % 4;
  if (place.slot < 0) return raw.clear();
  const std::byte* pool = window ? call.pools.window : call.pools.context;
  const std::int64_t stride = window ? call.pools.window_block_bytes : call.pools.context_block_bytes;
  const std::int64_t offset = window ? call.cache.window_offset_bytes : call.cache.entry_offset_bytes;
  const int per_block = window ? static_cast<int>(kBlockTokens) : static_cast<int>(kBlockTokens) / call.cache.ratio;
  const auto* page = reinterpret_cast<const std::uint8_t*>(pool + place.block * stride + offset);
  raw.load(page + place.slot * kRecordDataBytes, page + per_block * kRecordDataBytes + place.slot * kRecordScaleBytes,
           part);
}

__device__ __forceinline__ void store_raw(const RawKey& raw, unsigned char* tile) {
  const int key = static_cast<int>(threadIdx.x) / 4, part = static_cast<int>(threadIdx.x) % 4;
  const int at0 = swizzle_128(key, 2 * part), at1 = swizzle_128(key, 2 * part + 1);
#pragma unroll
  for (int j = 0; j < 7; ++j) {
    uint4 low, high;
    raw.widen(j, low, high);
    *reinterpret_cast<uint4*>(tile + j * kBlockBytes + at0) = low;
    *reinterpret_cast<uint4*>(tile + j * kBlockBytes + at1) = high;
  }
  *reinterpret_cast<uint4*>(tile + 7 * kBlockBytes + swizzle_128(key, part)) = raw.rope[0];
  *reinterpret_cast<uint4*>(tile + 7 * kBlockBytes + swizzle_128(key, part + 4)) = raw.rope[1];
}

__device__ __forceinline__ void load_queries(const AttentionCall& call, int row, int first_head, unsigned char* q) {
#pragma unroll 8
  for (int n = 0; n < 64 * 64 / kThreads; ++n) {
    const int i = n * kThreads + static_cast<int>(threadIdx.x), head = i / 64, piece = i % 64;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (first_head + head < call.num_heads) {
      v = __ldg(reinterpret_cast<const uint4*>(
                    call.q + (static_cast<std::int64_t>(row) * call.num_heads + first_head + head) * kHeadDim) +
                piece);
    }
    *reinterpret_cast<uint4*>(q + piece / 8 * kBlockBytes + swizzle_128(head, piece % 8)) = v;
  }
}

// Shared memory of a block, 1024-byte aligned as swizzled operands must be.
struct Shared {
  unsigned char *q, *keys, *probs;             // [1], [2 tiles], [2 terms of 64 x 64]
  float *rescale, *fold_a, *fold_b, *inverse;  // [64] each
};

// 2^x for x <= 0; what would be denormal is 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What the first warpgroup knows of its rows: heads 16 warp + g and + 8.
struct RowState {
  float m[2], l[2];              // of the group
  float total_m[2], total_l[2];  // of the groups folded so far
};

// The logits of a tile to P in shared memory; m, l and the factor by which earlier sums shrink.
__device__ __forceinline__ void soften(float (&s)[32], RowState& state, const Shared& shared, int num_keys,
                                       bool first) {
  const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2,
            t = lane & 3;
  float peak[2] = {-INFINITY, -INFINITY};
  if (num_keys < kTileKeys) {
#pragma unroll
    for (int i = 0; i < 32; ++i)
      if (i / 4 * 8 + 2 * t + (i & 1) >= num_keys) s[i] = -INFINITY;
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) peak[i / 2 % 2] = fmaxf(peak[i / 2 % 2], s[i]);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    peak[half] = fmaxf(peak[half], __shfl_xor_sync(0xffffffffu, peak[half], 1));
    peak[half] = fmaxf(peak[half], __shfl_xor_sync(0xffffffffu, peak[half], 2));
    const float before = first ? -INFINITY : state.m[half];
    const float m = fmaxf(before, peak[half] * kLogitScale), shrink = exp2_fast(before - m);
    const int row = 16 * warp + 8 * half + g;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      // P as the sum of two bf16 terms: one alone would cost 2e-3 of the result.
      const float p0 = exp2_fast(fmaf(s[4 * n + 2 * half], kLogitScale, -m)),
                  p1 = exp2_fast(fmaf(s[4 * n + 2 * half + 1], kLogitScale, -m));
      const std::uint32_t high = pack_bf16(p0, p1);
      const std::uint32_t low = pack_bf16(p0 - bf16_low(high), p1 - bf16_high(high));
      const int at = swizzle_128(row, n) + 4 * t;
      *reinterpret_cast<std::uint32_t*>(shared.probs + at) = high;
      *reinterpret_cast<std::uint32_t*>(shared.probs + kBlockBytes + at) = low;
      sum += (bf16_low(high) + bf16_low(low)) + (bf16_high(high) + bf16_high(low));
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    state.l[half] = (first ? 0.0f : state.l[half] * shrink) + sum;
    state.m[half] = m;
    if (t == 0) shared.rescale[row] = shrink;
  }
}

// The group is complete: its fold into the total, as factors for whoever holds o.
__device__ __forceinline__ void fold_rows(RowState& state, const Shared& shared, const AttentionCall& call,
                                          int first_head, bool only) {
  const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2,
            t = lane & 3;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = 16 * warp + 8 * half + g;
    if (only) {
      state.total_m[half] = state.m[half], state.total_l[half] = state.l[half];
    } else {
      const float peak = fmaxf(state.total_m[half], state.m[half]);
      const float a = exp2f(state.total_m[half] - peak), b = exp2f(state.m[half] - peak);
      state.total_m[half] = peak;
      state.total_l[half] = __fadd_rn(__fmul_rn(state.total_l[half], a), __fmul_rn(state.l[half], b));
      if (t == 0) shared.fold_a[row] = a, shared.fold_b[row] = b;
    }
    if (t == 0) {
      const float sink = call.sink[min(first_head + row, call.num_heads - 1)];
      shared.inverse[row] = inverse_denominator(state.total_m[half], state.total_l[half], sink);
    }
  }
}

// d += P V for 256 channels: two terms of P, 16 keys a step.
__device__ __forceinline__ void multiply_values(float (&o)[128], std::uint64_t probs, std::uint64_t values, bool add) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kTileKeys / 16; ++k) {
    const std::uint64_t v = advance(values, static_cast<std::uint32_t>(16 * 128 * k));
    wgmma_m64n256k16_transposed_b(o, advance(probs, static_cast<std::uint32_t>(32 * k)), v, add || k > 0);
    wgmma_m64n256k16_transposed_b(o, advance(probs, static_cast<std::uint32_t>(kBlockBytes + 32 * k)), v, true);
  }
  wgmma_commit();
}

// The finished heads pass through the queries' place, so that rows leave in whole lines.
__device__ __forceinline__ void write_out(const float (&o)[128], const Shared& shared, const AttentionCall& call,
                                          int row, int first_head) {
  const int tid = static_cast<int>(threadIdx.x), group = tid >> 7, warp = tid >> 5 & 3, lane = tid & 31, g = lane >> 2,
            t = lane & 3;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int head = 16 * warp + 8 * half + g;
    const float inverse = shared.inverse[head];
#pragma unroll
    for (int n = 0; n < 32; ++n) {
      *reinterpret_cast<std::uint32_t*>(shared.q + (4 * group + n / 8) * kBlockBytes + swizzle_128(head, n % 8) +
                                        4 * t) =
          pack_bf16(o[4 * n + 2 * half] * inverse, o[4 * n + 2 * half + 1] * inverse);
    }
  }
  __syncthreads();
  const float2* rope = call.rope + static_cast<std::int64_t>(row) * (kRopeDim / 2);
#pragma unroll 4
  for (int i = tid; i < 64 * 64; i += kThreads) {
    const int head = i / 64, piece = i % 64;
    if (first_head + head >= call.num_heads) break;
    uint4 v = *reinterpret_cast<const uint4*>(shared.q + piece / 8 * kBlockBytes + swizzle_128(head, piece % 8));
    if (piece >= kNopeDim / 8) {
      std::uint32_t* pair = &v.x;
#pragma unroll
      for (int e = 0; e < 4; ++e)
        pair[e] = finish_pair(bf16_low(pair[e]), bf16_high(pair[e]), 1.0f, 8 * piece + 2 * e, rope);
    }
    reinterpret_cast<uint4*>(call.out + (static_cast<std::int64_t>(row) * call.num_heads + first_head + head) *
                                            kHeadDim)[piece] = v;
  }
}
#endif

// Grid (units or fewer, blocks of a unit); a unit is a row and 64 of its heads.
__global__ void __launch_bounds__(kThreads, 1) attend_groups(const __grid_constant__ WgmmaCall whole_call) {
#if FATHOM_HAS_WGMMA
  extern __shared__ unsigned char memory[];
  const AttentionCall& call = whole_call.base;
  Shared shared;
  shared.q = memory + (1024u - (shared_address(memory) & 1023u)) % 1024u;
  shared.keys = shared.q + kTileBytes;
  shared.probs = shared.keys + 2 * kTileBytes;
  shared.rescale = reinterpret_cast<float*>(shared.probs + 2 * kBlockBytes);
  shared.fold_a = shared.rescale + 64, shared.fold_b = shared.rescale + 128, shared.inverse = shared.rescale + 192;
  const int tid = static_cast<int>(threadIdx.x), group = tid >> 7, warp = tid >> 5 & 3, lane = tid & 31, g = lane >> 2,
            t = lane & 3;
  const int num_blocks = static_cast<int>(gridDim.y), block = static_cast<int>(blockIdx.y);
  for (int unit = static_cast<int>(blockIdx.x); unit < whole_call.num_units; unit += static_cast<int>(gridDim.x)) {
    const int row = unit / whole_call.head_blocks, first_head = 64 * (unit % whole_call.head_blocks);
    const RowKeys keys = row_keys(call, row);
    const int num_groups = keys.num_groups();
    // A row with more groups than slots is folded whole by its first block.
    const bool alone = num_blocks == 1 || num_groups > whole_call.slots_per_unit;
    const int begin = alone ? 0 : first_group(block, num_blocks, num_groups);
    const int end = alone ? (block == 0 ? num_groups : 0) : first_group(block + 1, num_blocks, num_groups);
    if (begin >= end) return;  // only in grids with one unit a block
    const std::int64_t first_slot = num_blocks == 1 ? static_cast<std::int64_t>(blockIdx.x)
                                                    : static_cast<std::int64_t>(unit) * whole_call.slots_per_unit;
    const auto advance_tile = [&](Tile& tile) {
      tile.first += kTileKeys;
      if (tile.first < tile.size) return;
      tile = {tile.group + 1, 0, tile.group + 1 < end ? keys.group_size(tile.group + 1) : 0};
    };
    Tile tile{begin, 0, keys.group_size(begin)};
    Tile ahead = tile;  // the tile in `raw`; `place` is of the one after it
    RawKey raw;
    load_raw(raw, call, find_key(call, keys, ahead), begin == 0);
    advance_tile(ahead);
    KeyPlace place = ahead.group < end ? find_key(call, keys, ahead) : KeyPlace{};
    __syncthreads();  // the unit before is done with shared memory
    load_queries(call, row, first_head, shared.q);
    store_raw(raw, shared.keys);
    Tile beyond = ahead;
    if (ahead.group < end) {
      load_raw(raw, call, place, ahead.group == 0);
      advance_tile(beyond);
      if (beyond.group < end) place = find_key(call, keys, beyond);
    }
    RowState state{};
    float o[128];
    int buffer = 0;
    fence_shared_stores();
    while (tile.group < end) {
      __syncthreads();
      const bool opens = tile.first == 0, closes = tile.first + kTileKeys >= tile.size;
      const bool has_next = ahead.group < end;
      unsigned char* next = shared.keys + (buffer ^ 1) * kTileBytes;
      if (group == 0) {
        float s[32];
        const std::uint64_t q = wgmma_operand(shared.q, 16, 1024, WgmmaLayout::kSwizzle128);  // tiles of keys follow it
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 32; ++k) {
          const auto at = static_cast<std::uint32_t>(k / 4 * kBlockBytes + k % 4 * 32);
          wgmma_m64k16(s, advance(q, at), advance(q, at + static_cast<std::uint32_t>((buffer + 1) * kTileBytes)),
                       k > 0);
        }
        wgmma_commit();
        if (has_next) store_raw(raw, next);
        wgmma_wait<0>();
        pin_registers(s);
        soften(s, state, shared, tile.size - tile.first, opens);
        if (closes) fold_rows(state, shared, call, first_head, tile.group == begin || begin > 0);
      } else if (has_next) {
        store_raw(raw, next);
      }
      fence_shared_stores();
      __syncthreads();
      if (!opens) {
        const float shrink[2] = {shared.rescale[16 * warp + g], shared.rescale[16 * warp + g + 8]};
#pragma unroll
        for (int i = 0; i < 128; ++i) o[i] *= shrink[i / 2 % 2];
      }
      multiply_values(o, wgmma_operand(shared.probs, 16, 1024, WgmmaLayout::kSwizzle128),
                      wgmma_operand(shared.keys + buffer * kTileBytes + group * 4 * kBlockBytes, kBlockBytes, 1024,
                                    WgmmaLayout::kSwizzle128),
                      !opens);
      ahead = beyond;
      if (ahead.group < end) {
        load_raw(raw, call, place, ahead.group == 0);
        advance_tile(beyond);
        if (beyond.group < end) place = find_key(call, keys, beyond);
      }
      wgmma_wait<0>();
      pin_registers(o);
      if (closes) {
        const bool finished = alone && tile.group + 1 == end;
        float4* slot = whole_call.slots + (first_slot + (begin > 0 ? tile.group : 0)) * (kSlotValues / 4) + tid;
        if (begin == 0 && tile.group > 0) {
          const float a[2] = {shared.fold_a[16 * warp + g], shared.fold_a[16 * warp + g + 8]};
          const float b[2] = {shared.fold_b[16 * warp + g], shared.fold_b[16 * warp + g + 8]};
#pragma unroll
          for (int n = 0; n < 32; ++n) {
            if (n % 8 == 0) asm volatile("" ::: "memory");  // eight loads at a time: more would spill
            const float4 v = slot[n * kThreads];
            o[4 * n] = __fadd_rn(__fmul_rn(v.x, a[0]), __fmul_rn(o[4 * n], b[0]));
            o[4 * n + 1] = __fadd_rn(__fmul_rn(v.y, a[0]), __fmul_rn(o[4 * n + 1], b[0]));
            o[4 * n + 2] = __fadd_rn(__fmul_rn(v.z, a[1]), __fmul_rn(o[4 * n + 2], b[1]));
            o[4 * n + 3] = __fadd_rn(__fmul_rn(v.w, a[1]), __fmul_rn(o[4 * n + 3], b[1]));
          }
        }
        if (finished) {
          write_out(o, shared, call, row, first_head);
        } else {
#pragma unroll
          for (int n = 0; n < 32; ++n)
            slot[n * kThreads] = make_float4(o[4 * n], o[4 * n + 1], o[4 * n + 2], o[4 * n + 3]);
          if (!alone && group == 0 && t == 0) {
            float2* ml = whole_call.slot_ml + (first_slot + (begin > 0 ? tile.group : 0)) * 64 + 16 * warp + g;
            ml[0] = make_float2(state.total_m[0], state.total_l[0]);
            ml[8] = make_float2(state.total_m[1], state.total_l[1]);
          }
        }
      }
      advance_tile(tile);
      buffer ^= 1;
    }
  }
#endif
}

constexpr int kCombineParts = 8;  // blocks of a unit: four of the 32 pieces of every thread each

// Folds what the blocks of a row left, in group order.
__global__ void __launch_bounds__(kThreads) combine(const __grid_constant__ WgmmaCall whole_call) {
  const AttentionCall& call = whole_call.base;
  const int unit = static_cast<int>(blockIdx.x), row = unit / whole_call.head_blocks,
            first_head = 64 * (unit % whole_call.head_blocks);
  const int tid = static_cast<int>(threadIdx.x), group = tid >> 7, warp = tid >> 5 & 3, lane = tid & 31, g = lane >> 2,
            t = lane & 3;
  const int num_groups = row_keys(call, row).num_groups();
  if (num_groups > whole_call.slots_per_unit) return;              // written by its first block
  const int folded = first_group(1, call.num_splits, num_groups);  // groups that slot 0 holds
  const std::int64_t first_slot = static_cast<std::int64_t>(unit) * whole_call.slots_per_unit;
  constexpr int kPieces = 32 / kCombineParts;
  float4 values[kMaxSplitGroups][kPieces];
  float2 ml[kMaxSplitGroups][2];
#pragma unroll
  for (int i = 0; i < kMaxSplitGroups; ++i) {
    if (i > 0 && (i < folded || i >= num_groups)) continue;
    const float4* slot = whole_call.slots + (first_slot + i) * (kSlotValues / 4) + tid;
#pragma unroll
    for (int n = 0; n < kPieces; ++n) values[i][n] = slot[(static_cast<int>(blockIdx.y) * kPieces + n) * kThreads];
    ml[i][0] = whole_call.slot_ml[(first_slot + i) * 64 + 16 * warp + g];
    ml[i][1] = whole_call.slot_ml[(first_slot + i) * 64 + 16 * warp + g + 8];
  }
  float m[2] = {ml[0][0].x, ml[0][1].x}, l[2] = {ml[0][0].y, ml[0][1].y};
#pragma unroll
  for (int i = 1; i < kMaxSplitGroups; ++i) {
    if (i < folded || i >= num_groups) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float peak = fmaxf(m[half], ml[i][half].x), a = exp2f(m[half] - peak), b = exp2f(ml[i][half].x - peak);
      m[half] = peak;
      l[half] = __fadd_rn(__fmul_rn(l[half], a), __fmul_rn(ml[i][half].y, b));
#pragma unroll
      for (int n = 0; n < kPieces; ++n) {
        float* total = &values[0][n].x + 2 * half;
        const float* next = &values[i][n].x + 2 * half;
        total[0] = __fadd_rn(__fmul_rn(total[0], a), __fmul_rn(next[0], b));
        total[1] = __fadd_rn(__fmul_rn(total[1], a), __fmul_rn(next[1], b));
      }
    }
  }
  const float2* rope = call.rope + static_cast<std::int64_t>(row) * (kRopeDim / 2);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int head = first_head + 16 * warp + 8 * half + g;
    if (head >= call.num_heads) continue;
    const float inverse = inverse_denominator(m[half], l[half], call.sink[head]);
    auto* out = reinterpret_cast<std::uint32_t*>(call.out +
                                                 (static_cast<std::int64_t>(row) * call.num_heads + head) * kHeadDim);
#pragma unroll
    for (int n = 0; n < kPieces; ++n) {
      const int channel = 256 * group + 8 * (static_cast<int>(blockIdx.y) * kPieces + n) + 2 * t;
      const float* pair = &values[0][n].x + 2 * half;
      out[channel / 2] = finish_pair(pair[0], pair[1], inverse, channel, rope);
    }
  }
}

}  // namespace

void sparse_attention_wgmma(ExecutionContext& context, const SparseAttentionPlan& plan,
                            const SparseAttentionArgs& args) {
  const SparseAttentionDesc& d = plan.desc;
  static const bool compiled = compiled_for_sm90(attend_groups) &&
                               cudaFuncSetAttribute(attend_groups, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                    static_cast<int>(kAttentionGroupsSharedBytes)) == cudaSuccess;
  if (!compiled || !attention_uses_groups(d.num_heads, plan.num_multiprocessors))
    return sparse_attention_mma_splitk(context, plan, args);
  FATHOM_CHECK(d.cache.kv.head_dim == kHeadDim && d.cache.kv.rope_dim == kRopeDim, "heads of 512 channels, 64 rotated");
  if (args.rows->num_tokens == 0) return;
  WgmmaCall call{attention_call(plan, args), nullptr, nullptr, 0, 0, 0};
  const AttentionGroupsTiling tiling =
      attention_groups_tiling(args.rows->num_tokens, d.num_heads, d.cache.ratio, d.topk, plan.num_multiprocessors);
  call.head_blocks = tiling.head_blocks;
  call.num_units = static_cast<std::int32_t>(args.rows->num_tokens) * tiling.head_blocks;
  call.slots_per_unit = tiling.slots_per_unit;
  call.base.num_splits = tiling.blocks_per_unit;
  call.slots = reinterpret_cast<float4*>(context.scratch);
  call.slot_ml = reinterpret_cast<float2*>(context.scratch + tiling.num_slots * kSlotValues * 4);
  const cudaStream_t stream = stream_of(context);
  attend_groups<<<dim3(static_cast<unsigned>(tiling.grid_units), static_cast<unsigned>(tiling.blocks_per_unit)),
                  kThreads, kAttentionGroupsSharedBytes, stream>>>(call);
  if (tiling.blocks_per_unit > 1)
    combine<<<dim3(static_cast<unsigned>(call.num_units), kCombineParts), kThreads, 0, stream>>>(call);
}

}  // namespace fathom::cuda
