#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "ops/cache_records.h"
#include "ops/compress_kv/compress_kv.h"
#include "ops/dequantise.h"
#include "ops/scalar_math.h"
#include "tensor/block_quantise.h"

namespace fathom {
namespace {

// The compressor rows of one sequence: this step's from u_raw and g_raw, earlier ones from the slab.
class SequenceRows {
 public:
  SequenceRows(const CompressKvDesc& desc, const CompressKvArgs& args, std::int32_t sequence)
      : desc_(desc), args_(args), sequence_(sequence) {
    const auto* begin = args.rows->sequence_begin.as<std::int32_t>();
    first_row_ = begin[sequence];
    num_rows_ = begin[sequence + 1] - first_row_;
    if (num_rows_ > 0) first_position_ = args.rows->positions.as<std::int32_t>()[first_row_];
  }

  std::int32_t begin() const { return first_position_; }
  std::int32_t end() const { return first_position_ + num_rows_; }

  float u(std::int32_t position, std::int64_t channel) const {
    return position < first_position_ ? stored(u_offset_bytes(), position, channel)
                                      : load_float(args_.u_raw, raw_index(position, channel));
  }
  // With the ape row of its own token.
  float g(std::int32_t position, std::int64_t channel) const {
    if (position < first_position_) return stored(g_offset_bytes(), position, channel);
    return load_float(args_.g_raw, raw_index(position, channel)) +
           load_float(args_.ape, position % desc_.cache.ratio * static_cast<std::int64_t>(desc_.row_width()) + channel);
  }
  // Copies this step's last rows, one per slot at most, into the slab.
  void write_back() const {
    const std::int32_t slots = compressor_slots(desc_.cache.ratio);
    for (std::int32_t position = std::max(begin(), end() - slots); position < end(); ++position) {
      std::byte* u_row = row(u_offset_bytes(), position);
      std::byte* g_row = row(g_offset_bytes(), position);
      for (std::int64_t channel = 0; channel < desc_.row_width(); ++channel) {
        const float u_value = u(position, channel);
        const float g_value = g(position, channel);
        std::memcpy(u_row + 4 * channel, &u_value, sizeof(float));
        std::memcpy(g_row + 4 * channel, &g_value, sizeof(float));
      }
    }
  }

 private:
  std::int64_t raw_index(std::int32_t position, std::int64_t channel) const {
    const std::int64_t token = first_row_ + (position - first_position_);
    return token * desc_.row_width() + channel;
  }
  std::int64_t u_offset_bytes() const {
    return desc_.kind == CompressorKind::kMain ? desc_.cache.main_u_offset_bytes : desc_.cache.index_u_offset_bytes;
  }
  std::int64_t g_offset_bytes() const {
    return desc_.kind == CompressorKind::kMain ? desc_.cache.main_g_offset_bytes : desc_.cache.index_g_offset_bytes;
  }
  std::byte* row(std::int64_t offset_bytes, std::int32_t position) const {
    return state_row(*args_.rows, args_.pools, sequence_, offset_bytes, desc_.cache.ratio, desc_.row_width(), position);
  }
  float stored(std::int64_t offset_bytes, std::int32_t position, std::int64_t channel) const {
    float value;
    std::memcpy(&value, row(offset_bytes, position) + 4 * channel, sizeof(value));
    return value;
  }

  const CompressKvDesc& desc_;
  const CompressKvArgs& args_;
  std::int32_t sequence_;
  std::int32_t first_row_ = 0;
  std::int32_t num_rows_ = 0;
  std::int32_t first_position_ = 0;
};

// One row that a group pools: which position, and which channel its channel 0 is (ratio 4: carry or own half).
struct PooledRow {
  std::int32_t position;
  std::int64_t first_channel;
};

// The rows of group j that exist, in position order.
std::vector<PooledRow> pooled_rows(const CompressKvDesc& desc, std::int32_t group) {
  const std::int32_t ratio = desc.cache.ratio;
  const bool overlap = ratio == 4;
  std::vector<PooledRow> pooled;
  if (overlap && group > 0) {
    for (std::int32_t i = 0; i < ratio; ++i) pooled.push_back({(group - 1) * ratio + i, 0});
  }
  for (std::int32_t i = 0; i < ratio; ++i) pooled.push_back({group * ratio + i, overlap ? desc.width() : 0});
  return pooled;
}

// y[channel] = sum softmax(g) * u over the pooled rows.
float pool_channel(const SequenceRows& rows, const std::vector<PooledRow>& pooled, std::int64_t channel) {
  double maximum = -INFINITY;
  for (const PooledRow& row : pooled) {
    maximum = std::max(maximum, static_cast<double>(rows.g(row.position, row.first_channel + channel)));
  }
  double weight_sum = 0.0;
  double sum = 0.0;
  for (const PooledRow& row : pooled) {
    const std::int64_t c = row.first_channel + channel;
    const double weight = std::exp(static_cast<double>(rows.g(row.position, c)) - maximum);
    weight_sum += weight;
    sum += weight * static_cast<double>(rows.u(row.position, c));
  }
  return static_cast<float>(sum / weight_sum);
}

// Entry `group` of the spec's steps 2 to 5, ready to be stored.
std::vector<float> make_entry(const CompressKvDesc& desc, const SequenceRows& rows, std::int32_t group,
                              const std::vector<float>& norm, const std::vector<float>& frequencies) {
  const std::vector<PooledRow> pooled = pooled_rows(desc, group);
  const auto rope_dim = 2 * frequencies.size();
  std::vector<float> y(static_cast<std::size_t>(desc.width()));
  const std::span<float> values(y);
  for (std::size_t channel = 0; channel < y.size(); ++channel) {
    y[channel] = desc.numerics.store(pool_channel(rows, pooled, static_cast<std::int64_t>(channel)));
  }
  rms_norm_row(values, norm, desc.eps, desc.numerics, values);
  std::vector<float> cos_sin(rope_dim);
  rope_angles(group * desc.cache.ratio, frequencies, cos_sin);
  rotate_pairs(values.last(rope_dim), cos_sin.data(), Rotation::kForward, desc.numerics);
  if (desc.kind == CompressorKind::kMain) {
    if (desc.numerics.quantise_kv) simulate_e4m3(values.first(y.size() - rope_dim), 64);
  } else {
    hadamard(values);
    for (float& value : values) value = desc.numerics.store(value);
    if (desc.numerics.quantise_index) simulate_e2m1(values, 32);
  }
  return y;
}

}  // namespace

void compress_kv_reference(ExecutionContext&, const CompressKvPlan& plan, const CompressKvArgs& args) {
  const CompressKvDesc& desc = plan.desc;
  const LayerCache& cache = desc.cache;
  const std::vector<float> norm = widen(args.norm);
  const std::vector<float> frequencies = widen(args.frequencies);
  for (std::int32_t s = 0; s < args.rows->num_sequences; ++s) {
    const SequenceRows rows(desc, args, s);
    if (rows.begin() == rows.end()) continue;
    // Groups whose last token is in this step.
    for (std::int32_t group = rows.begin() / cache.ratio; group < rows.end() / cache.ratio; ++group) {
      const std::vector<float> entry = make_entry(desc, rows, group, norm, frequencies);
      if (desc.kind == CompressorKind::kMain) {
        write_kv_record(cache.kv, entry_record(*args.rows, args.pools, cache, s, group), entry);
      } else {
        write_index_key(cache.index_key, index_key_record(*args.rows, args.pools, cache, s, group), entry);
      }
    }
    rows.write_back();
  }
}

}  // namespace fathom
