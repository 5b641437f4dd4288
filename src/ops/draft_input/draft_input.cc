#include "ops/draft_input/draft_input.h"

#include <array>

#include "ops/check_view.h"
#include "ops/cost_terms.h"
#include "ops/dequantise.h"
#include "ops/linear/plan.h"

namespace fathom {

DraftInputPlan plan_draft_input(const DraftInputDesc& desc, const DeviceInfo& device) {
  if (device.backend == BackendKind::kCpu) return {desc, draft_input_cpu_workspace(desc, device)};
  return {desc, (3 * desc.hc_mult + 2) * cuda::linear_workspace_bytes(desc.max_tokens, desc.hidden)};
}

void run_draft_input(ExecutionContext& context, const DraftInputPlan& plan, const DraftInputArgs& args) {
  const DraftInputDesc& desc = plan.desc;
  const std::int64_t tokens = args.embedded.shape[0];
  FATHOM_CHECK(tokens <= desc.max_tokens, "the plan covers the rows of the call");
  check_activation(args.embedded, tokens, desc.hidden);
  check_activation(args.streams, tokens, desc.hc_mult * desc.hidden);
  check_vector(args.enorm, DType::kBF16, desc.hidden);
  check_vector(args.hnorm, DType::kBF16, desc.hidden);
  check_linear_weight(*args.e_proj, desc.hidden, desc.hidden);
  check_linear_weight(*args.h_proj, desc.hidden, desc.hidden);
  check_activation(args.out, tokens, desc.hc_mult * desc.hidden);
  FATHOM_CHECK(args.out.data != args.streams.data || tokens == 0, "no output aliases an input");
  run_operation(context, OpKind::kDraftInput, plan, args, [&] { return cost_draft_input(plan, args); });
}

OpCost cost_draft_input(const DraftInputPlan& plan, const DraftInputArgs& args) {
  const DraftInputDesc& desc = plan.desc;
  const std::int64_t tokens = args.embedded.shape[0];
  return {view_bytes(args.embedded) + view_bytes(args.streams) + view_bytes(args.enorm) + view_bytes(args.hnorm) +
              weight_bytes(*args.e_proj) + weight_bytes(*args.h_proj) + view_bytes(args.out),
          matmul_flops(tokens * (1 + desc.hc_mult), desc.hidden, desc.hidden)};
}

std::span<const Variant> draft_input_variants() {
  static const std::array variants = {
      make_variant(OpKind::kDraftInput, "reference", BackendKind::kCpu, &draft_input_reference),
      make_variant(OpKind::kDraftInput, "cpu", BackendKind::kCpu, &draft_input_cpu),
  };
  return variants;
}

}  // namespace fathom
