#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cache_records.h"
#include "ops/dequantise.h"
#include "ops/parallel.h"
#include "ops/scalar_math.h"
#include "ops/sparse_attention/sparse_attention.h"

namespace fathom {
namespace {

// The keys that a row sees, dequantised: window positions, then compressed entries. [keys, head_dim]
std::vector<float> visible_keys(const SparseAttentionDesc& desc, const SparseAttentionArgs& args, std::int64_t t) {
  const StepRows& rows = *args.rows;
  const LayerCache& cache = desc.cache;
  const std::int32_t sequence = rows.sequence_of.as<std::int32_t>()[t];
  const auto head_dim = static_cast<std::size_t>(cache.kv.head_dim);
  std::vector<float> keys;
  const auto append = [&](CacheRecord record) {
    keys.resize(keys.size() + head_dim);
    read_kv_record(cache.kv, record, std::span<float>(keys).last(head_dim));
  };
  for (std::int32_t p = rows.window_begin.as<std::int32_t>()[t]; p < rows.window_end.as<std::int32_t>()[t]; ++p) {
    append(window_record(rows, args.pools, cache, sequence, p));
  }
  if (cache.ratio == 4) {
    const std::int32_t* selected = args.selected.as<std::int32_t>() + t * desc.topk;
    for (std::int32_t i = 0; i < desc.topk && selected[i] >= 0; ++i) {
      append(entry_record(rows, args.pools, cache, sequence, selected[i]));
    }
  } else if (cache.ratio != 0) {
    const std::int64_t visible = (rows.positions.as<std::int32_t>()[t] + 1) / cache.ratio;
    for (std::int64_t j = 0; j < visible; ++j) append(entry_record(rows, args.pools, cache, sequence, j));
  }
  return keys;
}

// o = sum_i exp(s_i - M) k_i / (sum_i exp(s_i - M) + exp(sink - M)); the keys are the values.
void attend(std::span<const float> q, const std::vector<float>& keys, float sink, std::span<float> o) {
  const std::size_t head_dim = q.size();
  const std::size_t num_keys = keys.size() / head_dim;
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  std::vector<double> logits(num_keys);
  double maximum = -INFINITY;
  for (std::size_t i = 0; i < num_keys; ++i) {
    logits[i] = dot(q.data(), keys.data() + i * head_dim, static_cast<std::int64_t>(head_dim)) * scale;
    maximum = std::max(maximum, logits[i]);
  }
  // May be inf: the quotient is then 0.
  double denominator = num_keys == 0 ? 1.0 : std::exp(static_cast<double>(sink) - maximum);
  std::vector<double> sum(head_dim, 0.0);
  for (std::size_t i = 0; i < num_keys; ++i) {
    const double weight = std::exp(logits[i] - maximum);
    denominator += weight;
    for (std::size_t c = 0; c < head_dim; ++c) sum[c] += weight * static_cast<double>(keys[i * head_dim + c]);
  }
  for (std::size_t c = 0; c < head_dim; ++c) o[c] = static_cast<float>(sum[c] / denominator);
}

}  // namespace

void sparse_attention_reference(ExecutionContext& context, const SparseAttentionPlan& plan,
                                const SparseAttentionArgs& args) {
  const SparseAttentionDesc& desc = plan.desc;
  const KvRecordLayout& layout = desc.cache.kv;
  const auto head_dim = static_cast<std::size_t>(layout.head_dim);
  const auto rope_dim = static_cast<std::size_t>(layout.rope_dim);
  parallel_ranges(context, args.rows->num_tokens, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::vector<float> keys = visible_keys(desc, args, t);
      for (std::int64_t h = 0; h < desc.num_heads; ++h) {
        const std::int64_t offset = (t * desc.num_heads + h) * layout.head_dim;
        const std::span<float> o(args.out.as<float>() + offset, head_dim);
        attend({args.q.as<float>() + offset, head_dim}, keys, load_float(args.sink, h), o);
        for (float& value : o) value = desc.numerics.store(value);
        rotate_pairs(o.last(rope_dim), args.rope.as<float>() + t * layout.rope_dim, Rotation::kInverse, desc.numerics);
      }
    }
  });
}

}  // namespace fathom
