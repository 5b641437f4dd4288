#include "ops/moe_experts/moe_experts.h"

#include <array>
#include <cmath>
#include <vector>

#include "ops/check_view.h"
#include "ops/cost_terms.h"
#include "ops/dequantise.h"
#include "ops/moe_experts/plan.h"

namespace fathom {
namespace {

void check_expert(const MoeExpertsDesc& desc, const ExpertWeights& expert) {
  check_linear_weight(expert.w1, desc.intermediate, desc.hidden);
  check_linear_weight(expert.w3, desc.intermediate, desc.hidden);
  check_linear_weight(expert.w2, desc.hidden, desc.intermediate);
}

double expert_bytes(const ExpertWeights& expert) {
  return weight_bytes(expert.w1) + weight_bytes(expert.w2) + weight_bytes(expert.w3);
}

}  // namespace

MoeExpertsPlan plan_moe_experts(const MoeExpertsDesc& desc, const DeviceInfo& device) {
  if (device.backend == BackendKind::kCpu) return {desc, moe_experts_cpu_workspace(desc, device)};
  return {desc, cuda::moe_scratch(desc.max_tokens, desc.hidden, desc.intermediate, desc.num_experts, desc.topk).total,
          cuda::moe_num_arrivals(desc.max_tokens, desc.hidden)};
}

void run_moe_experts(ExecutionContext& context, const MoeExpertsPlan& plan, const MoeExpertsArgs& args) {
  const MoeExpertsDesc& desc = plan.desc;
  const std::int64_t tokens = args.x.shape[0];
  FATHOM_CHECK(tokens <= desc.max_tokens, "the plan covers the rows of the call");
  check_activation(args.x, tokens, desc.hidden);
  check_view(args.expert_ids, DType::kI32, tokens, desc.topk);
  check_view(args.expert_weights, DType::kF32, tokens, desc.topk);
  if (args.packed == nullptr) {
    FATHOM_CHECK(static_cast<std::int32_t>(args.experts.size()) == desc.num_experts, "one set of weights an expert");
    if (!args.experts.empty()) check_expert(desc, args.experts.front());
  }
  if (args.shared != nullptr) check_expert(desc, *args.shared);
  check_activation(args.out, tokens, desc.hidden);
  FATHOM_CHECK(args.out.data != args.x.data || tokens == 0, "no output aliases an input");
  run_operation(context, OpKind::kMoeExperts, plan, args, [&] { return cost_moe_experts(plan, args); });
}

OpCost cost_moe_experts(const MoeExpertsPlan& plan, const MoeExpertsArgs& args) {
  const MoeExpertsDesc& desc = plan.desc;
  const std::int64_t tokens = args.x.shape[0];
  double weights = args.shared != nullptr ? expert_bytes(*args.shared) : 0.0;
  if (args.packed == nullptr) {
    std::vector<bool> hit(args.experts.size(), false);
    for (std::int64_t i = 0; i < tokens * desc.topk; ++i) {
      const auto e = static_cast<std::size_t>(args.expert_ids.as<std::int32_t>()[i]);
      if (!hit[e]) weights += expert_bytes(args.experts[e]);
      hit[e] = true;
    }
  } else if (!args.experts.empty()) {
    // An expert is missed by every row with probability (1 - topk / experts)^rows.
    const double experts = static_cast<double>(desc.num_experts);
    const double missed = std::pow(1.0 - static_cast<double>(desc.topk) / experts, static_cast<double>(tokens));
    weights += experts * (1.0 - missed) * expert_bytes(args.experts.front());
  }
  const std::int64_t calls = tokens * (desc.topk + (args.shared != nullptr ? 1 : 0));
  return {view_bytes(args.x) + view_bytes(args.expert_ids) + view_bytes(args.expert_weights) + weights +
              view_bytes(args.out),
          3.0 * matmul_flops(calls, desc.intermediate, desc.hidden)};
}

std::span<const Variant> moe_experts_variants() {
  static const std::array variants = {
      make_variant(OpKind::kMoeExperts, "reference", BackendKind::kCpu, &moe_experts_reference),
      make_variant(OpKind::kMoeExperts, "cpu", BackendKind::kCpu, &moe_experts_cpu),
  };
  return variants;
}

}  // namespace fathom
