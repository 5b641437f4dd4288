// moe_experts: the routed experts and the shared one (spec 2.7.4-6).
//
//   a = Linear(x; w1), b = Linear(x; w3);  a = min(a, limit), b = clamp(b, -limit, limit)
//   t = store( weight * (silu(a) * b) )      the routing weight multiplies before w2; 1 for the shared expert
//   y = Linear(t; w2)
//   out = store( sum over experts in ascending id of y, in fp32, then + y_shared )
#pragma once

#include <span>

#include "ops/numerics.h"
#include "ops/registry.h"
#include "tensor/weights.h"

namespace fathom {

struct MoeExpertsDesc {
  std::int64_t max_tokens = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  std::int32_t num_experts = 0;
  std::int32_t topk = 0;
  float swiglu_limit = 10.0f;
  Numerics numerics;
};
struct MoeExpertsPlan {
  MoeExpertsDesc desc;
  std::int64_t workspace_bytes = 0;
  std::int64_t num_arrivals = 0;  // ExecutionContext::arrivals
};
struct MoeExpertsArgs {
  View x;                                  // [tokens, hidden]
  View expert_ids;                         // [tokens, topk] i32, ascending, distinct or equal ids both allowed
  View expert_weights;                     // [tokens, topk] f32
  std::span<const ExpertWeights> experts;  // [experts]
  const ExpertWeights* shared = nullptr;   // FP8
  const void* packed = nullptr;            // CUDA: the experts as repacked at load
  View out;                                // out [tokens, hidden]
};

MoeExpertsPlan plan_moe_experts(const MoeExpertsDesc& desc, const DeviceInfo& device);
void run_moe_experts(ExecutionContext& context, const MoeExpertsPlan& plan, const MoeExpertsArgs& args);
// Counts each expert that is hit once; reads expert_ids, so only for host-resident ids, else the expectation
// over uniform routing.
OpCost cost_moe_experts(const MoeExpertsPlan& plan, const MoeExpertsArgs& args);

// Variants, by their registry names.
void moe_experts_reference(ExecutionContext& context, const MoeExpertsPlan& plan, const MoeExpertsArgs& args);
void moe_experts_cpu(ExecutionContext& context, const MoeExpertsPlan& plan, const MoeExpertsArgs& args);
std::int64_t moe_experts_cpu_workspace(const MoeExpertsDesc& desc, const DeviceInfo& device);
std::span<const Variant> moe_experts_variants();

}  // namespace fathom
