// The device side of compress_kv: a block pools, norms, rotates and packs the entry that its row closes, and keeps
// the row. `simt` and attention_rows/fused are made of these.
#pragma once

#include "ops/cuda/device_rows.cuh"
#include "ops/cuda/key_record.cuh"

namespace fathom::cuda {

struct CompressorRows {
  const float* u_raw;
  const float* g_raw;
  const float* ape;
  float* u_state;  // of this sequence's slab
  float* g_state;
  int row_width, slots, ratio;
};

// u and g of position p, channel c: from the step's rows where it is one of them, else from the slab.
struct CompressorSource {
  const DeviceRows& rows;
  const CompressorRows& r;
  int first_row, start;  // the sequence's first row of this step and its position

  __device__ __forceinline__ float u(int p, int c) const {
    return p >= start ? r.u_raw[static_cast<std::int64_t>(first_row + p - start) * r.row_width + c]
                      : r.u_state[static_cast<std::int64_t>(p % r.slots) * r.row_width + c];
  }
  __device__ __forceinline__ float g(int p, int c) const {
    return p >= start ? r.g_raw[static_cast<std::int64_t>(first_row + p - start) * r.row_width + c] +
                            r.ape[(p % r.ratio) * r.row_width + c]
                      : r.g_state[static_cast<std::int64_t>(p % r.slots) * r.row_width + c];
  }
};

__device__ __forceinline__ float pool_channel(const CompressorSource& source, int group, int ratio, int width,
                                              int channel) {
  const int begin = group * ratio;
  const bool overlap = ratio == 4;
  const int previous = overlap && group > 0 ? 4 : 0;
  float peak = -INFINITY;
  for (int i = -previous; i < ratio; ++i)
    peak = fmaxf(peak, source.g(begin + i, overlap && i >= 0 ? width + channel : channel));
  double denominator = 0.0, sum = 0.0;
  for (int i = -previous; i < ratio; ++i) {
    const int c = overlap && i >= 0 ? width + channel : channel;
    const double e = exp(static_cast<double>(source.g(begin + i, c)) - static_cast<double>(peak));
    denominator += e;
    sum += e * static_cast<double>(source.u(begin + i, c));
  }
  return static_cast<float>(sum / denominator);
}

// e^x for x <= 0 to 1e-11, without a branch: what a pooled value can show, an fp32 of it rounded to bf16, is 6e-8.
__device__ __forceinline__ double exp_of_negative(double x) {
  constexpr double kToInteger = 6755399441055744.0;  // 1.5 * 2^52: the integer stands in the low bits
  const double shifted = fma(x, 1.4426950408889634, kToInteger);
  const double r = fma(shifted - kToInteger, -0.6931471805599453, x);
  double e = 1.0 / 362880;
  e = fma(e, r, 1.0 / 40320);
  e = fma(e, r, 1.0 / 5040);
  e = fma(e, r, 1.0 / 720);
  e = fma(e, r, 1.0 / 120);
  e = fma(e, r, 1.0 / 24);
  e = fma(e, r, 1.0 / 6);
  e = fma(e, r, 0.5);
  e = fma(e, r, 1.0);
  e = fma(e, r, 1.0);
  const int high = __double2hiint(e) + (__double2loint(shifted) << 20);
  return x < -700.0 ? 0.0 : __hiloint2double(high, __double2loint(e));
}

// Four rows of a group, four neighbouring channels.
struct PooledRows {
  static constexpr int kRows = 4;
  float4 g[kRows], u[kRows];
};
// Rows first .. first + 3 of a group that begins at position `begin`; of the group before it where `first` is negative.
// `slot` is the first one's in the slab. Addresses are chosen without a branch, so that all loads are on their way at
// once.
__device__ __forceinline__ void load_rows(PooledRows& rows, const CompressorSource& source, int begin, int first,
                                          int slot, int channel) {
  const CompressorRows& r = source.r;
  float4 ape[PooledRows::kRows];
#pragma unroll
  for (int j = 0; j < PooledRows::kRows; ++j) {
    const int p = begin + first + j, kept = slot + j < r.slots ? slot + j : slot + j - r.slots;
    const bool fresh = p >= source.start;
    const std::int64_t at =
        static_cast<std::int64_t>(fresh ? source.first_row + p - source.start : kept) * r.row_width + channel;
    rows.g[j] = *reinterpret_cast<const float4*>((fresh ? r.g_raw : r.g_state) + at);
    rows.u[j] = *reinterpret_cast<const float4*>((fresh ? r.u_raw : r.u_state) + at);
    ape[j] =
        *reinterpret_cast<const float4*>(r.ape + (first < 0 ? first + j + r.ratio : first + j) * r.row_width + channel);
  }
#pragma unroll
  for (int j = 0; j < PooledRows::kRows; ++j) {
    const bool fresh = begin + first + j >= source.start;
    const float4 g = rows.g[j], a = ape[j];
    rows.g[j] = fresh ? make_float4(g.x + a.x, g.y + a.y, g.z + a.z, g.w + a.w) : g;
  }
}

// The same for four neighbouring channels, four rows at a time. The sums are those of weights relative to the largest
// so far.
__device__ __forceinline__ void pool_channels(const CompressorSource& source, int group, int ratio, int width,
                                              int channel, float (&pooled)[4]) {
  const int begin = group * ratio;
  const bool overlap = ratio == 4;
  const int second_half = overlap ? width : 0;
  float peak[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
  double denominator[4] = {}, sum[4] = {};
  const int first_of_all = overlap && group > 0 ? -PooledRows::kRows : 0;
  int slot = (begin + first_of_all) % source.r.slots;
  for (int first = first_of_all; first < ratio; first += PooledRows::kRows) {
    PooledRows rows;
    load_rows(rows, source, begin, first, slot, first < 0 ? channel : second_half + channel);
    slot += PooledRows::kRows;
    slot -= slot >= source.r.slots ? source.r.slots : 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float now = peak[k];
#pragma unroll
      for (int j = 0; j < PooledRows::kRows; ++j) now = fmaxf(now, (&rows.g[j].x)[k]);
      const double before = exp_of_negative(static_cast<double>(peak[k]) - static_cast<double>(now));
      denominator[k] *= before;
      sum[k] *= before;
      peak[k] = now;
#pragma unroll
      for (int j = 0; j < PooledRows::kRows; ++j) {
        const double e = exp_of_negative(static_cast<double>((&rows.g[j].x)[k]) - static_cast<double>(now));
        denominator[k] += e;
        sum[k] += e * static_cast<double>((&rows.u[j].x)[k]);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) pooled[k] = static_cast<float>(sum[k] / denominator[k]);
}

__device__ __forceinline__ CompressorSource make_source(const DeviceRows& rows, const CompressorRows& r, int sequence) {
  const int first_row = rows.sequence_begin[sequence];
  return {rows, r, first_row, rows.positions[first_row]};
}

__device__ __forceinline__ CompressorRows with_state(CompressorRows r, const DeviceRows& rows, const CachePools& pools,
                                                     std::int64_t u_offset, std::int64_t g_offset, int sequence) {
  std::byte* slab = pools.state + static_cast<std::int64_t>(rows.state_slot[sequence]) * pools.state_slot_bytes;
  r.u_state = reinterpret_cast<float*>(slab + u_offset);
  r.g_state = reinterpret_cast<float*>(slab + g_offset);
  return r;
}

// The step's last rows into the slab: only rows no later row of the step would overwrite. By a block.
template <int kThreads>
__device__ __forceinline__ void keep_row(const DeviceRows& rows, const CachePools& pools, CompressorRows r,
                                         std::int64_t u_offset, std::int64_t g_offset, int row) {
  const int sequence = rows.sequence_of[row], position = rows.positions[row];
  if (row + r.slots < rows.sequence_begin[sequence + 1]) return;
  r = with_state(r, rows, pools, u_offset, g_offset, sequence);
#pragma unroll 4
  for (int c = static_cast<int>(threadIdx.x); c < r.row_width; c += kThreads) {
    const std::int64_t from = static_cast<std::int64_t>(row) * r.row_width + c;
    const std::int64_t to = static_cast<std::int64_t>(position % r.slots) * r.row_width + c;
    r.u_state[to] = r.u_raw[from];
    r.g_state[to] = r.g_raw[from] + r.ape[(position % r.ratio) * r.row_width + c];
  }
}

// A block of kRecordThreads and its row; rows that close no group leave at once. Four channels a thread. `keeps`: the
// row enters the slab here too, which no emission of the step may be reading (emits_and_keeps says when).
__device__ __forceinline__ void emit_main_entry(const DeviceRows& rows, const CachePools& pools,
                                                const LayerCache& cache, CompressorRows r, const uint2* norm,
                                                const float* frequencies, float eps, bool keeps, int row) {
  const int t = static_cast<int>(threadIdx.x);
  const int position = rows.positions[row], sequence = rows.sequence_of[row];
  if (keeps) keep_row<kRecordThreads>(rows, pools, r, cache.main_u_offset_bytes, cache.main_g_offset_bytes, row);
  if ((position + 1) % cache.ratio != 0) return;
  const int group = position / cache.ratio;
  r = with_state(r, rows, pools, cache.main_u_offset_bytes, cache.main_g_offset_bytes, sequence);
  const CompressorSource source = make_source(rows, r, sequence);
  float v[4];
  pool_channels(source, group, cache.ratio, kHeadDim, 4 * t, v);
#pragma unroll
  for (float& value : v) value = round_bf16(value);
  norm_key(v, norm[t], eps);
  if (t >= kNopeDim / 4) {
    const int pair = (t - kNopeDim / 4) * 2;
    const float p = static_cast<float>(group * cache.ratio);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float angle = __fmul_rn(p, frequencies[pair + i]);
      rotate_pair(v[2 * i], v[2 * i + 1], accurate_angle(angle));
    }
  }
  const RecordAddress record = entry_record(rows, pools, cache, sequence, group);
  write_record(v, const_cast<std::uint8_t*>(record.data), const_cast<std::uint8_t*>(record.scale));
}

// The indexer's keys: 128 channels, one a thread; Hadamard through shared memory, FQ 32 in a warp.
__device__ __forceinline__ void emit_index_key(const DeviceRows& rows, const CachePools& pools, const LayerCache& cache,
                                               CompressorRows r, const Bf16Bits* norm, const float* frequencies,
                                               float eps, bool keeps, int row) {
  __shared__ float values[kIndexDim];
  const int t = static_cast<int>(threadIdx.x);
  const int position = rows.positions[row], sequence = rows.sequence_of[row];
  if (keeps) keep_row<kIndexDim>(rows, pools, r, cache.index_u_offset_bytes, cache.index_g_offset_bytes, row);
  if ((position + 1) % cache.ratio != 0) return;
  const int group = position / cache.ratio;
  r = with_state(r, rows, pools, cache.index_u_offset_bytes, cache.index_g_offset_bytes, sequence);
  const CompressorSource source = make_source(rows, r, sequence);
  float v = round_bf16(pool_channel(source, group, cache.ratio, kIndexDim, t));
  const double factor =
      1.0 / sqrt(block_sum_f64<kIndexDim>(static_cast<double>(v) * v) / kIndexDim + static_cast<double>(eps));
  v = round_bf16(static_cast<float>(static_cast<double>(bf16_to_f32(norm[t])) * (static_cast<double>(v) * factor)));
  values[t] = v;
  __syncthreads();
  if (t >= kIndexDim - kRopeDim) {
    const float angle =
        __fmul_rn(static_cast<float>(group * cache.ratio), frequencies[(t - (kIndexDim - kRopeDim)) / 2]);
    const float c = accurate_angle(angle).x, s = accurate_angle(angle).y;
    const float other = values[t ^ 1];
    v = (t & 1) == 0 ? __fsub_rn(__fmul_rn(v, c), __fmul_rn(other, s))
                     : __fadd_rn(__fmul_rn(other, s), __fmul_rn(v, c));
    v = round_bf16(v);
  }
  __syncthreads();
  values[t] = v;
  __syncthreads();
  for (int half = 1; half < kIndexDim; half *= 2) {
    const float a = values[t & ~half], b = values[t | half];
    __syncthreads();
    values[t] = (t & half) == 0 ? a + b : a - b;
    __syncthreads();
  }
  v = round_bf16(__fmul_rn(values[t], 0.088388347648318447f));
  // As in write_record: the smallest exponent that the rounded values need.
  const float amax = warp_max(fabsf(v));
  const int first = fq_exponent(amax);
  const auto rounded = [&](float value) { return scale_by_exp2(e2m1_to_f32(fq_code(value, first)), first); };
  const int exponent = fq_exponent(rounded(amax));
  const std::uint32_t code = fq_code(rounded(v), exponent);
  const std::uint32_t high = __shfl_down_sync(0xffffffffu, code, 1);
  const int per_block = kBlockTokens / cache.ratio, slot = group % per_block;
  auto* page = reinterpret_cast<std::uint8_t*>(context_block(rows, pools, sequence, group / per_block)) +
               cache.index_key_offset_bytes;
  if ((t & 1) == 0) page[slot * kIndexKeyDataBytes + t / 2] = static_cast<std::uint8_t>(code | high << 4);
  if ((t & 31) == 0)
    page[per_block * kIndexKeyDataBytes + slot * kIndexKeyScaleBytes + t / 32] =
        static_cast<std::uint8_t>(exponent + 127);
}

// An emission reads the slots of the ratio (ratio 4: twice four) positions up to its own, those before the step from
// the slab. A row enters slot p mod (that + kMaxDraft): with at most kMaxDraft + 1 rows of a sequence none of them
// is one that the step reads, so one launch does both. Every sequence of a step has a row.
inline bool emits_and_keeps(const StepRows& rows) {
  return rows.short_sequences || rows.num_tokens == rows.num_sequences || rows.num_tokens <= kMaxDraft + 1;
}

}  // namespace fathom::cuda
