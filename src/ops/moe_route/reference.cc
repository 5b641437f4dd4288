#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "ops/dequantise.h"
#include "ops/moe_route/moe_route.h"
#include "ops/scalar_math.h"

namespace fathom {
namespace {

// The topk best of scores + bias; equal sums: the lowest expert.
std::vector<std::int32_t> best_experts(std::span<const float> scores, std::span<const float> bias, std::int32_t topk) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto biased = [&](std::int32_t e) {
    return scores[static_cast<std::size_t>(e)] + bias[static_cast<std::size_t>(e)];
  };
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return biased(a) > biased(b); });
  order.resize(static_cast<std::size_t>(topk));
  return order;
}

std::vector<std::int32_t> hashed_experts(const MoeRouteArgs& args, std::int64_t t, std::int32_t topk) {
  const std::int64_t token = load_element<std::int32_t>(args.token_ids, t);
  FATHOM_CHECK(0 <= token && token < args.tid2eid.shape[0], "token ids are checked before a step is planned");
  std::vector<std::int32_t> chosen(static_cast<std::size_t>(topk));
  for (std::int32_t i = 0; i < topk; ++i) {
    chosen[static_cast<std::size_t>(i)] =
        static_cast<std::int32_t>(load_element<std::int64_t>(args.tid2eid, token * topk + i));
  }
  return chosen;
}

}  // namespace

void moe_route_reference(ExecutionContext& context, const MoeRoutePlan& plan, const MoeRouteArgs& args) {
  const MoeRouteDesc& desc = plan.desc;
  const std::int64_t tokens = args.x.shape[0];
  const auto num_experts = static_cast<std::size_t>(desc.num_experts);
  const bool hashed = !args.tid2eid.empty();
  const std::vector<float> bias = hashed ? std::vector<float>() : widen(args.bias);
  std::vector<float> scores(static_cast<std::size_t>(tokens) * num_experts);
  scalar_matmul(context, args.x.as<float>(), desc.hidden, tokens, *args.gate, 0, desc.num_experts, scores.data(),
                desc.num_experts);
  for (float& score : scores) score = static_cast<float>(std::sqrt(softplus(static_cast<double>(score))));
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto s = std::span<const float>(scores).subspan(static_cast<std::size_t>(t) * num_experts, num_experts);
    std::vector<std::int32_t> chosen = hashed ? hashed_experts(args, t, desc.topk) : best_experts(s, bias, desc.topk);
    std::sort(chosen.begin(), chosen.end());
    FATHOM_CHECK(chosen.front() >= 0 && chosen.back() < desc.num_experts, "routing names experts that exist");
    double sum = 0.0;
    for (std::int32_t e : chosen) sum += static_cast<double>(s[static_cast<std::size_t>(e)]);
    const double factor = static_cast<double>(desc.routed_scaling_factor) / (desc.norm_topk_prob ? sum : 1.0);
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(t * desc.topk) + i;
      args.expert_ids.as<std::int32_t>()[at] = chosen[i];
      args.expert_weights.as<float>()[at] =
          static_cast<float>(static_cast<double>(s[static_cast<std::size_t>(chosen[i])]) * factor);
    }
  }
}

}  // namespace fathom
