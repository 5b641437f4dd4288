#include <algorithm>

#include "ops/cache_records.h"
#include "ops/kv_write/kv_write.h"
#include "ops/simd/products.h"
#include "ops/simd/records.h"
#include "ops/simd/rows.h"

namespace fathom {

std::int64_t kv_write_cpu_workspace(const KvWriteDesc& desc, const DeviceInfo& device) {
  return device.num_threads * simd::Scratch::aligned_bytes<float>(desc.cache.kv.head_dim);
}

void kv_write_cpu(ExecutionContext& context, const KvWritePlan& plan, const KvWriteArgs& args) {
  const KvWriteDesc& desc = plan.desc;
  const KvRecordLayout& layout = desc.cache.kv;
  const StepRows& rows = *args.rows;
  const std::int64_t width = layout.head_dim;
  const std::int64_t nope = layout.nope_dim();
  const bool round = desc.numerics.rounds_to_bf16();
  simd::Scratch scratch(context);
  const std::int64_t row_bytes = simd::Scratch::aligned_bytes<float>(width);
  const std::int64_t parts = std::min<std::int64_t>({simd::num_threads(context), scratch.left_bytes() / row_bytes,
                                                     rows.num_tokens * width / 1024 + 1, rows.num_tokens});
  float* values_of_parts = scratch.take<float>(parts * row_bytes / 4);
  simd::run_parts(context, parts, [&](std::int64_t part) {
    float* values = values_of_parts + part * row_bytes / 4;
    const std::int64_t end = rows.num_tokens * (part + 1) / parts;
    for (std::int64_t t = rows.num_tokens * part / parts; t < end; ++t) {
      simd::rms_norm_row(args.kv_raw.as<float>() + t * width, args.kv_norm.data, width, desc.eps, round, values);
      simd::rotate_row(values + nope, args.rope.as<float>() + t * layout.rope_dim, layout.rope_dim, false, round,
                       values + nope);
      if (layout.format == CacheFormat::kFloat && desc.numerics.quantise_kv) {
        simd::fake_quantise_e4m3_row(values, nope);
      }
      simd::write_kv_record(layout,
                            window_record(rows, args.pools, desc.cache, rows.sequence_of.as<std::int32_t>()[t],
                                          rows.positions.as<std::int32_t>()[t]),
                            values);
    }
  });
}

}  // namespace fathom
