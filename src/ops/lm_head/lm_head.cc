#include "ops/lm_head/lm_head.h"

#include <array>

#include "ops/check_view.h"
#include "ops/cost_terms.h"
#include "ops/dequantise.h"
#include "ops/linear/plan.h"

namespace fathom {

LmHeadPlan plan_lm_head(const LmHeadDesc& desc, const DeviceInfo& device) {
  if (device.backend == BackendKind::kCpu) return {desc, lm_head_cpu_workspace(desc, device)};
  return {desc, cuda::linear_workspace_bytes(desc.max_rows, desc.hidden)};
}

void run_lm_head(ExecutionContext& context, const LmHeadPlan& plan, const LmHeadArgs& args) {
  const std::int64_t rows = args.x.shape[0];
  FATHOM_CHECK(rows <= plan.desc.max_rows, "the plan covers the rows of the call");
  check_activation(args.x, rows, plan.desc.hidden);
  check_linear_weight(*args.head, plan.desc.vocab, plan.desc.hidden);
  FATHOM_CHECK(!args.head->quantises_input(), "the head is BF16 or F32");
  check_view(args.logits, DType::kF32, rows, plan.desc.vocab);
  run_operation(context, OpKind::kLmHead, plan, args, [&] { return cost_lm_head(plan, args); });
}

OpCost cost_lm_head(const LmHeadPlan& plan, const LmHeadArgs& args) {
  return {view_bytes(args.x) + weight_bytes(*args.head) + view_bytes(args.logits),
          matmul_flops(args.x.shape[0], plan.desc.vocab, plan.desc.hidden)};
}

std::span<const Variant> lm_head_variants() {
  static const std::array variants = {
      make_variant(OpKind::kLmHead, "reference", BackendKind::kCpu, &lm_head_reference),
      make_variant(OpKind::kLmHead, "cpu", BackendKind::kCpu, &lm_head_cpu),
  };
  return variants;
}

}  // namespace fathom
