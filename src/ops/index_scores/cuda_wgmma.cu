// index_scores/wgmma (sm_90a; elsewhere it runs `paged`): a warpgroup multiplies 64 keys, widened from their
// 4-bit pages straight into its registers, with all 64 heads of the query in shared memory; relu and the weighted
// sum over heads happen on the accumulators. Two warpgroups a block and two blocks a multiprocessor, so that one's
// widening and summing run beside another's products; the next tile's keys are on their way meanwhile.
//
// At few keys the chain position -> sequence -> table -> block -> key and the query are all the time there is: what a
// block reads first is asked for at once, guesses included, and the query is made ready while the keys are on their
// way.
#include "ops/cuda/kernel_image.cuh"
#include "ops/cuda/ptx/wgmma.cuh"
#include "ops/cuda/weight_fragments.cuh"
#include "ops/index_scores/index_keys.cuh"

namespace fathom::cuda {

void index_scores_paged(ExecutionContext& context, const IndexScoresPlan& plan, const IndexScoresArgs& args);

namespace {

constexpr int kThreads = kIndexGroups * 128;

#if FATHOM_HAS_WGMMA
constexpr int kRatio = 4;  // what has index keys

struct KeyRow {
  uint4 codes;
  std::uint32_t scale;
};

// Where a row's keys lie: its block table, resolved once.
struct KeyTable {
  const std::int32_t* blocks;
  const std::uint8_t* pages;
  std::int64_t block_bytes;

  static constexpr int kPerBlock = 32;
  __device__ __forceinline__ std::int32_t block_of(int entry) const { return __ldg(blocks + entry / kPerBlock); }
  // The record of `entry`, which lies in `block`.
  __device__ __forceinline__ KeyRow load(std::int32_t block, int entry, int t) const {
    const std::uint8_t* page = pages + block * block_bytes;
    const int slot = entry % kPerBlock;
    const std::uint8_t* p = page + slot * kIndexKeyDataBytes + 16 * t;
    const std::uint32_t scale = __ldg(page + kPerBlock * kIndexKeyDataBytes + slot * kIndexKeyScaleBytes + t);
    if ((reinterpret_cast<std::uintptr_t>(p) & 15) == 0) return {__ldg(reinterpret_cast<const uint4*>(p)), scale};
    // Where an odd number of 584-byte entries stands before the page, it is aligned to 8 bytes only.
    const uint2 low = __ldg(reinterpret_cast<const uint2*>(p)), high = __ldg(reinterpret_cast<const uint2*>(p + 8));
    return {make_uint4(low.x, low.y, high.x, high.y), scale};
  }
};

// K steps in the order in which keys widen: step 2 w + h, position 2 t + e holds column 32 t + 8 w + 2 h + 4 e, and
// position 8 + 2 t + e the column after it.
__device__ __forceinline__ void widen(const KeyRow& low, const KeyRow& high, std::uint32_t (&a)[8][4]) {
  // Exponents are those of small activations: 2^126 for the code's bias less 2^30 never leaves bf16's range.
  const std::uint32_t low_scale = (low.scale + 96u) << 7, high_scale = (high.scale + 96u) << 7;
  const std::uint32_t c0[4] = {low.codes.x, low.codes.y, low.codes.z, low.codes.w};
  const std::uint32_t c1[4] = {high.codes.x, high.codes.y, high.codes.z, high.codes.w};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    std::uint32_t p[4], r[4];
    e2m1_pairs(c0[w], low_scale | low_scale << 16, p);
    e2m1_pairs(c1[w], high_scale | high_scale << 16, r);
    a[2 * w][0] = p[0], a[2 * w][1] = r[0], a[2 * w][2] = p[1], a[2 * w][3] = r[1];
    a[2 * w + 1][0] = p[2], a[2 * w + 1][1] = r[2], a[2 * w + 1][2] = p[3], a[2 * w + 1][3] = r[3];
  }
}

// Piece `i` of the query: columns 8 w to 8 w + 7 of each 32, w = i % 4, of head i / 4; four lanes read 64 bytes of a
// row. As the products' other operand it lies per tile of 64 heads and K step as two planes of 64 rows of 16 bytes;
// those of a w are 32 bytes further on than those before, so that the lanes of a store meet different banks. Heads past
// the last repeat it; their weight is 0.
constexpr int kPlanesBytes = 4096 + 32;  // of a w

struct QueryPiece {
  uint4 v[4];

  __device__ __forceinline__ void load(const IndexCall& call, int token, int i) {
    const int head = min(i / 4, call.num_heads - 1);
    const Bf16Bits* from = call.q + (static_cast<std::int64_t>(token) * call.num_heads + head) * kIndexDim + i % 4 * 8;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(v[part].x), "=r"(v[part].y), "=r"(v[part].z), "=r"(v[part].w)
                   : "l"(from + 32 * part));
    }
  }
  __device__ __forceinline__ void store(unsigned char* q, int i) const {
    unsigned char* to = q + i / 256 * kIndexTileBytes + i % 4 * kPlanesBytes + i / 4 % 64 * 16;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const std::uint32_t pick = c % 2 == 0 ? 0x5410u : 0x7632u;
      std::uint32_t pairs[4];
#pragma unroll
      for (int part = 0; part < 4; ++part)
        pairs[part] = c < 2 ? __byte_perm(v[part].x, v[part].z, pick) : __byte_perm(v[part].y, v[part].w, pick);
      *reinterpret_cast<uint4*>(to + 1024 * c) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  }
};

// Reads whose place in the code is where they are asked for: the compiler puts plain ones behind the branch before
// their first use.
__device__ __forceinline__ std::int32_t read_now(const std::int32_t* p) {
  std::int32_t v;
  asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ std::int64_t read_now(const std::int64_t* p) {
  std::int64_t v;
  asm volatile("ld.global.nc.s64 %0, [%1];" : "=l"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ Bf16Bits read_now(const Bf16Bits* p) {
  Bf16Bits v;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(p));
  return v;
}
#endif

__global__ void __launch_bounds__(kThreads, 2) score_groups(const __grid_constant__ IndexCall call) {
#if FATHOM_HAS_WGMMA
  extern __shared__ __align__(128) unsigned char memory[];
  const int row = static_cast<int>(blockIdx.y), token = call.first_row + row;
  const int tid = static_cast<int>(threadIdx.x), group = tid >> 7, warp = tid >> 5, lane = tid & 31, g = lane >> 2,
            t = lane & 3;
  const int tiles = (call.num_heads + 63) / 64;
  unsigned char* q = memory;
  auto* weights = reinterpret_cast<float*>(memory + static_cast<std::size_t>(tiles) * kIndexTileBytes);
  const int step = static_cast<int>(gridDim.x) * kIndexGroupKeys * kIndexGroups;
  int first = (static_cast<int>(blockIdx.x) * kIndexGroups + group) * kIndexGroupKeys;
  const int warp_keys = 16 * (warp & 3);  // of a tile
  const int in_tile = warp_keys + g;      // this lane's rows: in_tile and in_tile + 8
  QueryPiece piece;
  piece.load(call, token, tid);
  const Bf16Bits weight =
      read_now(call.weights + static_cast<std::int64_t>(token) * call.num_heads + min(tid, call.num_heads - 1));
  // What tells where the first keys lie is guessed and read at once: a step of decoding has a row of each sequence, and
  // a lone sequence's table begins at 0. What was guessed wrong is read again.
  const int position = read_now(call.rows.positions + token);
  const int sequence = read_now(call.rows.sequence_of + token);
  const int likely = min(token, call.rows.num_sequences - 1);
  std::int64_t offset = read_now(call.rows.context_offset + likely);
  const int likely_entry = (first + warp_keys) / KeyTable::kPerBlock;
  const bool looked_up = call.rows.num_sequences == 1 && likely_entry < call.num_table_entries;
  std::int32_t block = looked_up ? read_now(call.rows.context_table + likely_entry) : 0;
  // No sequence is negative; asked here, it is read before the branch.
  const int compressed = (position + 1) / kRatio, visible = sequence < 0 || compressed <= call.topk ? 0 : compressed;
  KeyTable table{call.rows.context_table + offset,
                 reinterpret_cast<const std::uint8_t*>(call.pools.context) + call.cache.index_key_offset_bytes,
                 call.pools.context_block_bytes};
  KeyRow low{}, high{};
  // A tile of 64 keys lies in two blocks; they are looked up a tile before its keys are read, so that no load of a
  // key waits for one of the table.
  const auto find = [&](int at) { return table.block_of(min(at + warp_keys, visible - 1)); };
  const auto load = [&](int at, std::int32_t block) {
    // A warp's 16 keys lie in one block; those past the row's end repeat its last key.
    const int last = visible - 1;
    const int a = min(at + in_tile, last), b = min(at + in_tile + 8, last);
    low = table.load(block, a, t);
    high = table.load(block, b, t);
  };
  if (first < visible) {
    if (sequence != likely) {
      offset = read_now(call.rows.context_offset + sequence);
      table.blocks = call.rows.context_table + offset;
    }
    if (!looked_up || offset != 0 || first + warp_keys >= visible) block = find(first);
    load(first, block);
  }
  if (first + step < visible) block = find(first + step);
  piece.store(q, tid);
  if (tid < 64 * tiles) weights[tid] = tid < call.num_heads ? bf16_to_f32(weight) * call.weight_scale : 0.0f;
  for (int i = tid + kThreads; i < tiles * 256; i += kThreads) {
    piece.load(call, token, i);
    piece.store(q, i);
  }
  fence_shared_stores();
  __syncthreads();
  float* out = call.scores + row * call.stride;
  const std::uint64_t operand = wgmma_operand(q, 1024, 128, WgmmaLayout::kPlain);
  for (; first < visible; first += step) {
    std::uint32_t a[8][4];
    widen(low, high, a);
    if (first + step < visible) {
      load(first + step, block);
      if (first + 2 * step < visible) block = find(first + 2 * step);
    }
    float sums[2] = {};
    for (int tile = 0; tile < tiles; ++tile) {
      float s[32];
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        wgmma_m64n64k16_registers(
            s, a[k],
            advance(operand, static_cast<std::uint32_t>(tile * kIndexTileBytes + k / 2 * kPlanesBytes + k % 2 * 2048)),
            k > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      pin_registers(s);
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const float2 w = *reinterpret_cast<const float2*>(weights + 64 * tile + 8 * n + 2 * t);
        sums[0] += fmaxf(s[4 * n], 0.0f) * w.x + fmaxf(s[4 * n + 1], 0.0f) * w.y;
        sums[1] += fmaxf(s[4 * n + 2], 0.0f) * w.x + fmaxf(s[4 * n + 3], 0.0f) * w.y;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], 1);
      sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], 2);
      const int entry = first + in_tile + 8 * i;
      if (t == 0 && entry < visible) out[entry] = sums[i] * 0x1p30f;
    }
  }
#endif
}

}  // namespace

void index_scores_wgmma(ExecutionContext& context, const IndexScoresPlan& plan, const IndexScoresArgs& args) {
  static const bool compiled = compiled_for_sm90(score_groups);
  const IndexScoresDesc& d = plan.desc;
  if (!compiled) return index_scores_paged(context, plan, args);
  FATHOM_CHECK(d.cache.index_key.head_dim == kIndexDim && d.cache.ratio == 4 && d.num_heads <= kIndexMaxHeads,
               "index keys of 128 channels, at most 128 heads");
  const std::int64_t rows = args.scores.shape[0];
  if (rows == 0) return;
  const dim3 grid(static_cast<unsigned>(index_groups_per_row(rows, args.scores.shape[1], plan.num_multiprocessors)),
                  static_cast<unsigned>(rows));
  score_groups<<<grid, kThreads, index_groups_shared_bytes(d.num_heads), stream_of(context)>>>(index_call(plan, args));
}

}  // namespace fathom::cuda
