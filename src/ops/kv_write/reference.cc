#include <vector>

#include "ops/cache_records.h"
#include "ops/dequantise.h"
#include "ops/kv_write/kv_write.h"
#include "ops/scalar_math.h"
#include "tensor/block_quantise.h"

namespace fathom {

void kv_write_reference(ExecutionContext&, const KvWritePlan& plan, const KvWriteArgs& args) {
  const KvWriteDesc& desc = plan.desc;
  const KvRecordLayout& layout = desc.cache.kv;
  const StepRows& rows = *args.rows;
  const auto head_dim = static_cast<std::size_t>(layout.head_dim);
  const auto rope_dim = static_cast<std::size_t>(layout.rope_dim);
  const std::vector<float> weight = widen(args.kv_norm);
  std::vector<float> kv(head_dim);
  for (std::int64_t t = 0; t < rows.num_tokens; ++t) {
    const std::span<float> values(kv);
    rms_norm_row({args.kv_raw.as<float>() + t * layout.head_dim, head_dim}, weight, desc.eps, desc.numerics, values);
    rotate_pairs(values.last(rope_dim), args.rope.as<float>() + t * layout.rope_dim, Rotation::kForward, desc.numerics);
    if (desc.numerics.quantise_kv) simulate_e4m3(values.first(head_dim - rope_dim), 64);
    const std::int32_t sequence = rows.sequence_of.as<std::int32_t>()[t];
    const std::int32_t position = rows.positions.as<std::int32_t>()[t];
    write_kv_record(layout, window_record(rows, args.pools, desc.cache, sequence, position), values);
  }
}

}  // namespace fathom
