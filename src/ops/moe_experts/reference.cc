#include <algorithm>
#include <vector>

#include "ops/moe_experts/moe_experts.h"
#include "ops/scalar_math.h"

namespace fathom {
namespace {

// y = w2 . store( weight * (silu(min(w1 . x, limit)) * clamp(w3 . x, +-limit)) ) for `rows` rows of x.
std::vector<float> run_expert(const ExecutionContext& context, const MoeExpertsDesc& desc, const ExpertWeights& expert,
                              const std::vector<float>& x, const std::vector<float>& weights) {
  const auto rows = static_cast<std::int64_t>(weights.size());
  const std::int64_t inter = desc.intermediate;
  const auto linear = [&](const std::vector<float>& input, const LinearWeight& weight) {
    std::vector<float> y(static_cast<std::size_t>(rows * weight.out_features));
    const std::vector<float> seen = linear_input(input.data(), rows, weight, desc.numerics);
    scalar_matmul(context, seen.data(), weight.in_features, rows, weight, 0, weight.out_features, y.data(),
                  weight.out_features);
    for (float& value : y) value = desc.numerics.store(value);
    return y;
  };
  const std::vector<float> a = linear(x, expert.w1);
  const std::vector<float> b = linear(x, expert.w3);
  std::vector<float> t(a.size());
  for (std::size_t i = 0; i < t.size(); ++i) {
    const float gate = std::min(a[i], desc.swiglu_limit);
    const float up = std::clamp(b[i], -desc.swiglu_limit, desc.swiglu_limit);
    const double weight = static_cast<double>(weights[i / static_cast<std::size_t>(inter)]);
    t[i] =
        desc.numerics.store(static_cast<float>(weight * (silu(static_cast<double>(gate)) * static_cast<double>(up))));
  }
  return linear(t, expert.w2);
}

}  // namespace

void moe_experts_reference(ExecutionContext& context, const MoeExpertsPlan& plan, const MoeExpertsArgs& args) {
  const MoeExpertsDesc& desc = plan.desc;
  const std::int64_t tokens = args.x.shape[0];
  const auto hidden = static_cast<std::size_t>(desc.hidden);
  const float* x = args.x.as<float>();
  float* out = args.out.as<float>();
  std::fill_n(out, tokens * desc.hidden, 0.0f);

  // Runs one expert on the given tokens and adds its rows to theirs.
  const auto add_expert = [&](const ExpertWeights& expert, const std::vector<std::int64_t>& chosen,
                              const std::vector<float>& weights) {
    std::vector<float> input(chosen.size() * hidden);
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      std::copy_n(x + chosen[i] * desc.hidden, hidden, input.begin() + static_cast<std::ptrdiff_t>(i * hidden));
    }
    const std::vector<float> y = run_expert(context, desc, expert, input, weights);
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      for (std::size_t c = 0; c < hidden; ++c) {
        out[static_cast<std::size_t>(chosen[i]) * hidden + c] += y[i * hidden + c];
      }
    }
  };

  for (std::int32_t e = 0; e < desc.num_experts; ++e) {
    std::vector<std::int64_t> chosen;
    std::vector<float> weights;
    for (std::int64_t i = 0; i < tokens * desc.topk; ++i) {
      if (args.expert_ids.as<std::int32_t>()[i] != e) continue;
      chosen.push_back(i / desc.topk);
      weights.push_back(args.expert_weights.as<float>()[i]);
    }
    if (!chosen.empty()) add_expert(args.experts[static_cast<std::size_t>(e)], chosen, weights);
  }
  if (args.shared != nullptr) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(tokens));
    for (std::size_t t = 0; t < all.size(); ++t) all[t] = static_cast<std::int64_t>(t);
    add_expert(*args.shared, all, std::vector<float>(all.size(), 1.0f));
  }
  for (std::int64_t i = 0; i < tokens * desc.hidden; ++i) out[i] = desc.numerics.store(out[i]);
}

}  // namespace fathom
