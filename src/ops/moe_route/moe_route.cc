#include "ops/moe_route/moe_route.h"

#include <array>

#include "base/units.h"
#include "ops/check_view.h"
#include "ops/cost_terms.h"
#include "ops/dequantise.h"

namespace fathom {

std::int64_t moe_route_logits_bytes(const MoeRouteDesc& desc) {
  return round_up(desc.max_tokens * desc.num_experts * 4, 256);
}

MoeRoutePlan plan_moe_route(const MoeRouteDesc& desc, const DeviceInfo& device) {
  FATHOM_CHECK(0 < desc.topk && desc.topk <= desc.num_experts, "a row goes to topk of the experts");
  if (device.backend == BackendKind::kCpu) return {desc, moe_route_cpu_workspace(desc, device)};
  // Behind the logits: x as a tensor core variant may want it ordered, bf16.
  return {desc, moe_route_logits_bytes(desc) + round_up(desc.max_tokens * desc.hidden * 2, 256)};
}

void run_moe_route(ExecutionContext& context, const MoeRoutePlan& plan, const MoeRouteArgs& args) {
  const MoeRouteDesc& desc = plan.desc;
  const std::int64_t tokens = args.x.shape[0];
  FATHOM_CHECK(tokens <= desc.max_tokens, "the plan covers the rows of the call");
  check_activation(args.x, tokens, desc.hidden);
  check_linear_weight(*args.gate, desc.num_experts, desc.hidden);
  FATHOM_CHECK(!args.gate->quantises_input(), "the gate is BF16 or F32");
  if (args.tid2eid.empty()) {
    check_vector(args.bias, DType::kF32, desc.num_experts);
  } else {
    FATHOM_CHECK(args.bias.empty(), "a hash-routed layer has no bias");
    check_view(args.tid2eid, DType::kI64, args.tid2eid.shape[0], desc.topk);
    check_view(args.token_ids, DType::kI32, tokens, 1);
  }
  check_view(args.expert_ids, DType::kI32, tokens, desc.topk);
  check_view(args.expert_weights, DType::kF32, tokens, desc.topk);
  run_operation(context, OpKind::kMoeRoute, plan, args, [&] { return cost_moe_route(plan, args); });
}

OpCost cost_moe_route(const MoeRoutePlan& plan, const MoeRouteArgs& args) {
  const std::int64_t tokens = args.x.shape[0];
  double bytes = view_bytes(args.x) + weight_bytes(*args.gate) + view_bytes(args.bias) + view_bytes(args.expert_ids) +
                 view_bytes(args.expert_weights);
  if (!args.tid2eid.empty()) {
    bytes += view_bytes(args.token_ids) + 8.0 * static_cast<double>(tokens) * static_cast<double>(plan.desc.topk);
  }
  return {bytes, matmul_flops(tokens, plan.desc.num_experts, plan.desc.hidden)};
}

std::span<const Variant> moe_route_variants() {
  static const std::array variants = {
      make_variant(OpKind::kMoeRoute, "reference", BackendKind::kCpu, &moe_route_reference),
      make_variant(OpKind::kMoeRoute, "cpu", BackendKind::kCpu, &moe_route_cpu),
  };
  return variants;
}

}  // namespace fathom
