#include "ops/linear/linear.h"

#include <array>

#include "ops/check_view.h"
#include "ops/cost_terms.h"
#include "ops/dequantise.h"
#include "ops/linear/plan.h"

namespace fathom {

LinearPlan plan_linear(const LinearDesc& desc, const DeviceInfo& device) {
  if (device.backend == BackendKind::kCpu) return {desc, linear_cpu_workspace(desc, device)};
  return {desc, 2 * cuda::linear_workspace_bytes(desc.max_tokens, desc.in_features)};
}

void run_linear(ExecutionContext& context, const LinearPlan& plan, const LinearArgs& args) {
  const std::int64_t tokens = args.x.shape[0];
  FATHOM_CHECK(tokens <= plan.desc.max_tokens, "the plan covers the rows of the call");
  check_activation(args.x, tokens, plan.desc.in_features);
  if (!args.x_quantised.empty()) check_activation(args.x_quantised, tokens, plan.desc.in_features);
  std::int64_t out_features = 0;
  for (const LinearOutput& output : args.outputs) {
    check_linear_weight(*output.weight, output.weight->out_features, plan.desc.in_features);
    check_activation(output.out, tokens, output.weight->out_features);
    FATHOM_CHECK(!output.keep_fp32 || output.out.dtype == DType::kF32, "a kept output is F32");
    FATHOM_CHECK(output.out.data != args.x.data || tokens == 0, "no output aliases the input");
    out_features += output.weight->out_features;
  }
  FATHOM_CHECK(out_features <= plan.desc.out_features, "the plan covers the outputs of the group");
  run_operation(context, OpKind::kLinear, plan, args, [&] { return cost_linear(plan, args); });
}

OpCost cost_linear(const LinearPlan&, const LinearArgs& args) {
  OpCost cost{view_bytes(args.x) + view_bytes(args.x_quantised), 0.0};
  for (const LinearOutput& output : args.outputs) {
    cost.bytes += weight_bytes(*output.weight) + view_bytes(output.out);
    cost.flops += matmul_flops(args.x.shape[0], output.weight->out_features, output.weight->in_features);
  }
  return cost;
}

std::span<const Variant> linear_variants() {
  static const std::array variants = {
      make_variant(OpKind::kLinear, "reference", BackendKind::kCpu, &linear_reference),
      make_variant(OpKind::kLinear, "cpu", BackendKind::kCpu, &linear_cpu),
  };
  return variants;
}

}  // namespace fathom
