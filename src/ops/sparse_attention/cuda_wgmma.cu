// sparse_attention/wgmma (sm_90a; elsewhere, for at most 32 heads and for ratio 0, it runs `mma_splitk`): one block
// takes 64 heads and half of the channels of their results, so both products run on warpgroups and a group's result and
// the running one fit in registers.
//
// A group's 128 keys lie in shared memory as two tiles of 64 (wgmma_tiles.cuh). Each warpgroup multiplies Q K^T for one
// tile and turns it into P, as two bf16 terms; then it multiplies the P of both tiles with 128 channels. The next
// group's records are on their way from the pools meanwhile, and are widened into place as soon as a part of this
// group's keys is no longer needed: at once where the channels are the other block's, after the first tile's product,
// after the second's.
//
// Groups of 128 keys fold left to right by one formula, whoever folds them: the block that has a row's first groups in
// registers; blocks of a split row that have later ones leave each as (m, l, o), and the block of a row that ends last
// folds these. So a row's bits do not depend on how many blocks it got; all arithmetic is group_softmax.cuh's.
#include "ops/cuda/kernel_image.cuh"
#include "ops/sparse_attention/raw_key.cuh"
#include "ops/sparse_attention/wgmma_tiles.cuh"

namespace fathom::cuda {

void sparse_attention_mma_splitk(ExecutionContext& context, const SparseAttentionPlan& plan,
                                 const SparseAttentionArgs& args);

namespace {

constexpr int kThreads = 256;
constexpr int kChannels = kHeadDim / 2;      // of a block
constexpr int kSlotValues = 64 * kChannels;  // fp32 results of one group and 64 heads

struct WgmmaCall {
  AttentionCall base;
  float4* slots;    // [slot][16][256 threads]: results in accumulator order
  float2* slot_ml;  // [slot][64 heads]
  std::int32_t head_blocks, num_units, slots_per_unit;
};

#if FATHOM_HAS_WGMMA
// Blocks of a split row take runs of groups; the first takes the most.
__device__ __forceinline__ int first_group(int block, int num_blocks, int num_groups) {
  return (block * num_groups + num_blocks - 1) / num_blocks;
}

// The thread's key of a tile on its way: which entry (position in the window) it is is read three groups ahead, its
// block two, its record one. Entry -1: the tile has no such key.
struct KeyPlace {
  std::int32_t entry = -1, block = 0;
};

// Keys [first, first + 64) of a group.
__device__ __forceinline__ std::int32_t find_entry(const RowKeys& keys, int group, int first) {
  const int i = first + static_cast<int>(threadIdx.x) / 4;
  if (i >= keys.group_size(group)) return -1;
  if (group == 0) return keys.window_begin + i;
  const int j = (group - 1) * kAttentionGroup + i;
  return keys.selected != nullptr ? __ldg(keys.selected + j) : j;
}

__device__ __forceinline__ int entries_shift(const AttentionCall& call) { return call.cache.ratio == 4 ? 5 : 0; }

__device__ __forceinline__ KeyPlace find_block(const AttentionCall& call, const RowKeys& keys, std::int32_t entry,
                                               bool window) {
  KeyPlace place{entry, 0};
  if (entry >= 0 && window) {
    place.block = __ldg(call.rows.window_table + call.rows.window_offset[keys.sequence] +
                        entry / static_cast<int>(kBlockTokens) - call.rows.window_first[keys.sequence]);
  } else if (entry >= 0) {
    place.block =
        __ldg(call.rows.context_table + call.rows.context_offset[keys.sequence] + (entry >> entries_shift(call)));
  }
  return place;
}

// Where the thread's key lies; null: the tile has no such key.
struct RecordPlace {
  const std::uint8_t* data = nullptr;
  const std::uint8_t* scale = nullptr;
};

__device__ __forceinline__ RecordPlace find_record(const AttentionCall& call, const KeyPlace& place, bool window) {
  if (place.entry < 0) return {};
  const std::byte* pool = window ? call.pools.window : call.pools.context;
  const std::int64_t stride = window ? call.pools.window_block_bytes : call.pools.context_block_bytes;
  const std::int64_t offset = window ? call.cache.window_offset_bytes : call.cache.entry_offset_bytes;
  const int per_block = window ? static_cast<int>(kBlockTokens) : 1 << entries_shift(call);
  const int slot = place.entry & (per_block - 1);
  const auto* page = reinterpret_cast<const std::uint8_t*>(pool + place.block * stride + offset);
  return {page + slot * kRecordDataBytes, page + per_block * kRecordDataBytes + slot * kRecordScaleBytes};
}

// A thread's share of half of a record's channels on its way to shared memory: key tid / 4 of a tile, 16-byte pieces
// part + 4 j with part = tid % 4. Half 0 has codes j < 4; half 1 has codes j = 4 to 6 in places 0 to 2, then the
// rotated channels. Loads and stores are steps of their own because a warp stands still while the tensor cores take its
// next product: work between the products is free.
struct RawHalf {
  uint4 pieces[5];
  std::uint32_t scales;

  __device__ __forceinline__ void load_scales(const RecordPlace& at, int half) {
    scales = at.scale == nullptr ? 0u : __ldg(reinterpret_cast<const std::uint32_t*>(at.scale) + half);
  }
  // Piece j; with 3 of half 1 the piece after it, too.
  __device__ __forceinline__ void load(const RecordPlace& at, int half, int j) {
    load_one(at, half, j);
    if (j == 3 && half == 1) load_one(at, half, 4);
  }
  __device__ __forceinline__ void load(const RecordPlace& at, int half) {
    load_scales(at, half);
#pragma unroll
    for (int j = 0; j < 4; ++j) load(at, half, j);
  }
  __device__ __forceinline__ void store(unsigned char* tile, int half, int j) const {
    const int key = static_cast<int>(threadIdx.x) / 4, part = static_cast<int>(threadIdx.x) % 4;
    unsigned char* block = tile + (half * 4 + j) * kBlockBytes;
    if (j == 3 && half == 1) {
      *reinterpret_cast<uint4*>(block + swizzle_128(key, part)) = pieces[3];
      *reinterpret_cast<uint4*>(block + swizzle_128(key, part + 4)) = pieces[4];
    } else {
      uint4 low, high;
      widen_codes(pieces[j], scales >> (8 * j) & 0xffu, low, high);
      *reinterpret_cast<uint4*>(block + swizzle_128(key, 2 * part)) = low;
      *reinterpret_cast<uint4*>(block + swizzle_128(key, 2 * part + 1)) = high;
    }
    asm volatile("" ::: "memory");  // stays where it is
  }
  __device__ __forceinline__ void store(unsigned char* tile, int half) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) store(tile, half, j);
  }

 private:
  __device__ __forceinline__ void load_one(const RecordPlace& at, int half, int j) {
    uint4& piece = pieces[j];
    piece = make_uint4(0, 0, 0, 0);
    if (at.data == nullptr) return;
    const std::uint8_t* p = at.data + 256 * half + 64 * j + 16 * (static_cast<int>(threadIdx.x) % 4);
    if ((reinterpret_cast<std::uintptr_t>(p) & 15) == 0) {
      asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
                   : "l"(p));
    } else {
      asm volatile("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(piece.x), "=r"(piece.y) : "l"(p));
      asm volatile("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(piece.z), "=r"(piece.w) : "l"(p + 8));
    }
  }
};

// Heads 16 warp + g and + 8 of the block: what every thread that holds their o knows of them.
struct RowState {
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {};  // of the groups folded so far
  FoldFactors factors[2];                          // of the last fold
};

// s = Q K^T of 64 keys, in flight; `between`(k): what the thread does after product k of 32.
template <typename Between>
__device__ __forceinline__ void multiply_keys(float (&s)[32], const unsigned char* q, const unsigned char* keys,
                                              const Between& between) {
  const std::uint64_t a = wgmma_operand(q, 16, 1024, WgmmaLayout::kSwizzle128),
                      b = wgmma_operand(keys, 16, 1024, WgmmaLayout::kSwizzle128);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
    const auto at = static_cast<std::uint32_t>(k / 4 * kBlockBytes + k % 4 * 32);
    wgmma_m64k16(s, advance(a, at), advance(b, at), k > 0);
    between(k);
  }
  wgmma_commit();
}

// o += P V for 128 channels and 64 keys, in flight: two terms of P, 16 keys a step; `between`(n): after product n of 8.
template <typename Between>
__device__ __forceinline__ void multiply_values(float (&o)[64], const unsigned char* probs, const unsigned char* values,
                                                const Between& between) {
  const std::uint64_t a = wgmma_operand(probs, 16, 1024, WgmmaLayout::kSwizzle128),
                      b = wgmma_operand(values, kBlockBytes, 1024, WgmmaLayout::kSwizzle128);
  wgmma_fence();
#pragma unroll
  for (int n = 0; n < kTileKeys / 8; ++n) {
    const int k = n / 2, term = n % 2;
    wgmma_m64n128k16_transposed_b(o, advance(a, static_cast<std::uint32_t>(kBlockBytes * term + 32 * k)),
                                  advance(b, static_cast<std::uint32_t>(16 * 128 * k)), true);
    between(n);
  }
  wgmma_commit();
}

__device__ __forceinline__ void store_slot(const float (&o)[64], float4* slot) {
#pragma unroll
  for (int n = 0; n < 16; ++n) slot[n * kThreads] = make_float4(o[4 * n], o[4 * n + 1], o[4 * n + 2], o[4 * n + 3]);
}

// A group, or the first ones, that another block left: folds into what the thread has.
__device__ __forceinline__ void fold_slot(float (&total)[64], RowState& state, const float4* slot, const float2* ml) {
  float4 v[16];
#pragma unroll
  for (int n = 0; n < 16; ++n) v[n] = __ldcg(slot + n * kThreads);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float2 next = __ldcg(ml + 8 * r);
    const FoldFactors factors = fold_maximum(state.m[r], next.x);
    state.l[r] = fold_value(state.l[r], next.y, factors);
#pragma unroll
    for (int n = 0; n < 16; ++n) {
      const float* pair = &v[n].x + 2 * r;
      total[4 * n + 2 * r] = fold_value(total[4 * n + 2 * r], pair[0], factors);
      total[4 * n + 2 * r + 1] = fold_value(total[4 * n + 2 * r + 1], pair[1], factors);
    }
  }
}

// The block has left its results in scratch: whether it is the last of its unit's.
__device__ __forceinline__ bool arrives_last(std::uint32_t* counter, int num_blocks) {
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();  // the block's results before the counter
    is_last = atomicAdd(counter, 1u) == static_cast<unsigned>(num_blocks - 1);
    if (is_last) *counter = 0;
    __threadfence();  // the counter before other blocks' results
  }
  __syncthreads();
  return is_last;
}
#endif

// Grid (units or fewer, blocks of a unit); a unit is a row, 64 of its heads and half of the channels.
__global__ void __launch_bounds__(kThreads, 1) attend_groups(const __grid_constant__ WgmmaCall whole_call) {
#if FATHOM_HAS_WGMMA
  extern __shared__ unsigned char memory[];
  const AttentionCall& call = whole_call.base;
  const GroupMemory shared(memory);
  const int tid = static_cast<int>(threadIdx.x), group = tid >> 7, warp = tid >> 5 & 3, lane = tid & 31, g = lane >> 2,
            t = lane & 3, head = 16 * warp + g;
  const int num_blocks = static_cast<int>(gridDim.y), block = static_cast<int>(blockIdx.y);
  unsigned char *const tile0 = shared.keys, *const tile1 = shared.keys + kTileBytes;
  for (int unit = static_cast<int>(blockIdx.x); unit < whole_call.num_units; unit += static_cast<int>(gridDim.x)) {
    const int half = unit % 2, row = unit / 2 / whole_call.head_blocks,
              first_head = 64 * (unit / 2 % whole_call.head_blocks);
    __syncthreads();  // the unit before is done with shared memory
    load_queries(call, row, first_head, shared.q);
    const RowKeys keys = row_keys(call, row);
    const int num_groups = keys.num_groups();
    // A row with more groups than slots is folded whole by its first block.
    const bool alone = num_blocks == 1 || num_groups > whole_call.slots_per_unit;
    const int begin = alone ? 0 : first_group(block, num_blocks, num_groups);
    const int end = alone ? (block == 0 ? num_groups : 0) : first_group(block + 1, num_blocks, num_groups);
    if (begin >= end) return;  // only in grids with one unit a block
    const std::int64_t first_slot = static_cast<std::int64_t>(unit) * whole_call.slots_per_unit;
    RawHalf raw[2];
    RecordPlace record[2];  // of the group after the one at hand
    KeyPlace place[2];      // of the group after that
    std::int32_t entry[2];  // and after that
    {
      RawHalf other[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        entry[i] = find_entry(keys, begin, i * kTileKeys);
        place[i] = find_block(call, keys, entry[i], begin == 0);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        record[i] = find_record(call, place[i], begin == 0);
        raw[i].load(record[i], 0);
        other[i].load(record[i], 1);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) entry[i] = begin + 1 < end ? find_entry(keys, begin + 1, i * kTileKeys) : -1;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        place[i] = find_block(call, keys, entry[i], false);
        entry[i] = begin + 2 < end ? find_entry(keys, begin + 2, i * kTileKeys) : -1;
        raw[i].store(shared.keys + i * kTileBytes, 0);
        other[i].store(shared.keys + i * kTileBytes, 1);
      }
    }
    copy_async_wait<0>();
    RowState state;
    float total[64];
#pragma unroll
    for (float& value : total) value = 0.0f;
    for (int index = begin; index < end; ++index) {
      const int size = keys.group_size(index);
      const bool two = size > kTileKeys, has_next = index + 1 < end;  // without, zeros follow
      fence_shared_stores();
      __syncthreads();
      float s[32];
      if (has_next) {
#pragma unroll
        for (int i = 0; i < 2; ++i) record[i] = find_record(call, place[i], false);
      } else {
        record[0] = record[1] = {};
      }
      multiply_keys(s, shared.q, shared.keys + group * kTileBytes, [&](int k) {
        if (k % 4 == 1) raw[k / 16].load(record[k / 16], half ^ 1, k / 4 % 4);
        if (k % 16 == 3) raw[k / 16].load_scales(record[k / 16], half ^ 1);
      });
      wgmma_wait<0>();
      pin_registers(s);
      if (group == 0 || two) find_peaks(s, shared.peaks + 64 * group, size - kTileKeys * group);
      __syncthreads();
      float m0[2], m[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        m0[r] = m[r] = shared.peaks[head + 8 * r] * kLogitScale;
        if (two) m[r] = fmaxf(m0[r], shared.peaks[64 + head + 8 * r] * kLogitScale);
      }
      if (group == 0 || two) {
        const float own_m[2] = {group == 0 ? m0[0] : m[0], group == 0 ? m0[1] : m[1]};
        soften(s, own_m, shared.probs + group * 2 * kBlockBytes, shared.sums + 64 * group);
      }
      fence_shared_stores();
      __syncthreads();
      float shrink[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float l = shared.sums[head + 8 * r];
        shrink[r] = exp2_fast(m0[r] - m[r]);
        if (two) l = add_tile_sum(l, shrink[r], shared.sums[64 + head + 8 * r]);
        if (begin == 0) {
          state.factors[r] = fold_maximum(state.m[r], m[r]);
          state.l[r] = fold_value(state.l[r], l, state.factors[r]);
        } else if (group == 0 && t == 0) {
          whole_call.slot_ml[(first_slot + index) * 64 + head + 8 * r] = make_float2(m[r], l);
        }
      }
      const unsigned char* values = shared.keys + (4 * half + 2 * group) * kBlockBytes;
      float o[64] = {};
      // Channels that are the other block's make place for the next group's, whose other channels set off.
      multiply_values(o, shared.probs, values, [&](int n) {
        raw[n / 4].store(shared.keys + n / 4 * kTileBytes, half ^ 1, n % 4);
        raw[n / 4].load(record[n / 4], half, n % 4);
        if (n % 4 == 3) raw[n / 4].load_scales(record[n / 4], half);
      });
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        place[i] = index + 2 < end ? find_block(call, keys, entry[i], false) : KeyPlace{};
        entry[i] = index + 3 < end ? find_entry(keys, index + 3, i * kTileKeys) : -1;
      }
      wgmma_wait<0>();
      pin_registers(o);
      __syncthreads();  // everyone is done with the first tile
      if (two) {
#pragma unroll
        for (int i = 0; i < 64; ++i) o[i] *= shrink[i / 2 % 2];
        multiply_values(o, shared.probs + 2 * kBlockBytes, values + kTileBytes, [&](int n) {
          if (n >= 4) raw[0].store(tile0, half, n - 4);
        });
        wgmma_wait<0>();
        pin_registers(o);
        __syncthreads();  // and with the second
      } else {
        raw[0].store(tile0, half);
      }
      raw[1].store(tile1, half);
      if (begin == 0) {
#pragma unroll
        for (int i = 0; i < 64; ++i) total[i] = fold_value(total[i], o[i], state.factors[i / 2 % 2]);
      } else {
        store_slot(o, whole_call.slots + (first_slot + index) * (kSlotValues / 4) + tid);
      }
    }
    if (!alone) {
      float4* slots = whole_call.slots + first_slot * (kSlotValues / 4) + tid;
      float2* ml = whole_call.slot_ml + first_slot * 64 + head;
      if (begin == 0) {
        store_slot(total, slots);
        if (group == 0 && t == 0) {
          ml[0] = make_float2(state.m[0], state.l[0]);
          ml[8] = make_float2(state.m[1], state.l[1]);
        }
      }
      const int folded = first_group(1, num_blocks, num_groups);  // groups that slot 0 holds
      if (!arrives_last(call.arrivals + unit, num_blocks < num_groups ? num_blocks : num_groups)) return;
      for (int i = begin == 0 ? folded : 0; i < num_groups; i = i == 0 ? folded : i + 1)
        fold_slot(total, state, slots + i * (kSlotValues / 4), ml + i * 64);
    }
    // The finished heads pass through the queries' place, so that rows leave in whole lines.
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      inverse[r] =
          inverse_denominator(state.m[r], state.l[r], call.sink[min(first_head + head + 8 * r, call.num_heads - 1)]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) finish_block(total + 32 * i, inverse, shared.q + (2 * group + i) * kBlockBytes);
    __syncthreads();
    write_heads<4>(call, shared.q, row, first_head, 4 * half);
  }
#endif
}

}  // namespace

void sparse_attention_wgmma(ExecutionContext& context, const SparseAttentionPlan& plan,
                            const SparseAttentionArgs& args) {
  const SparseAttentionDesc& d = plan.desc;
  static const bool compiled = compiled_for_sm90(attend_groups) &&
                               cudaFuncSetAttribute(attend_groups, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                    static_cast<int>(kAttentionGroupsSharedBytes)) == cudaSuccess;
  if (!compiled || !attention_uses_groups(d.num_heads, d.cache.ratio, plan.num_multiprocessors))
    return sparse_attention_mma_splitk(context, plan, args);
  FATHOM_CHECK(d.cache.kv.head_dim == kHeadDim && d.cache.kv.rope_dim == kRopeDim, "heads of 512 channels, 64 rotated");
  if (args.rows->num_tokens == 0) return;
  WgmmaCall call{attention_call(plan, args), nullptr, nullptr, 0, 0, 0};
  const AttentionGroupsTiling tiling =
      attention_groups_tiling(args.rows->num_tokens, d.num_heads, d.cache.ratio, d.topk, plan.num_multiprocessors);
  call.head_blocks = tiling.head_blocks;
  call.num_units = 2 * static_cast<std::int32_t>(args.rows->num_tokens) * tiling.head_blocks;
  call.slots_per_unit = tiling.slots_per_unit;
  call.base.num_splits = tiling.blocks_per_unit;
  if (tiling.blocks_per_unit > 1) {
    FATHOM_CHECK(context.num_arrivals >= plan.num_arrivals && plan.num_arrivals >= call.num_units,
                 "arrivals cover the units");
    call.base.arrivals = context.arrivals;
  }
  call.slots = reinterpret_cast<float4*>(context.scratch);
  call.slot_ml = reinterpret_cast<float2*>(context.scratch + tiling.num_slots * kSlotValues * 4);
  const cudaStream_t stream = stream_of(context);
  attend_groups<<<dim3(static_cast<unsigned>(tiling.grid_units), static_cast<unsigned>(tiling.blocks_per_unit)),
                  kThreads, kAttentionGroupsSharedBytes, stream>>>(call);
}

}  // namespace fathom::cuda
