// linear/mma for a decode step's few rows: as many blocks as multiprocessors, each with a run of tiles of 32 weight
// rows, whose weights pass through a ring in shared memory that is refilled across tiles, so that the memory never
// waits for a tile's end. x is quantised and sorted into fragments once a block. The arithmetic is linear/mma's.
//
// A launch may begin while the one before still runs (launch_early.cuh): the first slot of every ring is asked for
// before x may be read. The others follow x, which they would otherwise be in the way of.
#include <algorithm>

#include "ops/cuda/card_limits.cuh"
#include "ops/cuda/launch_early.cuh"
#include "ops/cuda/ptx/copy_async.cuh"
#include "ops/cuda/weight_fragments.cuh"
#include "ops/linear/cuda_mma_stream.cuh"

namespace fathom::cuda {
namespace {

constexpr int kWarps = kLinearStreamWarps, kThreads = 32 * kWarps;
constexpr int kRows = kLinearStreamRows;
constexpr int kUnitPieces = 32 * 4;  // 16 bytes each: a warp's 16 rows, 128 bytes of each

// A warp's place in a tile's weights. Its units are 128 bytes of 16 rows: a chunk of codes, or half a chunk of bf16.
struct Place {
  int tile, unit, num_units;
  const std::uint8_t* rows[2];  // of the next unit
  bool fp8;
};

__device__ __forceinline__ int units_of_warp(const DeviceWeight& w, int part) {
  const int num_chunks = w.k / kLinearChunk;
  const int chunks = part < num_chunks ? (num_chunks - 1 - part) / kLinearWarps + 1 : 0;
  return w.format == WeightFormat::kBf16 ? 2 * chunks : chunks;
}

// The first unit of `tile` or, where this warp has none there, of a later one.
__device__ __forceinline__ void go_to(Place& place, const LinearGroup& group, int tile, int end, int warp, int lane) {
  const int part = warp % kLinearWarps, half = warp / kLinearWarps;
  for (place.tile = tile; place.tile < end; ++place.tile) {
    const LinearItem& item = item_of_tile(group, place.tile);
    place.num_units = units_of_warp(item.weight, part);
    if (place.num_units == 0) continue;
    place.unit = 0;
    place.fp8 = item.weight.format != WeightFormat::kBf16;
    const int width = place.fp8 ? 1 : 2;
    const int row = (place.tile - item.first_tile) * kRows + 16 * half + lane / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      place.rows[i] =
          item.weight.values +
          (static_cast<std::int64_t>(min(row + 8 * i, item.weight.n - 1)) * item.weight.k + part * kLinearChunk) *
              width +
          16 * (lane % 4);
    }
    return;
  }
}

// The unit at `place` to a slot of the ring, each lane what it will read itself; then the next place.
__device__ __forceinline__ void begin_unit(uint4* slot, Place& place, const LinearGroup& group, int end, int warp,
                                           int lane) {
  if (place.tile < end) {
#pragma unroll
    for (int i = 0; i < 4; ++i) copy_async_16_once(slot + 32 * i, place.rows[i / 2] + 64 * (i % 2));
    const int step = place.fp8 ? kLinearWarps * 128 : place.unit % 2 == 0 ? 128 : kLinearWarps * 256 - 128;
#pragma unroll
    for (const std::uint8_t*& row : place.rows) row += step;
    if (++place.unit == place.num_units) go_to(place, group, place.tile + 1, end, warp, lane);
  }
  copy_async_commit();
}

// What a tile reads of x: all chunks of its rows, in shared memory as fragments, [chunk][4][row][4 lanes] of 16 bytes.
struct Rows {
  const Bf16Bits* x;
  bool fp8, quantise;
  __device__ __forceinline__ bool operator==(const Rows& other) const {
    return x == other.x && fp8 == other.fp8 && quantise == other.quantise;
  }
};
__device__ __forceinline__ Rows rows_of(const LinearCall& call, const LinearItem& item, const Bf16Bits* quantised,
                                        int first_row) {
  const bool from_caller = item.quantise && quantised != nullptr;
  return {(from_caller ? quantised : call.x) + first_column(item, first_row), item.weight.format != WeightFormat::kBf16,
          item.quantise && !from_caller};
}

// Pieces of eight columns, sixteen lanes a chunk, kBatch of which a thread has on their way at once.
template <int kBatch>
struct Staging {
  int num_rows, num_chunks, row, chunk;  // of this thread's next piece
  uint4 pieces[kBatch];
  __device__ __forceinline__ Staging(int rows, int chunks)
      : num_rows(rows), num_chunks(chunks), row(0), chunk(static_cast<int>(threadIdx.x) / 16) {
    wrap(row, chunk);
  }
  __device__ __forceinline__ void wrap(int& r, int& c) const {
    while (c >= num_chunks) c -= num_chunks, ++r;
  }
  __device__ __forceinline__ void load(const Rows& rows, std::int64_t x_stride) {
    int r = row, c = chunk;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      pieces[b] = make_uint4(0, 0, 0, 0);
      if (r < num_rows)
        pieces[b] = *reinterpret_cast<const uint4*>(rows.x + r * x_stride + c * kLinearChunk + threadIdx.x % 16 * 8);
      c += kThreads / 16;
      wrap(r, c);
    }
  }
  __device__ __forceinline__ void store(const Rows& rows, uint4* staged) {
    const int q = static_cast<int>(threadIdx.x) % 16;
    const int j = rows.fp8 ? q / 8 * 2 + q % 2 : q / 4, t = rows.fp8 ? q / 2 % 4 : q % 4;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      std::uint32_t v[4] = {pieces[b].x, pieces[b].y, pieces[b].z, pieces[b].w};
      if (rows.quantise) {  // as one: lanes without a row have zeros
        std::uint32_t m = max_magnitude(max_magnitude(v[0], v[1]), max_magnitude(v[2], v[3]));
#pragma unroll
        for (int offset = 8; offset > 0; offset >>= 1) m = max_magnitude(m, __shfl_xor_sync(0xffffffffu, m, offset));
        simulate_aq<4>(v, pair_maximum(m));
      }
      if (rows.fp8) {  // columns paired like the codes of multiply_codes
        const std::uint32_t pairs[4] = {v[0], v[1], v[2], v[3]};
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          v[i] = __byte_perm(pairs[i], pairs[i + 1], 0x5410);
          v[i + 1] = __byte_perm(pairs[i], pairs[i + 1], 0x7632);
        }
      }
      if (row < num_rows) staged[((chunk * 4 + j) * num_rows + row) * 4 + t] = make_uint4(v[0], v[1], v[2], v[3]);
      chunk += kThreads / 16;
      wrap(row, chunk);
    }
  }
  // What `load` began, then the rest; warps come and go together.
  __device__ __forceinline__ void finish(const Rows& rows, std::int64_t x_stride, uint4* staged) {
    while (true) {
      store(rows, staged);
      if (!__any_sync(0xffffffffu, row < num_rows)) break;
      load(rows, x_stride);
    }
  }
};

__device__ __forceinline__ void multiply_codes(float (&total)[4], const uint4 (&raw)[4], const uint4* x, int x_step,
                                               float scale) {
  float part[4] = {};
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint4 low = raw[j], high = raw[2 + j];
    const std::uint32_t c0[4] = {low.x, low.y, low.z, low.w}, c1[4] = {high.x, high.y, high.z, high.w};
    const uint4 x0 = x[2 * j * x_step], x1 = x[(2 * j + 1) * x_step];
    const std::uint32_t columns[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      std::uint32_t a[4];
      e4m3_alternate_pairs(c0[i], a[0], a[2]);
      e4m3_alternate_pairs(c1[i], a[1], a[3]);
      mma_bf16(part, a, columns[2 * i], columns[2 * i + 1]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) total[i] += part[i] * scale;
}
__device__ __forceinline__ void multiply_half(float (&total)[4], const uint4 (&raw)[4], const uint4* x, int x_step) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint4 low = raw[j], high = raw[2 + j], columns = x[j * x_step];
    const std::uint32_t a[4] = {low.x, high.x, low.y, high.y}, b[4] = {low.z, high.z, low.w, high.w};
    mma_bf16(total, a, columns.x, columns.y);
    mma_bf16(total, b, columns.z, columns.w);
  }
}

// Scales of a tile's chunks that this warp has, one a lane, as they lie in memory.
__device__ __forceinline__ std::uint32_t load_scale(const LinearItem& item, int tile, int part, int lane, int tile_rows,
                                                    int step = kLinearWarps) {
  const DeviceWeight& w = item.weight;
  const int num_chunks = w.k / kLinearChunk, chunk = part + step * lane;
  if (w.format == WeightFormat::kBf16 || chunk >= num_chunks) return 0;
  const std::int64_t at = static_cast<std::int64_t>((tile - item.first_tile) * tile_rows / 128) * num_chunks + chunk;
  return w.f32_scale ? reinterpret_cast<const std::uint32_t*>(w.scale)[at] : w.scale[at];
}

__device__ __forceinline__ float scale_of(std::uint32_t bits, bool f32_scale) {
  return f32_scale ? __uint_as_float(bits) : e8m0_to_f32(static_cast<std::uint8_t>(bits));
}

template <int kDepth, int kBatch>
__global__ void __launch_bounds__(kThreads, 1)
    linear_stream(LinearCall call, const __grid_constant__ LinearGroup group, const Bf16Bits* quantised) {
  extern __shared__ uint4 memory[];
  admit_next_launch();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4, num_rows = call.num_tokens;
  uint4* ring = memory + warp * kDepth * kUnitPieces + lane;
  uint4* staged = memory + kWarps * kDepth * kUnitPieces;
  auto* partials = reinterpret_cast<float*>(staged + num_rows * (group.items[0].weight.k / 8));
  // Runs of tiles, the first blocks' one longer where they do not come out even.
  const auto num_tiles = static_cast<unsigned>(group.num_tiles);
  const int each = static_cast<int>(num_tiles / gridDim.x), longer = static_cast<int>(num_tiles % gridDim.x);
  const int block = static_cast<int>(blockIdx.x);
  const int begin = block * each + min(block, longer), end = begin + each + (block < longer ? 1 : 0);

  if (begin >= end) return;
  const int num_chunks = group.items[0].weight.k / kLinearChunk;
  const LinearItem& first = item_of_tile(group, begin);
  Rows have = rows_of(call, first, quantised, (begin - first.first_tile) * kRows);
  Staging<kBatch> staging(num_rows, num_chunks);
  Place place{};
  go_to(place, group, begin, end, warp, lane);
  begin_unit(ring, place, group, end, warp, lane);
  std::uint32_t next_scale = load_scale(first, begin, warp % kLinearWarps, lane, kRows);
  await_earlier_launches();
  staging.load(have, call.x_stride);
#pragma unroll
  for (int d = 1; d < kDepth; ++d) begin_unit(ring + d * kUnitPieces, place, group, end, warp, lane);
  bool staged_here = false;
  int slot = 0;
  for (int tile = begin; tile < end; ++tile) {
    const LinearItem& item = item_of_tile(group, tile);
    const int first_row = (tile - item.first_tile) * kRows;
    const bool fp8 = item.weight.format != WeightFormat::kBf16;
    const Rows want = rows_of(call, item, quantised, first_row);
    if (!staged_here || !(want == have)) {
      if (staged_here) {
        __syncthreads();  // nobody reads the rows before
        staging = Staging<kBatch>(num_rows, num_chunks);
        staging.load(want, call.x_stride);
      }
      have = want, staged_here = true;
      staging.finish(have, call.x_stride, staged);
      __syncthreads();
    }
    const std::uint32_t scales = next_scale;
    if (tile + 1 < end)
      next_scale = load_scale(item_of_tile(group, tile + 1), tile + 1, warp % kLinearWarps, lane, kRows);
    const int num_units = units_of_warp(item.weight, warp % kLinearWarps), x_step = 4 * num_rows;
    const uint4* x = staged + warp % kLinearWarps * 4 * x_step + min(g, num_rows - 1) * 4 + t;
    float total[4] = {};
    for (int unit = 0; unit < num_units; ++unit) {
      copy_async_wait<kDepth - 1>();
      uint4* from = ring + slot * kUnitPieces;
      const uint4 raw[4] = {from[0], from[32], from[64], from[96]};
      begin_unit(from, place, group, end, warp, lane);  // what a lane copies there, it alone has read
      if (fp8) {
        multiply_codes(total, raw, x, x_step, scale_of(__shfl_sync(0xffffffffu, scales, unit), item.weight.f32_scale));
        x += kLinearWarps * 4 * x_step;
      } else {
        multiply_half(total, raw, x, x_step);
        x += unit % 2 == 0 ? 2 * x_step : (kLinearWarps * 4 - 2) * x_step;
      }
      slot = slot + 1 == kDepth ? 0 : slot + 1;
    }
    float* partial = partials + (tile - begin) % 2 * (kWarps * 16 * 9);
#pragma unroll
    for (int i = 0; i < 4; ++i) partial[(warp * 16 + g + 8 * (i / 2)) * 9 + 2 * t + i % 2] = total[i];
    __syncthreads();  // a tile later everyone has read them
    const int row = static_cast<int>(threadIdx.x) % kRows, token = static_cast<int>(threadIdx.x) / kRows;
    if (token < num_rows && first_row + row < item.weight.n) {
      const int num_parts = min(item.weight.k / kLinearChunk, kLinearWarps);
      const float* parts = partial + (row / 16 * kLinearWarps * 16 + row % 16) * 9 + token;
      float sum = 0.0f;
      for (int p = 0; p < num_parts; ++p) sum += parts[p * 16 * 9];
      store_output(item, token, first_row + row, sum);
    }
  }
}

// Weights of at most eight chunks: a warp has all of its rows' sums, each of one chunk, so warps need not meet.
constexpr int kShortRows = 16;
template <int kDepth>
__global__ void __launch_bounds__(kThreads, 1)
    linear_stream_short(LinearCall call, const __grid_constant__ LinearGroup group, const Bf16Bits* quantised) {
  extern __shared__ uint4 memory[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4, num_rows = call.num_tokens, x_step = 4 * num_rows;
  uint4* ring = memory + warp * kDepth * kUnitPieces + lane;
  uint4* staged = memory + kWarps * kDepth * kUnitPieces;
  const int k = group.items[0].weight.k, num_chunks = k / kLinearChunk;
  admit_next_launch();
  const Rows rows = rows_of(call, group.items[0], quantised, 0);
  Staging<2> staging(num_rows, num_chunks);
  const int step = kWarps * static_cast<int>(gridDim.x);
  int tile = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  int load_tile = tile, load_chunk = 0;
  const std::uint8_t* from[2];
  const auto place_rows = [&] {
    if (load_tile >= group.num_tiles) return;
    const LinearItem& item = item_of_tile(group, load_tile);
    const int row = (load_tile - item.first_tile) * kShortRows + g;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      from[i] = item.weight.values + static_cast<std::int64_t>(min(row + 8 * i, item.weight.n - 1)) * k + 16 * t;
  };
  const auto begin_chunk = [&](uint4* slot) {
    if (load_tile < group.num_tiles) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        copy_async_16_once(slot + 32 * i, from[i / 2] + load_chunk * kLinearChunk + 64 * (i % 2));
      if (++load_chunk == num_chunks) {
        load_chunk = 0, load_tile += step;
        place_rows();
      }
    }
    copy_async_commit();
  };
  const auto scales_of_tile = [&](int at) {
    return at < group.num_tiles ? load_scale(item_of_tile(group, at), at, 0, lane, kShortRows, 1) : 0u;
  };
  place_rows();
  begin_chunk(ring);
  std::uint32_t next_scales = scales_of_tile(tile);
  await_earlier_launches();
  staging.load(rows, call.x_stride);
#pragma unroll
  for (int d = 1; d < kDepth; ++d) begin_chunk(ring + d * kUnitPieces);
  staging.finish(rows, call.x_stride, staged);
  __syncthreads();
  const uint4* my_x = staged + min(g, num_rows - 1) * 4 + t;
  int slot = 0;
  for (; tile < group.num_tiles; tile += step) {
    const LinearItem& item = item_of_tile(group, tile);
    const std::uint32_t scales = next_scales;
    next_scales = scales_of_tile(tile + step);
    float sum[4] = {};
    for (int chunk = 0; chunk < num_chunks; ++chunk) {
      copy_async_wait<kDepth - 1>();
      uint4* slot_of = ring + slot * kUnitPieces;
      const uint4 raw[4] = {slot_of[0], slot_of[32], slot_of[64], slot_of[96]};
      begin_chunk(slot_of);
      float total[4] = {};
      multiply_codes(total, raw, my_x + chunk * 4 * x_step, x_step,
                     scale_of(__shfl_sync(0xffffffffu, scales, chunk), item.weight.f32_scale));
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] += total[i];
      slot = slot + 1 == kDepth ? 0 : slot + 1;
    }
    const int first_row = (tile - item.first_tile) * kShortRows + g;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = 2 * t + i % 2, row = first_row + 8 * (i / 2);
      if (token < num_rows && row < item.weight.n) store_output(item, token, row, sum[i]);
    }
  }
}

using Kernel = void (*)(LinearCall, LinearGroup, const Bf16Bits*);

template <Kernel kKernel>
void launch(const LinearCall& call, const LinearGroup& group, const Bf16Bits* quantised, std::int64_t shared_bytes,
            const CardLimits& limits, cudaStream_t stream) {
  static const bool early = may_begin_early(kKernel);
  static const cudaError_t raised =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limits.shared_bytes);
  static_cast<void>(raised);  // a failure shows as the launch's
  launch_early(kKernel, early, dim3(static_cast<unsigned>(std::min(limits.num_multiprocessors, group.num_tiles))),
               kThreads, static_cast<std::size_t>(shared_bytes), stream, call, group, quantised);
}

// Whether every weight is of codes and reads the same columns of x alike.
bool reads_alike(std::span<const LinearItem> items) {
  for (const LinearItem& item : items) {
    if (item.weight.format == WeightFormat::kBf16 || item.group_rows > 0 || item.quantise != items[0].quantise)
      return false;
  }
  return true;
}

}  // namespace

bool launch_linear_stream(const LinearCall& call, std::span<const LinearItem> items, const Bf16Bits* quantised,
                          cudaStream_t stream) {
  static const CardLimits limits = card_limits();
  const int k = items.front().weight.k;
  std::int64_t num_rows = 0;
  bool has_codes = false, has_values = false;
  for (const LinearItem& item : items) {
    num_rows += item.weight.n;
    (item.weight.format == WeightFormat::kBf16 ? has_values : has_codes) = true;
  }
  const LinearFormats formats = !has_codes    ? LinearFormats::kValues
                                : !has_values ? LinearFormats::kCodes
                                              : LinearFormats::kBoth;
  const LinearStream kind =
      linear_stream_kind(call.num_tokens, num_rows, k, formats, reads_alike(items), limits.shared_bytes);
  if (kind == LinearStream::kNone) return false;
  if (kind == LinearStream::kShort) {
    launch<linear_stream_short<kLinearStreamShortDepth>>(
        call, make_linear_group(items, kShortRows), quantised,
        linear_stream_shared_bytes(kLinearStreamShortDepth, call.num_tokens, k), limits, stream);
    return true;
  }
  // Many pieces of x at once pay where a thread has many.
  const auto launch_tiles = call.num_tokens <= 2 ? launch<linear_stream<kLinearStreamDepth, 2>>
                                                 : launch<linear_stream<kLinearStreamDepth, 8>>;
  launch_tiles(call, make_linear_group(items, kRows), quantised,
               linear_stream_shared_bytes(kLinearStreamDepth, call.num_tokens, k), limits, stream);
  return true;
}

}  // namespace fathom::cuda
