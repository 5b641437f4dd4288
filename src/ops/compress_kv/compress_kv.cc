#include "ops/compress_kv/compress_kv.h"

#include <algorithm>
#include <array>

#include "ops/check_step_rows.h"
#include "ops/cost_terms.h"

namespace fathom {

CompressKvPlan plan_compress_kv(const CompressKvDesc& desc, const DeviceInfo&) {
  const LayerCache& cache = desc.cache;
  FATHOM_CHECK(cache.ratio == 4 || cache.ratio == 128, "compressed layers have ratio 4 or 128");
  if (desc.kind == CompressorKind::kMain) {
    FATHOM_CHECK(cache.entry_offset_bytes >= 0, "the layer has entries");
    FATHOM_CHECK(cache.main_u_offset_bytes >= 0 && cache.main_g_offset_bytes >= 0, "the layer has main rows");
    FATHOM_CHECK(cache.kv.format == CacheFormat::kFloat || desc.numerics.quantise_kv, "packed keys are quantised");
  } else {
    FATHOM_CHECK(cache.ratio == 4 && cache.index_key_offset_bytes >= 0, "ratio-4 layers have index keys");
    FATHOM_CHECK(cache.index_u_offset_bytes >= 0 && cache.index_g_offset_bytes >= 0, "the layer has index rows");
    FATHOM_CHECK(cache.index_key.format == CacheFormat::kFloat || desc.numerics.quantise_index,
                 "packed index keys are quantised");
  }
  return {desc, 0};
}

void check_compress_kv(const CompressKvPlan& plan, const CompressKvArgs& args) {
  const CompressKvDesc& desc = plan.desc;
  check_step_rows(args.rows);
  check_context_tables(*args.rows);
  check_view(args.rows->state_slot, DType::kI32, args.rows->num_sequences, 1);
  check_view(args.u_raw, DType::kF32, args.rows->num_tokens, desc.row_width());
  check_view(args.g_raw, DType::kF32, args.rows->num_tokens, desc.row_width());
  check_view(args.ape, DType::kF32, desc.cache.ratio, desc.row_width());
  check_vector(args.norm, DType::kBF16, desc.width());
  check_vector(args.frequencies, DType::kF32, desc.cache.kv.rope_dim / 2);
}

void run_compress_kv(ExecutionContext& context, const CompressKvPlan& plan, const CompressKvArgs& args) {
  check_compress_kv(plan, args);
  run_operation(context, OpKind::kCompressKv, plan, args,
                [&] { return cost_compress_kv(plan, args, context.lengths); });
}

OpCost cost_compress_kv(const CompressKvPlan& plan, const CompressKvArgs& args, const HostLengths& lengths) {
  const CompressKvDesc& desc = plan.desc;
  const std::int64_t ratio = desc.cache.ratio;
  const std::int64_t pooled_rows = ratio == 4 ? 8 : ratio;
  const std::int64_t record_bytes = desc.kind == CompressorKind::kMain
                                        ? desc.cache.kv.data_bytes() + desc.cache.kv.scale_bytes()
                                        : desc.cache.index_key.data_bytes() + desc.cache.index_key.scale_bytes();
  const double row_bytes = 2.0 * 4.0 * static_cast<double>(desc.row_width());
  double entries = 0.0;
  double state_rows = 0.0;  // read from the slab, or written to it
  for_each_position_run(lengths, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t begin = first / ratio;
    const std::int64_t end = (last + 1) / ratio;
    state_rows += static_cast<double>(std::min<std::int64_t>(last + 1 - first, compressor_slots(desc.cache.ratio)));
    if (end <= begin) return;
    entries += static_cast<double>(end - begin);
    const std::int64_t oldest = std::max<std::int64_t>(0, ratio == 4 ? (begin - 1) * ratio : begin * ratio);
    state_rows += static_cast<double>(first - oldest);
  });
  const double pooled = entries * static_cast<double>(pooled_rows * desc.width());
  return {view_bytes(args.u_raw) + view_bytes(args.g_raw) + view_bytes(args.ape) + view_bytes(args.norm) +
              state_rows * row_bytes + entries * static_cast<double>(record_bytes),
          static_cast<double>(args.g_raw.shape.num_elements()) + 6.0 * pooled +
              entries * 16.0 * static_cast<double>(desc.width())};
}

std::span<const Variant> compress_kv_variants() {
  static const std::array variants = {
      make_variant(OpKind::kCompressKv, "reference", BackendKind::kCpu, &compress_kv_reference),
      make_variant(OpKind::kCompressKv, "cpu", BackendKind::kCpu, &compress_kv_cpu),
  };
  return variants;
}

}  // namespace fathom
