#include "ops/rope_rows/rope_rows.h"

#include <array>

#include "ops/check_view.h"
#include "ops/cost_terms.h"

namespace fathom {

RopeRowsPlan plan_rope_rows(const RopeRowsDesc& desc, const DeviceInfo&) { return {desc, 0}; }

void run_rope_rows(ExecutionContext& context, const RopeRowsPlan& plan, const RopeRowsArgs& args) {
  const std::int64_t tokens = args.positions.shape[0];
  check_view(args.positions, DType::kI32, tokens, 1);
  check_vector(args.window_frequencies, DType::kF32, plan.desc.rope_dim / 2);
  check_vector(args.compressed_frequencies, DType::kF32, plan.desc.rope_dim / 2);
  check_view(args.window_rope, DType::kF32, tokens, plan.desc.rope_dim);
  check_view(args.compressed_rope, DType::kF32, tokens, plan.desc.rope_dim);
  run_operation(context, OpKind::kRopeRows, plan, args, [&] { return cost_rope_rows(plan, args); });
}

OpCost cost_rope_rows(const RopeRowsPlan&, const RopeRowsArgs& args) {
  // An accurate sine or cosine is counted as 32 operations.
  return {
      view_bytes(args.positions) + view_bytes(args.window_frequencies) + view_bytes(args.compressed_frequencies) +
          view_bytes(args.window_rope) + view_bytes(args.compressed_rope),
      32.0 * static_cast<double>(args.window_rope.shape.num_elements() + args.compressed_rope.shape.num_elements())};
}

std::span<const Variant> rope_rows_variants() {
  static const std::array variants = {
      make_variant(OpKind::kRopeRows, "reference", BackendKind::kCpu, &rope_rows_reference),
      make_variant(OpKind::kRopeRows, "cpu", BackendKind::kCpu, &rope_rows_cpu),
  };
  return variants;
}

}  // namespace fathom
