#include "ops/hc_head/hc_head.h"

#include <array>

#include "ops/check_view.h"
#include "ops/cost_terms.h"

namespace fathom {

HcHeadPlan plan_hc_head(const HcHeadDesc& desc, const DeviceInfo& device) {
  return {desc, device.backend == BackendKind::kCpu ? hc_head_cpu_workspace(desc, device) : 0};
}

void run_hc_head(ExecutionContext& context, const HcHeadPlan& plan, const HcHeadArgs& args) {
  const std::int64_t hc = plan.desc.hc_mult;
  const std::int64_t hidden = plan.desc.hidden;
  const std::int64_t rows = args.normed.shape[0];
  check_activation(args.streams, args.streams.shape[0], hc * hidden);
  if (args.row_indices.empty()) {
    FATHOM_CHECK(rows == args.streams.shape[0], "without row indices every token is a row");
  } else {
    check_view(args.row_indices, DType::kI32, rows, 1);
  }
  check_view(args.params.fn, DType::kF32, hc, hc * hidden);
  check_vector(args.params.base, DType::kF32, hc);
  check_vector(args.params.scale, DType::kF32, 1);
  check_vector(args.norm_weight, DType::kBF16, hidden);
  check_activation(args.collapsed, rows, hidden);
  check_activation(args.normed, rows, hidden);
  run_operation(context, OpKind::kHcHead, plan, args, [&] { return cost_hc_head(plan, args); });
}

OpCost cost_hc_head(const HcHeadPlan& plan, const HcHeadArgs& args) {
  const auto rows = static_cast<double>(args.normed.shape[0]);
  const auto hc = static_cast<double>(plan.desc.hc_mult);
  const auto hidden = static_cast<double>(plan.desc.hidden);
  const double streams =
      rows * static_cast<double>(args.streams.shape.row_elements() * dtype_bytes(args.streams.dtype));
  return {streams + view_bytes(args.row_indices) + view_bytes(args.params.fn) + view_bytes(args.params.base) +
              view_bytes(args.params.scale) + view_bytes(args.norm_weight) + view_bytes(args.collapsed) +
              view_bytes(args.normed),
          rows * hidden * (2.0 * hc * hc + 4.0 * hc + 4.0)};
}

std::span<const Variant> hc_head_variants() {
  static const std::array variants = {
      make_variant(OpKind::kHcHead, "reference", BackendKind::kCpu, &hc_head_reference),
      make_variant(OpKind::kHcHead, "cpu", BackendKind::kCpu, &hc_head_cpu),
  };
  return variants;
}

}  // namespace fathom
