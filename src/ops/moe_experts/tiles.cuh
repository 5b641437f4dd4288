// The pieces of the tensor-core experts: 4-bit and FP8 codes as fragments, and one block's tile of w1 and w3 or of w2
// with its weights on the way through registers.
#pragma once

#include "ops/cuda/weight_fragments.cuh"
#include "ops/moe_experts/code_layout.h"
#include "ops/moe_experts/kernels.cuh"

namespace fathom::cuda {

inline constexpr int kMoeChunk = 128;
inline constexpr float kMoeUnfold = 0x1p30f;  // fragments carry 2^-30 so that 2^126 times any scale fits bf16

// Eight codes to four bf16 pairs (i, i + 4), times `scale` (2^126 for the bias times the block's scale).
__device__ __forceinline__ void scaled_pairs(std::uint32_t codes, std::uint32_t scale, std::uint32_t (&pairs)[4]) {
  device_pairs(codes, pairs);
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = mul_bf16x2(pairs[i], scale);
}

// Where lane t's 32 columns of a row lie, in the first chunk; later ones at fixed distances.
template <WeightFormat kFormat>
struct RowPlace {
  static constexpr int kCodeBytes = kFormat == WeightFormat::kFp8Block128 ? kMoeChunk : kMoeChunk / 2;
  static constexpr int kScaleBytes = kFormat == WeightFormat::kMxfp4 ? 4 : kFormat == WeightFormat::kNvfp4 ? 8 : 0;
  const std::uint8_t *values, *scales;
  __device__ __forceinline__ RowPlace(const DeviceWeight& w, int row, int t)
      : values(w.values + static_cast<std::int64_t>(row) * (w.k / kMoeChunk * kCodeBytes) + kCodeBytes / 4 * t),
        scales(w.scale + static_cast<std::int64_t>(row) * (w.k / kMoeChunk * kScaleBytes) + kScaleBytes / 4 * t) {}
  __device__ __forceinline__ void advance(int chunks) { values += chunks * kCodeBytes, scales += chunks * kScaleBytes; }
};

// One row's 32 columns of a chunk, as loaded.
template <WeightFormat kFormat>
struct RowCodes;

template <>
struct RowCodes<WeightFormat::kMxfp4> {
  uint4 codes;
  std::uint32_t scale;
  __device__ __forceinline__ void load(const RowPlace<WeightFormat::kMxfp4>& row, int chunk) {
    codes = load_streaming(row.values + chunk * row.kCodeBytes);
    scale = row.scales[chunk * row.kScaleBytes];
  }
  // Pairs of code words 2 q and 2 q + 1 (q = 0, 1): eight fragments.
  __device__ __forceinline__ void pairs(int word, std::uint32_t (&out)[4]) const {
    const std::uint32_t c = word == 0 ? codes.x : word == 1 ? codes.y : word == 2 ? codes.z : codes.w;
    scaled_pairs(c, scale * 0x00800080u + 96u * 0x00800080u, out);  // (scale + 96) << 7 in both halves
  }
};

template <>
struct RowCodes<WeightFormat::kNvfp4> {
  uint4 codes;
  std::uint32_t scale;  // two e4m3
  __device__ __forceinline__ void load(const RowPlace<WeightFormat::kNvfp4>& row, int chunk) {
    codes = load_streaming(row.values + chunk * row.kCodeBytes);
    scale = *reinterpret_cast<const std::uint16_t*>(row.scales + chunk * row.kScaleBytes);
  }
  __device__ __forceinline__ void pairs(int word, std::uint32_t (&out)[4]) const {
    const std::uint32_t code = word < 2 ? scale & 0xffu : scale >> 8;
    const std::uint32_t placed = (code & 0x7fu) << 4 | (code & 0x80u) << 8;
    // 2^120 for the bias of e4m3, then 2^96 for that of e2m1 less the folded 2^-30.
    const std::uint32_t factor = mul_bf16x2(mul_bf16x2(placed | placed << 16, 0x7b807b80u), 0x6f806f80u);
    const std::uint32_t c = word == 0 ? codes.x : word == 1 ? codes.y : word == 2 ? codes.z : codes.w;
    scaled_pairs(c, factor, out);
  }
};

template <>
struct RowCodes<WeightFormat::kFp8Block128> {
  uint4 first, second;
  __device__ __forceinline__ void load(const RowPlace<WeightFormat::kFp8Block128>& row, int chunk) {
    first = load_streaming(row.values + chunk * row.kCodeBytes);
    second = load_streaming(row.values + chunk * row.kCodeBytes + 16);
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
  return kFormat == WeightFormat::kFp8Block128 ? 1.0f : kMoeUnfold * w.scale_2;
}

// Which rows an item covers: entry i of the item and the row of x it reads.
struct Entries {
  const std::int32_t* list;  // null: the shared expert, all rows
  int count, shared_begin, topk;
  int first = 0;  // row of the shared expert's entry 0
  __device__ __forceinline__ int entry(int i) const { return list != nullptr ? list[i] : shared_begin + first + i; }
  __device__ __forceinline__ int token(int i) const { return list != nullptr ? list[i] / topk : first + i; }
};

// Eight rows of x through w1, w3 and the gate, from the warps' sums.
template <WeightFormat kFormat>
__device__ __forceinline__ void write_up_rows(const MoeCall& call, const DeviceWeight& w1, const DeviceWeight& w3,
                                              const Entries& entries, int first, int first_row, int num_parts,
                                              const float (*partial)[2][kMoeUpRows][9]) {
  const int tid = static_cast<int>(threadIdx.x);
  // A pair of threads an output: w1's sum and w3's.
  const int row = (tid >> 1) % kMoeUpRows, column = (tid >> 1) / kMoeUpRows, i = first + column;
  float sum_a = 0.0f;
  for (int p = 0; p < num_parts; ++p) sum_a += partial[p][tid & 1][row][column];
  const float sum_b = __shfl_down_sync(0xffffffffu, sum_a, 1);
  if ((tid & 1) == 0) {
    if (i < entries.count) {
      const int entry = entries.entry(i);
      const float weight = entries.list != nullptr ? call.expert_weights[entry] : 1.0f;
      call.t[static_cast<std::int64_t>(entry) * call.intermediate + first_row + row] =
          gated(sum_a * final_scale<kFormat>(w1), sum_b * final_scale<kFormat>(w3), weight, call.limit);
    }
  }
}

template <WeightFormat kFormat>
__device__ __forceinline__ void up_tile(const MoeCall& call, const DeviceWeight& w1, const DeviceWeight& w3,
                                        const Entries& entries, int tile, float (*partial)[2][kMoeUpRows][9]) {
  const int tid = static_cast<int>(threadIdx.x), warp = tid >> 5, lane = tid & 31, g = lane >> 2, t = lane & 3;
  const int first_row = tile * kMoeUpRows;
  const int num_chunks = w1.k / kMoeChunk, num_parts = min(num_chunks, kMoeWarps);
  for (int first = 0; first < entries.count; first += 8) {
    const Bf16Bits* x =
        call.x_quantised + static_cast<std::int64_t>(entries.token(min(first + g, entries.count - 1))) * call.hidden;
    float a[4] = {}, b[4] = {};
    RowPlace<kFormat> rows[4] = {
        {w1, first_row + g, t}, {w1, first_row + 8 + g, t}, {w3, first_row + g, t}, {w3, first_row + 8 + g, t}};
    RowCodes<kFormat> codes[4], next[4];
    const auto load = [&](RowCodes<kFormat>(&c)[4], int chunks) {
#pragma unroll
      for (int i = 0; i < 4; ++i) c[i].load(rows[i], chunks);
    };
    const auto multiply = [&](const RowCodes<kFormat>(&c)[4], const Bf16Bits* chunk_x, int chunk) {
      std::uint32_t columns[16];
      ColumnsE2m1::load(columns, chunk_x, t);
      if constexpr (kFormat == WeightFormat::kFp8Block128) {
        float part_a[4] = {}, part_b[4] = {};
        multiply_chunk<kFormat>(part_a, c[0], c[1], columns);
        multiply_chunk<kFormat>(part_b, c[2], c[3], columns);
        const float scale_a = chunk_scale<kFormat>(w1, first_row, chunk),
                    scale_b = chunk_scale<kFormat>(w3, first_row, chunk);
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] += part_a[i] * scale_a, b[i] += part_b[i] * scale_b;
      } else {
        multiply_chunk<kFormat>(a, c[0], c[1], columns);
        multiply_chunk<kFormat>(b, c[2], c[3], columns);
      }
    };
#pragma unroll
    for (RowPlace<kFormat>& row : rows) row.advance(warp);
    x += warp * kMoeChunk;
    if (warp < num_chunks) load(codes, 0);
    // Two chunks a turn: the registers of one are filled while the other's are multiplied, and none moves.
    for (int c = warp; c < num_chunks; c += 2 * kMoeWarps) {
      const bool second = c + kMoeWarps < num_chunks;
      if (second) load(next, kMoeWarps);
      multiply(codes, x, c);
      if (!second) break;
      if (c + 2 * kMoeWarps < num_chunks) load(codes, 2 * kMoeWarps);
      multiply(next, x + kMoeWarps * kMoeChunk, c + kMoeWarps);
#pragma unroll
      for (RowPlace<kFormat>& row : rows) row.advance(2 * kMoeWarps);
      x += 2 * kMoeWarps * kMoeChunk;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      partial[warp][0][g + 8 * (i / 2)][2 * t + i % 2] = a[i];
      partial[warp][1][g + 8 * (i / 2)][2 * t + i % 2] = b[i];
    }
    __syncthreads();
    write_up_rows<kFormat>(call, w1, w3, entries, first, first_row, num_parts, partial);
  }
}

// up_tile for the shared expert and more than eight rows: sixteen a pass, so that codes are widened half as often.
// Codes of the next chunk are loaded where those of this one were.
__device__ __forceinline__ void shared_up_tile(const MoeCall& call, const DeviceWeight& w1, const DeviceWeight& w3,
                                               const Entries& entries, int tile, float (*partial)[2][kMoeUpRows][9]) {
  constexpr WeightFormat kFormat = WeightFormat::kFp8Block128;
  const int tid = static_cast<int>(threadIdx.x), warp = tid >> 5, lane = tid & 31, g = lane >> 2, t = lane & 3;
  const int first_row = tile * kMoeUpRows;
  const int num_chunks = w1.k / kMoeChunk, num_parts = min(num_chunks, kMoeWarps);
  for (int first = 0; first < entries.count; first += 16) {
    const Bf16Bits* x[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      x[n] = call.x_quantised +
             static_cast<std::int64_t>(entries.token(min(first + 8 * n + g, entries.count - 1))) * call.hidden +
             warp * kMoeChunk;
    }
    float sum[2][2][4] = {};  // [w1, w3][rows 0 to 7, 8 to 15]
    RowPlace<kFormat> rows[2][2] = {{{w1, first_row + g, t}, {w1, first_row + 8 + g, t}},
                                    {{w3, first_row + g, t}, {w3, first_row + 8 + g, t}}};
    RowCodes<kFormat> codes[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      rows[i / 2][i % 2].advance(warp);
      if (warp < num_chunks) codes[i / 2][i % 2].load(rows[i / 2][i % 2], 0);
    }
    for (int c = warp; c < num_chunks; c += kMoeWarps) {
      std::uint32_t columns[2][16];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        ColumnsE2m1::load(columns[n], x[n], t);
        x[n] += kMoeWarps * kMoeChunk;
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        float part[2][4] = {};
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          std::uint32_t p[4], q[4];
          codes[m][0].pairs(word, p);
          codes[m][1].pairs(word, q);
          const std::uint32_t a0[4] = {p[0], q[0], p[1], q[1]}, a1[4] = {p[2], q[2], p[3], q[3]};
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            mma_bf16(part[n], a0, columns[n][4 * word], columns[n][4 * word + 1]);
            mma_bf16(part[n], a1, columns[n][4 * word + 2], columns[n][4 * word + 3]);
          }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          rows[m][i].advance(kMoeWarps);
          if (c + kMoeWarps < num_chunks) codes[m][i].load(rows[m][i], 0);
        }
        const float scale = chunk_scale<kFormat>(m == 0 ? w1 : w3, first_row, c);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[m][i / 4][i % 4] += part[i / 4][i % 4] * scale;
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < 8; ++i) partial[warp][i / 4][g + 8 * (i % 4 / 2)][2 * t + i % 2] = sum[i / 4][n][i % 4];
      __syncthreads();
      write_up_rows<kFormat>(call, w1, w3, entries, first + 8 * n, first_row, num_parts, partial);
    }
  }
}

template <WeightFormat kFormat, int kRows>
__device__ __forceinline__ void down_tile(const MoeCall& call, const DeviceWeight& w2, const Entries& entries, int tile,
                                          float (*partial)[kRows][9]) {
  constexpr int kTiles = kRows / 16;
  const int tid = static_cast<int>(threadIdx.x), warp = tid >> 5, lane = tid & 31, g = lane >> 2, t = lane & 3;
  const int first_row = tile * kRows;
  const int num_chunks = w2.k / kMoeChunk, num_parts = min(num_chunks, kMoeWarps);
  for (int first = 0; first < entries.count; first += 8) {
    const Bf16Bits* x =
        call.t + static_cast<std::int64_t>(entries.entry(min(first + g, entries.count - 1))) * call.intermediate;
    float acc[kTiles][4] = {};
    RowPlace<kFormat> rows[4] = {
        {w2, first_row + g, t}, {w2, first_row + 8 + g, t}, {w2, first_row + 16 + g, t}, {w2, first_row + 24 + g, t}};
    const std::int64_t group_bytes = static_cast<std::int64_t>(32) * (w2.k / kMoeChunk);
    RowCodes<kFormat> codes[2][2], next[2][2];
    const auto load = [&](RowCodes<kFormat>(&c)[2][2], int chunk, int m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        RowPlace<kFormat> row = rows[i];
        row.values += m / 2 * group_bytes * row.kCodeBytes, row.scales += m / 2 * group_bytes * row.kScaleBytes;
        c[i / 2][i % 2].load(row, chunk);
      }
    };
    if (warp < num_chunks) load(codes, warp, 0);
    for (int c = warp; c < num_chunks; c += kMoeWarps) {
      std::uint32_t columns[16];
      ColumnsE2m1::load(columns, x + c * kMoeChunk, t);
      if (call.quantise) simulate_aq_quad(columns);
      ColumnsE2m1::pair_like_codes(columns);
#pragma unroll
      for (int m = 0; m < kTiles; m += 2) {
        if (m + 2 < kTiles)
          load(next, c, m + 2);
        else if (c + kMoeWarps < num_chunks)
          load(next, c + kMoeWarps, 0);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if constexpr (kFormat == WeightFormat::kFp8Block128) {
            float part[4] = {};
            multiply_chunk<kFormat>(part, codes[i][0], codes[i][1], columns);
            const float scale = chunk_scale<kFormat>(w2, first_row + 16 * (m + i), c);
#pragma unroll
            for (int j = 0; j < 4; ++j) acc[m + i][j] += part[j] * scale;
          } else {
            multiply_chunk<kFormat>(acc[m + i], codes[i][0], codes[i][1], columns);
          }
          codes[i][0] = next[i][0], codes[i][1] = next[i][1];
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
    for (int o = tid; o < kRows * 8; o += kMoeWarps * 32) {
      const int row = o % kRows, i = first + o / kRows;
      if (i >= entries.count) continue;
      float sum = 0.0f;
      for (int p = 0; p < num_parts; ++p) sum += partial[p][row][o / kRows];
      call.y[static_cast<std::int64_t>(entries.entry(i)) * call.hidden + first_row + row] =
          f32_to_bf16(sum * final_scale<kFormat>(w2));
    }
  }
}

}  // namespace fathom::cuda
