#include "ops/attention_output/attention_output.h"

#include <algorithm>

#include <array>

#include "ops/check_view.h"
#include "ops/cost_terms.h"
#include "ops/dequantise.h"
#include "ops/linear/plan.h"

namespace fathom {

AttentionOutputPlan plan_attention_output(const AttentionOutputDesc& desc, const DeviceInfo& device) {
  if (device.backend == BackendKind::kCpu) return {desc, attention_output_cpu_workspace(desc, device)};
  // z, then one of the two inputs prepared for its product.
  const std::int64_t inner = desc.num_groups * desc.o_lora_rank;
  return {desc, cuda::linear_workspace_bytes(desc.max_tokens, inner) +
                    cuda::linear_workspace_bytes(desc.max_tokens, std::max(inner, desc.num_groups * desc.group_in))};
}

void run_attention_output(ExecutionContext& context, const AttentionOutputPlan& plan, const AttentionOutputArgs& args) {
  const AttentionOutputDesc& desc = plan.desc;
  const std::int64_t tokens = args.o.shape[0];
  FATHOM_CHECK(tokens <= desc.max_tokens, "the plan covers the rows of the call");
  check_activation(args.o, tokens, desc.num_groups * desc.group_in);
  check_linear_weight(*args.wo_a, desc.num_groups * desc.o_lora_rank, desc.group_in);
  check_linear_weight(*args.wo_b, desc.hidden, desc.num_groups * desc.o_lora_rank);
  check_activation(args.out, tokens, desc.hidden);
  run_operation(context, OpKind::kAttentionOutput, plan, args, [&] { return cost_attention_output(plan, args); });
}

OpCost cost_attention_output(const AttentionOutputPlan& plan, const AttentionOutputArgs& args) {
  const AttentionOutputDesc& desc = plan.desc;
  const std::int64_t tokens = args.o.shape[0];
  const std::int64_t rank = desc.num_groups * desc.o_lora_rank;
  return {view_bytes(args.o) + weight_bytes(*args.wo_a) + weight_bytes(*args.wo_b) + view_bytes(args.out),
          matmul_flops(tokens, rank, desc.group_in) + matmul_flops(tokens, desc.hidden, rank)};
}

std::span<const Variant> attention_output_variants() {
  static const std::array variants = {
      make_variant(OpKind::kAttentionOutput, "reference", BackendKind::kCpu, &attention_output_reference),
      make_variant(OpKind::kAttentionOutput, "cpu", BackendKind::kCpu, &attention_output_cpu),
  };
  return variants;
}

}  // namespace fathom
