// moe_experts/wgmma: the products and sums of `mma`, bit for bit, on warpgroups, for calls in which an expert has many
// rows (prompts). A warp turns its 16 weight rows' codes into the same fragments, in registers; one product takes 8 to
// 56 rows of x from shared memory where `mma` takes eight, so a code is read and turned once for all of them.
//
// One block a multiprocessor stays: it takes units of work, a tile of an item times some weight rows, until none is
// left. Rows of x lie in device memory as products read them (order_tiles), a unit's chunks one after another in the
// order of the sums, so that a ring of stages is kept full by one bulk copy a chunk. Codes go straight to registers,
// two chunks ahead, also into the next unit. A warp that asks for a product with an operand in registers waits until
// the tensor cores take it. So a quarter of a chunk is turned while the one before is multiplied, and the four
// warpgroups wait for chunks, not for each other. 128 registers a thread hold that for 56 rows and not for more.
//
// Up: rows g of a warp's fragment are of w1, rows g + 8 of w3, so they meet in the thread that gates them. Down: both
// are of w2. Chunks come in the order of mma's sums: p, p + 8, ... for each p, then the sums in ascending p.
#include <algorithm>
#include <type_traits>

#include "ops/cuda/card_limits.cuh"
#include "ops/cuda/kernel_image.cuh"
#include "ops/cuda/ptx/copy_async.cuh"
#include "ops/cuda/ptx/copy_bulk.cuh"
#include "ops/cuda/ptx/wgmma_registers.cuh"
#include "ops/moe_experts/tiles.cuh"

namespace fathom::cuda {

void moe_experts_mma(ExecutionContext& context, const MoeExpertsPlan& plan, const MoeExpertsArgs& args);

namespace {

constexpr int kWarpgroups = 4;
constexpr int kThreads = kWarpgroups * 128;
constexpr int kStages = 8;  // chunks of x; asked for kWarpgroups chunks ahead, by the warpgroups in turn
constexpr int kStageBytes = kMoeWgmmaTokens * kMoeChunk * 2;
constexpr int kMostItems = 2048;  // copied to shared memory where they fit
constexpr int kSharedBytes = 1024 + kStages * kStageBytes + kThreads * 16 + kWarpgroups * 2 * kMoeWgmmaTokens * 8 +
                             2 * kStages * 8 + kWarpgroups * 32 + kMostItems * 16;

// One launch: w1 and w3, or w2; of the experts or of the shared one.
struct Part {
  bool up;
  int width, num_tiles, num_chunks, shared_row;  // width of x or t; tiles of weight rows
  // From the values of the weight of rows g, of row g: to its scales, to row g + 8's values, from its scales to those.
  std::int64_t to_scales, to_high, to_high_scales;
};

#if FATHOM_HAS_WGMMA
// load_streaming of a half of a line whose other half is wanted only some chunks later: asked for with this one, it was
// fetched and gone again (4.4 GB read for w1 and w3 of 2.3).
__device__ __forceinline__ uint4 load_half_line(const void* pointer) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(pointer));
  return v;
}

// The work: item by item, in each the tiles of weight rows.
struct Work {
  const MoeItem* items;
  int num_items, num_tokens;
  bool shared;
  __device__ __forceinline__ MoeItem item(int i) const {
    if (!shared) return items[i];
    const int first = i * kMoeWgmmaSharedTokens;
    return {0, first, min(kMoeWgmmaSharedTokens, num_tokens - first), 0};
  }
};
__device__ __forceinline__ std::int64_t first_tile_row(const Part& part, const Work& work, int i, const MoeItem& it) {
  return work.shared ? part.shared_row + it.begin : moe_tile_row(it.begin, i);
}

// The weights of rows g and of rows g + 8.
template <WeightFormat kFormat>
__device__ __forceinline__ DeviceWeight low_weight(const MoeCall& call, int expert, bool up) {
  if constexpr (kFormat == WeightFormat::kFp8Block128)
    return up ? call.shared_w1 : call.shared_w2;
  else
    return up ? expert_matrix(call.experts, call.experts.w1, 0, expert)
              : expert_matrix(call.experts, call.experts.w2, 2, expert);
}
template <WeightFormat kFormat>
__device__ __forceinline__ DeviceWeight high_weight(const MoeCall& call, int expert, bool up) {
  if (!up) return low_weight<kFormat>(call, expert, up);
  if constexpr (kFormat == WeightFormat::kFp8Block128)
    return call.shared_w3;
  else
    return expert_matrix(call.experts, call.experts.w3, 1, expert);
}

// Where a lane's codes of its warp's row g of the fragment are, in some unit.
struct alignas(16) LaneRows {
  const std::uint8_t* values;  // of the weight
  std::uint32_t offset;

  template <WeightFormat kFormat>
  __device__ __forceinline__ static LaneRows of(const MoeCall& call, const Part& part, const Work& work, int unit) {
    using Place = RowPlace<kFormat>;
    const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, g = lane >> 2, t = lane & 3;
    const int tile = unit % part.num_tiles;
    const DeviceWeight weight = low_weight<kFormat>(call, work.item(unit / part.num_tiles).expert, part.up);
    int row = part.up ? tile * kMoeWgmmaUpRows + warp * 8 : tile * kMoeWgmmaDownRows + warp * 16;
    if (row >= weight.n) row = 0;  // nothing becomes of these sums
    return {weight.values,
            static_cast<std::uint32_t>((row + g) * (part.num_chunks * Place::kCodeBytes) + Place::kCodeBytes / 4 * t)};
  }
};

// Which chunk of the block's work a warpgroup asks for next: it asks for every kWarpgroups-th. In shared memory.
struct alignas(32) Asked {
  const unsigned char* tile;  // of the unit
  std::uint32_t bytes;        // a chunk
  int unit, step;
  __device__ __forceinline__ void find(const MoeCall& call, const Part& part, const Work& work) {
    const int i = unit / part.num_tiles;
    if (i >= work.num_items) return;
    const MoeItem it = work.item(i);
    bytes = static_cast<std::uint32_t>((work.shared ? kMoeWgmmaSharedTokens : (it.count + 7) / 8 * 8) * kMoeChunk * 2);
    tile = reinterpret_cast<const unsigned char*>(call.tiles) + first_tile_row(part, work, i, it) * part.width * 2;
  }
};

// The ring of chunks of x.
struct Ring {
  unsigned char* stages;
  std::uint64_t* full;  // kStages, then as many that say a stage is empty
  Asked* asked;         // this warpgroup's

  // Chunk `number` of the block's work, which `asked` names; one thread.
  __device__ __forceinline__ void ask(const MoeCall& call, const Part& part, const Work& work, unsigned number) const {
    if (asked->step >= part.num_chunks) {
      Asked at = *asked;
      while (at.step >= part.num_chunks) at.step -= part.num_chunks, at.unit += static_cast<int>(gridDim.x);
      at.find(call, part, work);
      *asked = at;
    }
    if (asked->unit < work.num_items * part.num_tiles) {
      const unsigned slot = number % kStages;
      const std::uint32_t bytes = asked->bytes;
      mbarrier_wait(&full[kStages + slot], static_cast<int>(~(number / kStages) & 1));  // an empty ring's count as read
      mbarrier_arrive_expecting(&full[slot], bytes);
      copy_bulk(stages + slot * kStageBytes, asked->tile + static_cast<std::int64_t>(asked->step) * bytes, bytes,
                &full[slot]);
    }
    asked->step += kWarpgroups;
  }
};

// A lane's codes and scales of a row and chunk.
template <WeightFormat kFormat>
__device__ __forceinline__ void load_codes(RowCodes<kFormat>& codes, const std::uint8_t* values,
                                           const std::uint8_t* scales) {
  if constexpr (kFormat == WeightFormat::kFp8Block128) {
    codes.first = load_streaming(values);
    codes.second = load_streaming(values + 16);
  } else {
    codes.codes = load_half_line(values);
    if constexpr (kFormat == WeightFormat::kMxfp4)
      codes.scale = __ldg(scales);
    else
      codes.scale = __ldg(reinterpret_cast<const std::uint16_t*>(scales));
  }
}
// Those of rows g and g + 8.
template <WeightFormat kFormat>
__device__ __forceinline__ void load_chunk(RowCodes<kFormat> (&codes)[2], const Part& part, const LaneRows& rows,
                                           int chunk) {
  using Place = RowPlace<kFormat>;
  const std::uint32_t at = rows.offset + static_cast<std::uint32_t>(chunk * Place::kCodeBytes);
  // A lane's scale lies as far on among the scales as its codes among the codes.
  constexpr std::uint32_t kPerScale = kFormat == WeightFormat::kMxfp4 ? 16 : 8;
  const std::uint8_t *values = rows.values + at, *scales = rows.values + part.to_scales + at / kPerScale;
  load_codes(codes[0], values, scales);
  load_codes(codes[1], values + part.to_high, scales + part.to_high_scales);
}

__device__ __forceinline__ void sync_warpgroup() {
  asm volatile("bar.sync %0, 128;" ::"r"(static_cast<int>(threadIdx.x) / 128 + 1) : "memory");
}

// A word of a chunk's codes as fragments: a quarter, 32 columns.
template <int kWord, WeightFormat kFormat>
__device__ __forceinline__ void turn(const RowCodes<kFormat> (&codes)[2], std::uint32_t (&a)[2][4]) {
  std::uint32_t p[4], q[4];
  codes[0].pairs(kWord, p);
  codes[1].pairs(kWord, q);
  a[0][0] = p[0], a[0][1] = q[0], a[0][2] = p[1], a[0][3] = q[1];
  a[1][0] = p[2], a[1][1] = q[2], a[1][2] = p[3], a[1][3] = q[3];
}
// A quarter's products, on their way after.
template <int kRegisters>
__device__ __forceinline__ void multiply(float (&d)[kRegisters], const std::uint32_t (&a)[2][4], std::uint64_t b,
                                         bool add) {
  wgmma_fence();
  wgmma_registers(d, a[0], b, add);
  wgmma_registers(d, a[1], advance(b, 32), true);
  wgmma_commit();
}
// Products read these registers until here.
__device__ __forceinline__ void keep(std::uint32_t (&a)[2][4]) {
  asm volatile("" : "+r"(a[0][0]), "+r"(a[0][1]), "+r"(a[0][2]), "+r"(a[0][3])::"memory");
  asm volatile("" : "+r"(a[1][0]), "+r"(a[1][1]), "+r"(a[1][2]), "+r"(a[1][3])::"memory");
}

// All but the last kPending quarters are done, the one that read `a` too.
template <int kPending>
__device__ __forceinline__ void wait_products(std::uint32_t (&a)[2][4]) {
  wgmma_wait<kPending>();
  keep(a);
}

template <int kRows>
using Rows = std::integral_constant<int, kRows>;
// call(Rows<num_rows>): num_rows a multiple of eight, kMoeWgmmaTokens at most.
template <typename Call>
__device__ __forceinline__ void with_rows(int num_rows, const Call& call) {
  if (num_rows > 48)
    call(Rows<56>());
  else if (num_rows > 32)
    num_rows > 40 ? call(Rows<48>()) : call(Rows<40>());
  else if (num_rows > 16)
    num_rows > 24 ? call(Rows<32>()) : call(Rows<24>());
  else
    num_rows > 8 ? call(Rows<16>()) : call(Rows<8>());
}

// What becomes of a unit's sums: t from those of w1 and w3, or y from those of w2. Neighbouring rows' lanes swap halves
// of a pair of tokens, so that each writes two rows of one token.
template <int kTokens>
__device__ __forceinline__ void write_results(const float (&sum)[kTokens / 2], int num_rows, const MoeCall& call,
                                              bool up, int tile, const MoeTileRow* rows, float scale, float scale_3) {
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, g = lane >> 2, t = lane & 3;
  const bool odd = (g & 1) != 0;
  const int row = up ? tile * kMoeWgmmaUpRows + warp * 8 + (g & ~1) : tile * kMoeWgmmaDownRows + warp * 16 + (g & ~1);
  if (!up && row >= call.hidden) return;  // whole warps
  const int width = up ? call.intermediate : call.hidden;
  Bf16Bits* out = (up ? call.t : call.y) + row;
  const auto put = [&](int entry, std::uint32_t first, std::uint32_t second, int further) {
    const std::uint32_t other = __shfl_xor_sync(~0u, odd ? first : second, 4);
    const std::uint32_t pair = odd ? other | second << 16 : first | other << 16;
    if (entry >= 0) *reinterpret_cast<std::uint32_t*>(out + static_cast<std::int64_t>(entry) * width + further) = pair;
  };
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
    if (8 * j >= num_rows) break;
    const float* s = sum + 4 * j;
    const MoeTileRow first = rows[8 * j + 2 * t], second = rows[8 * j + 2 * t + 1];
    const int entry = odd ? second.entry : first.entry;
    if (up) {
      put(entry, gated(s[0] * scale, s[2] * scale_3, first.weight, call.limit),
          gated(s[1] * scale, s[3] * scale_3, second.weight, call.limit), 0);
    } else {
      put(entry, f32_to_bf16(s[0] * scale), f32_to_bf16(s[1] * scale), 0);
      put(entry, f32_to_bf16(s[2] * scale), f32_to_bf16(s[3] * scale), 8);
    }
  }
}

// A unit: 64 rows a warpgroup times the `num_rows` rows of the tile, kTokens at most. `even` and `odd` hold the codes
// of its first two chunks, later those of the next unit; `saved` is where this thread leaves the next unit's LaneRows.
template <WeightFormat kFormat, int kTokens>
__device__ __forceinline__ void run_unit(const MoeCall& call, const Part& part, const Work& work, int unit,
                                         int num_rows, const Ring& ring, unsigned& count, LaneRows& lane_rows,
                                         LaneRows* saved, RowCodes<kFormat> (&even)[2], RowCodes<kFormat> (&odd)[2],
                                         const MoeTileRow* rows) {
  constexpr bool kScaled = kFormat == WeightFormat::kFp8Block128;
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, tile = unit % part.num_tiles;
  const bool up = part.up;
  const int next_unit = unit + static_cast<int>(gridDim.x);
  *saved = LaneRows::of<kFormat>(call, part, work, next_unit < work.num_items * part.num_tiles ? next_unit : unit);
  float sum[kTokens / 2] = {}, total[kTokens / 2];
  const auto after = [&](int chunk) {
    return chunk + kMoeWarps < part.num_chunks ? chunk + kMoeWarps : chunk % kMoeWarps + 1;
  };
  int chunk = 0, ahead = after(after(0)), left = part.num_chunks;  // ahead: of the codes to be loaded
  const auto step = [&](RowCodes<kFormat>(&codes)[2], auto rows_of_x) {
    constexpr int kRows = decltype(rows_of_x)::value;
    const bool first = chunk < kMoeWarps;
    const unsigned slot = __shfl_sync(~0u, count % kStages, 0);  // so that operands stay in uniform registers
    // While one quarter of the chunk is multiplied the next is turned.
    std::uint32_t a[2][4], other[2][4];
    turn<0>(codes, a);
    mbarrier_wait(&ring.full[slot], static_cast<int>(count / kStages & 1));
    const std::uint64_t b = wgmma_operand(ring.stages + slot * kStageBytes, 16, 1024, WgmmaLayout::kSwizzle128);
    float chunk_sum[kTokens / 2];
    float(&d)[kRows / 2] = reinterpret_cast<float(&)[kRows / 2]>(kScaled ? chunk_sum : total);
    multiply(d, a, b, !kScaled && !first);
    turn<1>(codes, other);
    multiply(d, other, advance(b, 64), true);
    wait_products<1>(a);
    turn<2>(codes, a);
    multiply(d, a, advance(b, kRows * 128), true);
    wait_products<1>(other);
    turn<3>(codes, other);
    if (left == 2) lane_rows = *saved, ahead = 0;
    load_chunk(codes, part, lane_rows, ahead);
    ahead = after(ahead);
    [[maybe_unused]] float scale = 1.0f, scale_3 = 1.0f;
    if constexpr (kScaled) {
      const int row = up ? tile * kMoeWgmmaUpRows : min(tile * kMoeWgmmaDownRows + tid / 128 * 64, call.hidden - 64);
      scale = chunk_scale<kFormat>(up ? call.shared_w1 : call.shared_w2, row, chunk);
      scale_3 = up ? chunk_scale<kFormat>(call.shared_w3, row, chunk) : scale;
    }
    multiply(d, other, advance(b, kRows * 128 + 64), true);
    wait_products<0>(other);
    keep(a);
    pin_registers(d);
    if (lane == 0) mbarrier_arrive(&ring.full[kStages + slot]);
    if (tid % 128 == 0 && count % kWarpgroups == static_cast<unsigned>(tid / 128))
      ring.ask(call, part, work, count + kWarpgroups);
    ++count, --left;
    if constexpr (kScaled) {
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i)
        total[i] = (first ? 0.0f : total[i]) + chunk_sum[i] * (i % 4 < 2 ? scale : scale_3);
    }
    if (chunk + kMoeWarps >= part.num_chunks) {
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) sum[i] += total[i];
    }
    chunk = after(chunk);
  };
  while (left > 0) {
    const auto two = [&](auto rows_of_x) {
      step(even, rows_of_x);
      step(odd, rows_of_x);
    };
    if constexpr (kScaled)
      two(Rows<kMoeWgmmaSharedTokens>());
    else
      with_rows(num_rows, two);
  }
  float scale = 1.0f, scale_3 = 1.0f;
  if constexpr (!kScaled) {
    const int expert = work.item(unit / part.num_tiles).expert;
    scale = final_scale<kFormat>(low_weight<kFormat>(call, expert, up));
    scale_3 = final_scale<kFormat>(high_weight<kFormat>(call, expert, up));
  }
  copy_async_wait<0>();
  sync_warpgroup();
  write_results<kTokens>(sum, num_rows, call, up, tile, rows, scale, scale_3);
}
#endif

template <WeightFormat kFormat>
__global__ void __launch_bounds__(kThreads, 1)
    experts_grouped(const __grid_constant__ MoeCall call, const __grid_constant__ Part part) {
#if FATHOM_HAS_WGMMA
  extern __shared__ unsigned char unaligned[];
  unsigned char* memory = unaligned + (1024u - (shared_address(unaligned) & 1023u)) % 1024u;
  auto* all_saved = reinterpret_cast<LaneRows*>(memory + kStages * kStageBytes);
  auto* all_rows = reinterpret_cast<MoeTileRow*>(all_saved + kThreads);
  auto* full = reinterpret_cast<std::uint64_t*>(all_rows + kWarpgroups * 2 * kMoeWgmmaTokens);
  auto* all_asked = reinterpret_cast<Asked*>(full + 2 * kStages);
  auto* items = reinterpret_cast<MoeItem*>(all_asked + kWarpgroups);
  const int tid = static_cast<int>(threadIdx.x), warpgroup = tid / 128;
  constexpr bool kShared = kFormat == WeightFormat::kFp8Block128;
  const int num_items = kShared ? (call.num_tokens + kMoeWgmmaSharedTokens - 1) / kMoeWgmmaSharedTokens
                                : __reduce_max_sync(~0u, *call.num_items);
  const Work work{num_items > kMostItems ? call.items : items, num_items, call.num_tokens, kShared};
  const int end = num_items * part.num_tiles;
  if (!kShared && num_items <= kMostItems) {
    for (int i = tid; i < num_items; i += kThreads) items[i] = call.items[i];
  }
  if (tid == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(&full[i], 1);
      mbarrier_init(&full[kStages + i], kWarpgroups * 4);
    }
    fence_shared_stores();
  }
  __syncthreads();
  int unit = static_cast<int>(blockIdx.x);
  if (unit >= end) return;  // fewer items than there might be

  const Ring ring{memory, full, all_asked + warpgroup};
  if (tid % 128 == 0) {
    Asked first{nullptr, 0, unit, warpgroup};
    first.find(call, part, work);
    *ring.asked = first;
    ring.ask(call, part, work, static_cast<unsigned>(warpgroup));
  }
  LaneRows lane_rows = LaneRows::of<kFormat>(call, part, work, unit);
  RowCodes<kFormat> even[2], odd[2];
  load_chunk(even, part, lane_rows, 0);
  load_chunk(odd, part, lane_rows, kMoeWarps < part.num_chunks ? kMoeWarps : 1);
  unsigned count = 0;  // chunks multiplied
  MoeTileRow* rows = all_rows + warpgroup * 2 * kMoeWgmmaTokens;
  for (int other = 0; unit < end; unit += static_cast<int>(gridDim.x), other ^= 1) {
    const int i = unit / part.num_tiles;
    const MoeItem it = work.item(i);
    MoeTileRow* mine = rows + other * kMoeWgmmaTokens;
    const int num_rows = __reduce_max_sync(~0u, (it.count + 7) / 8 * 8);
    if (tid % 128 < num_rows / 2)
      copy_async_16(mine + tid % 128 * 2, call.tile_rows + first_tile_row(part, work, i, it) + tid % 128 * 2);
    copy_async_commit();
    constexpr int kTokens = kShared ? kMoeWgmmaSharedTokens : kMoeWgmmaTokens;
    run_unit<kFormat, kTokens>(call, part, work, unit, num_rows, ring, count, lane_rows, all_saved + tid, even, odd,
                               mine);
  }
#endif
}

template <WeightFormat kFormat>
Part make_part(const MoeCall& call, bool up) {
  Part part{};
  part.up = up;
  part.width = up ? call.hidden : call.intermediate;
  const int rows = up ? call.intermediate : call.hidden, tile_rows = up ? kMoeWgmmaUpRows : kMoeWgmmaDownRows;
  part.num_tiles = (rows + tile_rows - 1) / tile_rows;
  part.num_chunks = part.width / kMoeChunk;
  part.shared_row =
      static_cast<int>(moe_shared_tile_row(call.num_tokens, call.num_experts, call.topk, call.item_entries));
  using Place = RowPlace<kFormat>;
  part.to_high = 8 * part.num_chunks * Place::kCodeBytes;
  part.to_high_scales = 8 * part.num_chunks * Place::kScaleBytes;
  const DeviceExperts& experts = call.experts;
  if constexpr (kFormat == WeightFormat::kFp8Block128) {
    if (up) part.to_high = call.shared_w3.values - call.shared_w1.values;
  } else {
    const DeviceExperts::Matrix& low = up ? experts.w1 : experts.w2;
    part.to_scales = low.scale_offset - low.values_offset;
    if (up) {
      part.to_high = experts.w3.values_offset - experts.w1.values_offset;
      part.to_high_scales = experts.w3.scale_offset - experts.w1.scale_offset;
    }
  }
  return part;
}

template <WeightFormat kFormat>
void launch_part(const MoeCall& call, bool up, cudaStream_t stream) {
  static const cudaError_t raised =
      cudaFuncSetAttribute(experts_grouped<kFormat>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  static_cast<void>(raised);  // a failure shows as the launch's
  static const int multiprocessors = card_limits().num_multiprocessors;
  const Part part = make_part<kFormat>(call, up);
  const std::int64_t items = kFormat == WeightFormat::kFp8Block128
                                 ? (call.num_tokens + kMoeWgmmaSharedTokens - 1) / kMoeWgmmaSharedTokens
                                 : moe_max_pieces(call.num_tokens, call.num_experts, call.topk, call.item_entries);
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(items * part.num_tiles, multiprocessors));
  experts_grouped<kFormat><<<blocks, kThreads, kSharedBytes, stream>>>(call, part);
}

template <WeightFormat kFormat>
void launch_experts(const MoeCall& call, cudaStream_t stream) {
  constexpr WeightFormat kShared = WeightFormat::kFp8Block128;
  launch_group_entries(call, stream);
  launch_order_tiles(call, MoeTiles::kInput, stream);
  launch_part<kFormat>(call, true, stream);
  if (call.has_shared) launch_part<kShared>(call, true, stream);
  launch_order_tiles(call, MoeTiles::kIntermediate, stream);
  launch_part<kFormat>(call, false, stream);
  if (call.has_shared) launch_part<kShared>(call, false, stream);
  launch_sum_experts(call, stream);
}

}  // namespace

void moe_experts_wgmma(ExecutionContext& context, const MoeExpertsPlan& plan, const MoeExpertsArgs& args) {
  static const bool compiled = compiled_for_sm90(experts_grouped<WeightFormat::kMxfp4>);
  const MoeExpertsDesc& d = plan.desc;
  if (!compiled || !moe_uses_wgmma(args.x.shape[0], d.num_experts, d.topk) || d.hidden % (2 * kMoeChunk) != 0 ||
      d.intermediate % (2 * kMoeChunk) != 0)  // chunks go by twos
    return moe_experts_mma(context, plan, args);
  MoeCall call = make_moe_call(context, plan, args);
  FATHOM_CHECK(!call.has_shared || call.shared_w1.format == WeightFormat::kFp8Block128, "the shared expert is FP8");
  const MoeScratch s = moe_scratch(call.num_tokens, call.hidden, call.intermediate, call.num_experts, call.topk);
  call.tile_rows = reinterpret_cast<MoeTileRow*>(context.scratch + s.tile_rows);
  call.tiles = reinterpret_cast<Bf16Bits*>(context.scratch + s.tiles);
  call.t = reinterpret_cast<Bf16Bits*>(context.scratch + s.tiles_t);
  call.y = reinterpret_cast<Bf16Bits*>(context.scratch + s.tiles_y);
  call.item_entries = kMoeWgmmaTokens;
  if (call.experts.format == WeightFormat::kMxfp4)
    return launch_experts<WeightFormat::kMxfp4>(call, stream_of(context));
  launch_experts<WeightFormat::kNvfp4>(call, stream_of(context));
}

}  // namespace fathom::cuda
