#include "ops/select_topk/select_topk.h"

#include <algorithm>
#include <array>

#include "ops/check_step_rows.h"
#include "ops/cost_terms.h"

namespace fathom {

SelectTopkPlan plan_select_topk(const SelectTopkDesc& desc, const DeviceInfo& device) {
  FATHOM_CHECK(desc.topk > 0 && desc.ratio > 0, "a selection has a size");
  return {desc, 0, device.num_multiprocessors, device.shared_memory_per_block_bytes};
}

void run_select_topk(ExecutionContext& context, const SelectTopkPlan& plan, const SelectTopkArgs& args) {
  check_step_rows(args.rows);
  FATHOM_CHECK(args.scores.dtype == DType::kF32 && args.scores.shape.rank() == 2, "scores are F32 rows");
  FATHOM_CHECK(args.first_row >= 0 && args.first_row + args.scores.shape[0] <= args.rows->num_tokens,
               "score rows are rows of the step");
  check_view(args.selected, DType::kI32, args.rows->num_tokens, plan.desc.topk);
  run_operation(context, OpKind::kSelectTopk, plan, args,
                [&] { return cost_select_topk(plan, args, context.lengths); });
}

OpCost cost_select_topk(const SelectTopkPlan& plan, const SelectTopkArgs& args, const HostLengths& lengths) {
  OpCost cost;
  for (std::int64_t row = 0; row < args.scores.shape[0]; ++row) {
    const auto t = static_cast<std::size_t>(args.first_row + row);
    if (t >= lengths.positions.size()) break;
    const std::int64_t visible = (lengths.positions[t] + 1) / plan.desc.ratio;
    if (visible > plan.desc.topk) cost.bytes += 4.0 * static_cast<double>(visible);
    cost.bytes += 4.0 * static_cast<double>(plan.desc.topk);
  }
  return cost;
}

std::span<const Variant> select_topk_variants() {
  static const std::array variants = {
      make_variant(OpKind::kSelectTopk, "reference", BackendKind::kCpu, &select_topk_reference),
      make_variant(OpKind::kSelectTopk, "cpu", BackendKind::kCpu, &select_topk_cpu),
  };
  return variants;
}

}  // namespace fathom
