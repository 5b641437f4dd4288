// sparse_attention/wgmma_whole (sm_90a; elsewhere, for at most 32 heads and for ratio 0, it runs `mma_splitk`): one
// block takes 64 heads of a row and all channels of their results, so a key is gathered, widened and multiplied with
// the queries once. Two warpgroups gather keys (wgmma_gather.cuh), two multiply (wgmma_tiles.cuh).
//
// A group's 128 keys lie in shared memory as two tiles of 64. Each multiplying warpgroup makes S and P of one tile;
// then both P meet the values of every second block of 64 channels, one block at a time: so a group's result needs 32
// registers a thread beside the 128 of the running one, and the keys of two blocks of channels make place for the next
// group's as soon as they have been used. Q K^T of the next group follows the gathering warps in the same order.
#include "ops/cuda/kernel_image.cuh"
#include "ops/cuda/ptx/mbarrier.cuh"
#include "ops/sparse_attention/wgmma_gather.cuh"

namespace fathom::cuda {

void sparse_attention_mma_splitk(ExecutionContext& context, const SparseAttentionPlan& plan,
                                 const SparseAttentionArgs& args);

namespace {

constexpr int kBlockThreads = kAttentionThreads + 256;  // those that multiply, those that gather

struct WholeCall {
  AttentionCall base;
  std::int32_t head_blocks, num_units;
};

#if FATHOM_HAS_WGMMA
constexpr int kThreads = kAttentionThreads;  // that multiply

struct Shared : GroupMemory {
  std::uint64_t *full, *empty;  // [4 steps of channels]: keys are there; nobody needs them any more

  explicit __device__ __forceinline__ Shared(unsigned char* memory)
      : GroupMemory(memory), full(reinterpret_cast<std::uint64_t*>(sums + 2 * 64)), empty(full + kGatherSteps) {}
};

__device__ __forceinline__ void sync_multipliers() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
// Once, when the first group is there: the gathering warps write where others have.
__device__ __forceinline__ void sync_all() { asm volatile("bar.sync 2, 512;" ::: "memory"); }

// The multiplying warpgroups' products with P take turns, so that one's run beside the other's sums.
__device__ __forceinline__ void wait_turn(int group) { asm volatile("bar.sync %0, 256;" ::"r"(3 + group) : "memory"); }
__device__ __forceinline__ void give_turn(int group) {
  asm volatile("bar.arrive %0, 256;" ::"r"(3 + (group ^ 1)) : "memory");
}

// This warp's share of a step is stored. It counts as so many of kGatherWarps.
__device__ __forceinline__ void leave_step(std::uint64_t* full, int num_warps) {
  fence_shared_stores();
  __syncwarp();
  if ((static_cast<int>(threadIdx.x) & 31) < num_warps) mbarrier_arrive(full);
}

// The steps of a block's very first group that a multiplying warpgroup brings: the reads of all wait together.
template <int kStep, int kNextStep>
__device__ __forceinline__ void bring_first(const AttentionCall& call, const RowKeys& keys, const Shared& shared) {
  const int own = static_cast<int>(threadIdx.x) & 127, first_key = own & ~31;
  const KeyTables tables = key_tables(call, keys.sequence);
  const KeyRecord record = find_record(call, find_block(call, tables, find_entry(keys, 0, own, true), true), true);
  KeyPieces<4> pieces, next;
#pragma unroll
  for (int p = 0; p < 4; ++p) pieces.load(record, kStep, p);
  if constexpr (kNextStep > 0) {
#pragma unroll
    for (int p = 0; p < 4; ++p) next.load(record, kNextStep, p);
  }
#pragma unroll
  for (int p = 0; p < 4; ++p) pieces.store(record, shared.keys, first_key, kStep, p);
  leave_step(shared.full + kStep, kGatherWarps / 4);
  if constexpr (kNextStep > 0) {
#pragma unroll
    for (int p = 0; p < 4; ++p) next.store(record, shared.keys, first_key, kNextStep, p);
    leave_step(shared.full + kNextStep, kGatherWarps / 4);
  }
}

// What the gathering warps do: groups in order, unit after unit. A step is read when the step before has been stored:
// reads that are on their way would hold up its stores and the fence behind them. What comes a group later sets off for
// the L2, from where a read takes a third of the time.
__device__ __forceinline__ void gather(const WholeCall& whole_call, const Shared& shared) {
  constexpr int kPasses = 16 / kGatherWarps, kWarpKeys = 8 * kPasses;
  const AttentionCall& call = whole_call.base;
  const int lane = static_cast<int>(threadIdx.x) & 31,
            first_key = __shfl_sync(0xffffffffu, (static_cast<int>(threadIdx.x) - kThreads) / 32 * kWarpKeys, 0),
            own = first_key + lane % kWarpKeys;
  const bool first_tile = first_key < kTileKeys;
  int parity = 0;  // of the phase of `empty` that the next group waits for
  bool first = true;
  for (int unit = static_cast<int>(blockIdx.x); unit < whole_call.num_units; unit += static_cast<int>(gridDim.x)) {
    const RowKeys keys = row_keys(call, unit / whole_call.head_blocks);
    const int num_groups = keys.num_groups();
    const KeyTables tables = key_tables(call, keys.sequence);
    KeyRecord record = find_record(call, find_block(call, tables, find_entry(keys, 0, own, true), true), true);
    KeyPieces<kPasses> pieces;
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
      if (first)
        pieces.load(record, 2, p);
      else
        pieces.load(record, 0, p);
    }
    KeyPlace place = find_block(call, tables, find_entry(keys, 1, own, num_groups > 1), false);
    std::int32_t entry = find_entry(keys, 2, own, num_groups > 2);
    int index = 0;
    if (first) {
      // The multiplying warpgroups bring its other steps.
      first = false;
#pragma unroll
      for (int p = 0; p < kPasses; ++p) pieces.store(record, shared.keys, first_key, 2, p);
      leave_step(shared.full + 2, 1);
      record = find_record(call, place, false);
      place = find_block(call, tables, entry, false);
      entry = find_entry(keys, 3, own, num_groups > 3);
#pragma unroll
      for (int p = 0; p < kPasses; ++p) pieces.load(record, 0, p);
#pragma unroll
      for (int step = 1; step < kGatherSteps; ++step) prefetch_record(record, step);
      sync_all();
      index = 1;
    }
    for (; index < num_groups; ++index, parity ^= 1) {
      const bool here = first_tile || keys.group_size(index) > kTileKeys;
      const KeyRecord next = find_record(call, place, false);
      place = find_block(call, tables, entry, false);
      entry = find_entry(keys, index + 3, own, index + 3 < num_groups);
#pragma unroll
      for (int step = 0; step < kGatherSteps; ++step) {
        mbarrier_wait(shared.empty + step, parity);
        if (here) {
#pragma unroll
          for (int p = 0; p < kPasses; ++p) pieces.store(record, shared.keys, first_key, step, p);
        }
        leave_step(shared.full + step, 1);
#pragma unroll
        for (int p = 0; p < kPasses; ++p) pieces.load(step < 3 ? record : next, (step + 1) % kGatherSteps, p);
        prefetch_record(next, step);
      }
      record = next;
    }
  }
}

// s (+)= Q K^T of 64 keys over the 128 channels of `step`, in flight.
__device__ __forceinline__ void multiply_keys(float (&s)[32], const unsigned char* q, const unsigned char* tile,
                                              int step) {
  std::uint64_t a = wgmma_operand(q, 16, 1024, WgmmaLayout::kSwizzle128),
                b = wgmma_operand(tile, 16, 1024, WgmmaLayout::kSwizzle128);
  asm volatile("" : "+l"(a), "+l"(b));  // operands are made here: kept ready they would spill
  wgmma_fence();
#pragma unroll
  for (int k = 8 * step; k < 8 * step + 8; ++k) {
    const auto at = static_cast<std::uint32_t>(k / 4 * kBlockBytes + k % 4 * 32);
    wgmma_m64k16(s, advance(a, at), advance(b, at), k > 0);
  }
  wgmma_commit();
}

// o (+)= P V of 64 keys for a block of 64 channels: two terms of P, 16 keys a step.
__device__ __forceinline__ void multiply_values(float (&o)[32], const unsigned char* probs, const unsigned char* values,
                                                bool add, int group) {
  std::uint64_t a = wgmma_operand(probs, 16, 1024, WgmmaLayout::kSwizzle128),
                b = wgmma_operand(values, kBlockBytes, 1024, WgmmaLayout::kSwizzle128);
  asm volatile("" : "+l"(a), "+l"(b));  // operands are made here: kept ready they would spill
  wait_turn(group);
  wgmma_fence();
#pragma unroll
  for (int n = 0; n < kTileKeys / 8; ++n) {
    const int k = n / 2, term = n % 2;
    wgmma_m64n64k16_transposed_b(o, advance(a, static_cast<std::uint32_t>(kBlockBytes * term + 32 * k)),
                                 advance(b, static_cast<std::uint32_t>(16 * 128 * k)), add || n > 0);
  }
  wgmma_commit();
  give_turn(group);
  wgmma_wait<0>();
  pin_registers(o);
}

// Heads 16 warp + g and + 8 of the block: what every thread that holds their o knows of the groups folded so far.
struct RowState {
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {};
};

// One group whose keys are there or on their way: one tile or two.
template <bool kTwo>
__device__ __forceinline__ void attend_group(float (&total)[128], RowState& state, const Shared& shared, int size,
                                             int parity) {
  const int tid = static_cast<int>(threadIdx.x), group = __shfl_sync(0xffffffffu, tid >> 7, 0), lane = tid & 31,
            head = 16 * (tid >> 5 & 3) + (lane >> 2);
  float s[32];
#pragma unroll
  for (int step = 0; step < kGatherSteps; ++step) {
    mbarrier_wait(shared.full + step, parity);
    multiply_keys(s, shared.q, shared.keys + group * kTileBytes, step);
  }
  wgmma_wait<0>();
  pin_registers(s);
  if (group == 0 || kTwo) find_peaks(s, shared.peaks + 64 * group, size - kTileKeys * group);
  sync_multipliers();
  float m0[2], m[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    m0[r] = m[r] = shared.peaks[head + 8 * r] * kLogitScale;
    if (kTwo) m[r] = fmaxf(m0[r], shared.peaks[64 + head + 8 * r] * kLogitScale);
  }
  if (group == 0 || kTwo) {
    const float own_m[2] = {group == 0 ? m0[0] : m[0], group == 0 ? m0[1] : m[1]};
    soften(s, own_m, shared.probs + group * 2 * kBlockBytes, shared.sums + 64 * group);
  }
  fence_shared_stores();
  sync_multipliers();
  float shrink[2];
  FoldFactors factors[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float l = shared.sums[head + 8 * r];
    shrink[r] = exp2_fast(m0[r] - m[r]);
    if (kTwo) l = add_tile_sum(l, shrink[r], shared.sums[64 + head + 8 * r]);
    factors[r] = fold_maximum(state.m[r], m[r]);
    state.l[r] = fold_value(state.l[r], l, factors[r]);
  }
#pragma unroll
  for (int step = 0; step < kGatherSteps; ++step) {
    const unsigned char* values = shared.keys + (2 * step + group) * kBlockBytes;
    float o[32];
    multiply_values(o, shared.probs, values, false, group);
    if (kTwo) {
#pragma unroll
      for (int i = 0; i < 32; ++i) o[i] *= shrink[i / 2 % 2];
      multiply_values(o, shared.probs + 2 * kBlockBytes, values + kTileBytes, true, group);
    }
    if (lane == 0) mbarrier_arrive(shared.empty + step);
#pragma unroll
    for (int i = 0; i < 32; ++i) total[32 * step + i] = fold_value(total[32 * step + i], o[i], factors[i / 2 % 2]);
  }
}

// What the multiplying warpgroups do.
__device__ __forceinline__ void attend(const WholeCall& whole_call, const Shared& shared) {
  const AttentionCall& call = whole_call.base;
  const int tid = static_cast<int>(threadIdx.x), group = __shfl_sync(0xffffffffu, tid >> 7, 0),
            head = 16 * (tid >> 5 & 3) + (tid >> 2 & 7);
  int parity = 0;                // of the phase of `full` that the next group waits for
  if (group == 1) give_turn(1);  // the first turn is the other's
  for (int unit = static_cast<int>(blockIdx.x); unit < whole_call.num_units; unit += static_cast<int>(gridDim.x)) {
    const int row = unit / whole_call.head_blocks, first_head = 64 * (unit % whole_call.head_blocks);
    const RowKeys keys = row_keys(call, row);
    const int num_groups = keys.num_groups();
    sync_multipliers();  // the unit before has left the queries' place
    load_queries(call, row, first_head, shared.q);
    if (unit == static_cast<int>(blockIdx.x)) {
      if (group == 0)
        bring_first<0, 3>(call, keys, shared);
      else
        bring_first<1, -1>(call, keys, shared);
      sync_all();
    }
    copy_async_wait<0>();
    fence_shared_stores();
    sync_multipliers();
    RowState state;
    float total[128];
#pragma unroll
    for (float& value : total) value = 0.0f;
    for (int index = 0; index < num_groups; ++index, parity ^= 1) {
      const int size = keys.group_size(index);
      if (size > kTileKeys) {
        attend_group<true>(total, state, shared, size, parity);
      } else {
        attend_group<false>(total, state, shared, size, parity);
      }
    }
    // The finished heads pass through the queries' place.
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r)
      inverse[r] =
          inverse_denominator(state.m[r], state.l[r], call.sink[min(first_head + head + 8 * r, call.num_heads - 1)]);
#pragma unroll
    for (int step = 0; step < kGatherSteps; ++step)
      finish_block(total + 32 * step, inverse, shared.q + (2 * step + group) * kBlockBytes);
    sync_multipliers();
    write_heads<8>(call, shared.q, row, first_head, 0);
  }
  if (group == 0) wait_turn(0);  // the last one given
}
#endif

// Grid: units or fewer; a unit is a row and 64 of its heads.
__global__ void __launch_bounds__(kBlockThreads, 1) attend_whole(const __grid_constant__ WholeCall call) {
#if FATHOM_HAS_WGMMA
  extern __shared__ unsigned char memory[];
  const Shared shared(memory);
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < kGatherSteps; ++i) {
      mbarrier_init(shared.full + i, kGatherWarps);
      mbarrier_init(shared.empty + i, kThreads / 32);
    }
  }
  __syncthreads();
  if (threadIdx.x >= kThreads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 48;");
    gather(call, shared);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
    attend(call, shared);
  }
#endif
}

}  // namespace

void sparse_attention_wgmma_whole(ExecutionContext& context, const SparseAttentionPlan& plan,
                                  const SparseAttentionArgs& args) {
  const SparseAttentionDesc& d = plan.desc;
  static const bool compiled = compiled_for_sm90(attend_whole) &&
                               cudaFuncSetAttribute(attend_whole, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                    static_cast<int>(kAttentionWholeSharedBytes)) == cudaSuccess;
  if (!compiled || !attention_uses_groups(d.num_heads, d.cache.ratio, plan.num_multiprocessors))
    return sparse_attention_mma_splitk(context, plan, args);
  FATHOM_CHECK(d.cache.kv.head_dim == kHeadDim && d.cache.kv.rope_dim == kRopeDim, "heads of 512 channels, 64 rotated");
  if (args.rows->num_tokens == 0) return;
  const auto head_blocks = static_cast<std::int32_t>(ceil_div(d.num_heads, 64));
  const WholeCall call{attention_call(plan, args), head_blocks,
                       static_cast<std::int32_t>(args.rows->num_tokens) * head_blocks};
  const auto blocks = static_cast<unsigned>(std::min(call.num_units, plan.num_multiprocessors));
  attend_whole<<<blocks, kBlockThreads, kAttentionWholeSharedBytes, stream_of(context)>>>(call);
}

}  // namespace fathom::cuda
