#include "ops/rms_norm/rms_norm.h"

#include <array>

#include "ops/check_view.h"
#include "ops/cost_terms.h"

namespace fathom {

RmsNormPlan plan_rms_norm(const RmsNormDesc& desc, const DeviceInfo&) { return {desc, 0}; }

void run_rms_norm(ExecutionContext& context, const RmsNormPlan& plan, const RmsNormArgs& args) {
  const std::int64_t rows = args.x.shape[0];
  check_activation(args.x, rows, plan.desc.width);
  check_vector(args.weight, DType::kBF16, plan.desc.width);
  check_activation(args.out, rows, plan.desc.width);
  if (!args.out_quantised.empty()) {
    FATHOM_CHECK((*context.variants)[OpKind::kRmsNorm].backend == BackendKind::kCuda && plan.desc.width % 128 == 0,
                 "quantised rows are written on CUDA, in whole blocks");
    check_activation(args.out_quantised, rows, plan.desc.width);
  }
  run_operation(context, OpKind::kRmsNorm, plan, args, [&] { return cost_rms_norm(plan, args); });
}

OpCost cost_rms_norm(const RmsNormPlan&, const RmsNormArgs& args) {
  return {view_bytes(args.x) + view_bytes(args.weight) + view_bytes(args.out) + view_bytes(args.out_quantised),
          4.0 * static_cast<double>(args.x.shape.num_elements())};
}

std::span<const Variant> rms_norm_variants() {
  static const std::array variants = {
      make_variant(OpKind::kRmsNorm, "reference", BackendKind::kCpu, &rms_norm_reference),
      make_variant(OpKind::kRmsNorm, "cpu", BackendKind::kCpu, &rms_norm_cpu),
  };
  return variants;
}

}  // namespace fathom
