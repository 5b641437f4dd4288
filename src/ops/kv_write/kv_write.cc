#include "ops/kv_write/kv_write.h"

#include <array>

#include "ops/check_step_rows.h"
#include "ops/cost_terms.h"

namespace fathom {

KvWritePlan plan_kv_write(const KvWriteDesc& desc, const DeviceInfo& device) {
  FATHOM_CHECK(desc.cache.kv.format == CacheFormat::kFloat || desc.numerics.quantise_kv, "packed keys are quantised");
  FATHOM_CHECK(desc.cache.window_offset_bytes >= 0, "the layer has a window page");
  return {desc, device.backend == BackendKind::kCpu ? kv_write_cpu_workspace(desc, device) : 0};
}

void check_kv_write(const KvWritePlan& plan, const KvWriteArgs& args) {
  check_step_rows(args.rows);
  check_window_tables(*args.rows);
  const KvRecordLayout& layout = plan.desc.cache.kv;
  check_activation(args.kv_raw, args.rows->num_tokens, layout.head_dim);
  check_vector(args.kv_norm, DType::kBF16, layout.head_dim);
  check_view(args.rope, DType::kF32, args.rows->num_tokens, layout.rope_dim);
}

void run_kv_write(ExecutionContext& context, const KvWritePlan& plan, const KvWriteArgs& args) {
  check_kv_write(plan, args);
  run_operation(context, OpKind::kKvWrite, plan, args, [&] { return cost_kv_write(plan, args); });
}

OpCost cost_kv_write(const KvWritePlan& plan, const KvWriteArgs& args) {
  const KvRecordLayout& layout = plan.desc.cache.kv;
  const double records =
      static_cast<double>(args.rows->num_tokens) * static_cast<double>(layout.data_bytes() + layout.scale_bytes());
  return {view_bytes(args.kv_raw) + view_bytes(args.kv_norm) + view_bytes(args.rope) + records,
          8.0 * static_cast<double>(args.kv_raw.shape.num_elements())};
}

std::span<const Variant> kv_write_variants() {
  static const std::array variants = {
      make_variant(OpKind::kKvWrite, "reference", BackendKind::kCpu, &kv_write_reference),
      make_variant(OpKind::kKvWrite, "cpu", BackendKind::kCpu, &kv_write_cpu),
  };
  return variants;
}

}  // namespace fathom
