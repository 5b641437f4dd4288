#include <algorithm>
#include <cstring>

#include "ops/cache_records.h"
#include "ops/compress_kv/compress_kv.h"
#include "ops/scalar_math.h"
#include "ops/simd/products.h"
#include "ops/simd/records.h"
#include "ops/simd/rows.h"
#include "ops/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/compress_kv/cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "ops/simd/rows-inl.h"

#ifndef FATHOM_OPS_COMPRESS_KV_POOLED_ROW_
#define FATHOM_OPS_COMPRESS_KV_POOLED_ROW_
namespace fathom {

// One row that a group pools, at the group's first channel; ape is null where it has been added already.
struct PooledRow {
  const float* u = nullptr;
  const float* g = nullptr;
  const float* ape = nullptr;
};

}  // namespace fathom
#endif

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {

HWY_INLINE FloatVec gate_of(const PooledRow& row, std::int64_t i, std::size_t lanes) {
  const FloatVec g = load_some(row.g + i, lanes);
  return row.ape == nullptr ? g : hn::Add(g, load_some(row.ape + i, lanes));
}

// y[channel] = sum softmax(g) u over the rows, which add in position order.
void pool_rows(const PooledRow* rows, std::int64_t num_rows, std::int64_t width, bool round, float* y) {
  for_each_vector(width, [&](std::int64_t i, std::size_t lanes) HWY_ATTR {
    FloatVec largest = gate_of(rows[0], i, lanes);
    for (std::int64_t r = 1; r < num_rows; ++r) largest = hn::Max(largest, gate_of(rows[r], i, lanes));
    FloatVec weights = hn::Zero(FloatTag()), sum = hn::Zero(FloatTag());
    for (std::int64_t r = 0; r < num_rows; ++r) {
      const FloatVec weight = exp_vec(hn::Sub(gate_of(rows[r], i, lanes), largest));
      weights = hn::Add(weights, weight);
      sum = hn::MulAdd(weight, load_some(rows[r].u + i, lanes), sum);
    }
    store_some(round_if(round, hn::Div(sum, weights)), y + i, lanes);
  });
}

// a = b + c.
void add_into(const float* b, const float* c, std::int64_t n, float* a) {
  for_each_vector(n, [&](std::int64_t i, std::size_t lanes) HWY_ATTR {
    store_some(hn::Add(load_some(b + i, lanes), load_some(c + i, lanes)), a + i, lanes);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom {
HWY_EXPORT(pool_rows);
HWY_EXPORT(add_into);
namespace {

constexpr std::int64_t kMostPooled = 128;
constexpr std::int64_t kMostWidth = 1024;
constexpr std::int64_t kMostRope = 256;

// The rows of one sequence in this step, and its slab.
class SequenceRows {
 public:
  SequenceRows(const CompressKvDesc& desc, const CompressKvArgs& args, std::int32_t sequence)
      : desc_(desc), args_(args), sequence_(sequence), width_(desc.row_width()) {
    const auto* begin = args.rows->sequence_begin.as<std::int32_t>();
    first_row_ = begin[sequence];
    num_rows_ = begin[sequence + 1] - first_row_;
    if (num_rows_ > 0) first_position_ = args.rows->positions.as<std::int32_t>()[first_row_];
    const bool main = desc.kind == CompressorKind::kMain;
    u_offset_ = main ? desc.cache.main_u_offset_bytes : desc.cache.index_u_offset_bytes;
    g_offset_ = main ? desc.cache.main_g_offset_bytes : desc.cache.index_g_offset_bytes;
  }
  std::int64_t begin() const { return first_position_; }
  std::int64_t end() const { return first_position_ + num_rows_; }
  // Groups whose last token is in this step.
  std::int64_t first_group() const { return begin() / desc_.cache.ratio; }
  std::int64_t num_groups() const { return num_rows_ == 0 ? 0 : end() / desc_.cache.ratio - first_group(); }

  PooledRow row(std::int64_t position, std::int64_t first_channel) const {
    if (position < begin()) {
      return {slab(u_offset_, position) + first_channel, slab(g_offset_, position) + first_channel, nullptr};
    }
    const std::int64_t at = (first_row_ + position - begin()) * width_ + first_channel;
    return {args_.u_raw.as<float>() + at, args_.g_raw.as<float>() + at,
            args_.ape.as<float>() + position % desc_.cache.ratio * width_ + first_channel};
  }
  // Position order; a first group of ratio 4 has no group before it.
  std::int64_t pool(std::int64_t group, PooledRow* pooled) const {
    const std::int64_t ratio = desc_.cache.ratio;
    std::int64_t count = 0;
    if (ratio == 4 && group > 0) {
      for (std::int64_t i = 0; i < ratio; ++i) pooled[count++] = row((group - 1) * ratio + i, 0);
    }
    const std::int64_t own = ratio == 4 ? desc_.width() : 0;
    for (std::int64_t i = 0; i < ratio; ++i) pooled[count++] = row(group * ratio + i, own);
    return count;
  }
  // This step's last rows, one a slot, into the slab.
  void write_back() const {
    const std::int64_t slots = compressor_slots(desc_.cache.ratio);
    for (std::int64_t position = std::max(begin(), end() - slots); position < end(); ++position) {
      const PooledRow from = row(position, 0);
      std::memcpy(slab(u_offset_, position), from.u, static_cast<std::size_t>(width_) * sizeof(float));
      HWY_DYNAMIC_DISPATCH(add_into)(from.g, from.ape, width_, slab(g_offset_, position));
    }
  }
  CacheRecord record(std::int64_t group) const {
    return desc_.kind == CompressorKind::kMain
               ? entry_record(*args_.rows, args_.pools, desc_.cache, sequence_, group)
               : index_key_record(*args_.rows, args_.pools, desc_.cache, sequence_, group);
  }

 private:
  float* slab(std::int64_t offset_bytes, std::int64_t position) const {
    return reinterpret_cast<float*>(state_row(*args_.rows, args_.pools, sequence_, offset_bytes, desc_.cache.ratio,
                                              static_cast<std::int32_t>(width_), static_cast<std::int32_t>(position)));
  }

  const CompressKvDesc& desc_;
  const CompressKvArgs& args_;
  std::int32_t sequence_;
  std::int64_t width_;
  std::int64_t first_row_ = 0, num_rows_ = 0, first_position_ = 0;
  std::int64_t u_offset_ = 0, g_offset_ = 0;
};

// Spec 2.5 steps 2 to 6 for one group.
void emit_group(const CompressKvDesc& desc, const CompressKvArgs& args, const SequenceRows& rows, std::int64_t group) {
  const bool round = desc.numerics.rounds_to_bf16();
  const std::int64_t width = desc.width();
  const std::int64_t rope_dim = desc.cache.kv.rope_dim;
  const auto rope_floats = static_cast<std::size_t>(rope_dim);
  PooledRow pooled[kMostPooled];
  alignas(64) float y[kMostWidth];
  float cos_sin[kMostRope];
  HWY_DYNAMIC_DISPATCH(pool_rows)(pooled, rows.pool(group, pooled), width, round, y);
  simd::rms_norm_row(y, args.norm.data, width, desc.eps, round, y);
  rope_angles(static_cast<std::int32_t>(group * desc.cache.ratio), {args.frequencies.as<float>(), rope_floats / 2},
              {cos_sin, rope_floats});
  simd::rotate_row(y + width - rope_dim, cos_sin, rope_dim, false, round, y + width - rope_dim);
  const CacheRecord record = rows.record(group);
  if (desc.kind == CompressorKind::kMain) {
    const bool packed = desc.cache.kv.format == CacheFormat::kPacked;
    if (!packed && desc.numerics.quantise_kv) simd::fake_quantise_e4m3_row(y, width - rope_dim);
    simd::write_kv_record(desc.cache.kv, record, y);
  } else {
    simd::hadamard_row(y, width);
    if (round) simd::round_row(y, width);
    if (desc.numerics.quantise_index) simd::fake_quantise_e2m1_row(y, width);
    write_index_key(desc.cache.index_key, record, {y, static_cast<std::size_t>(width)});
  }
}

}  // namespace

void compress_kv_cpu(ExecutionContext& context, const CompressKvPlan& plan, const CompressKvArgs& args) {
  const CompressKvDesc& desc = plan.desc;
  FATHOM_CHECK(desc.cache.ratio <= kMostPooled && desc.width() <= kMostWidth && desc.cache.kv.rope_dim <= kMostRope,
               "sizes of a compressor");
  for (std::int32_t s = 0; s < args.rows->num_sequences; ++s) {
    const SequenceRows rows(desc, args, s);
    if (rows.begin() == rows.end()) continue;
    const std::int64_t pooled_rows = desc.cache.ratio == 4 ? 8 : desc.cache.ratio;
    simd::for_rows(context, rows.num_groups(), 4 * pooled_rows * desc.width(),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) emit_group(desc, args, rows, rows.first_group() + i);
                   });
    rows.write_back();
  }
}

}  // namespace fathom
#endif  // HWY_ONCE
