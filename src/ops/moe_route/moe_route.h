// moe_route: which experts a row goes to, and with what weight (spec 2.7.1-3).
//
//   s = sqrt(softplus(x . gate^T)) in fp32, softplus(z) = z for z > 20 else log1p(exp z)
//   E = tid2eid[token] in hash-routed layers, else the topk of s + bias (ties: lowest id)
//   weight_e = routed_scaling_factor * s_e / sum_{E} s    (unbiased s; only divided when norm_topk_prob)
//
// Experts are written in ascending id: that is the order in which outputs are added.
#pragma once

#include "ops/numerics.h"
#include "ops/registry.h"
#include "tensor/weights.h"

namespace fathom {

struct MoeRouteDesc {
  std::int64_t max_tokens = 0;
  std::int64_t hidden = 0;
  std::int32_t num_experts = 0;
  std::int32_t topk = 0;  // num_experts_per_tok
  float routed_scaling_factor = 1.0f;
  bool norm_topk_prob = true;
};
struct MoeRoutePlan {
  MoeRouteDesc desc;
  std::int64_t workspace_bytes = 0;
};
struct MoeRouteArgs {
  View x;                              // [tokens, hidden]
  const LinearWeight* gate = nullptr;  // [experts, hidden] bf16
  View bias;                           // [experts] f32; scored layers
  View tid2eid;                        // [vocab, topk] i64, maybe misaligned; hash-routed layers (bias unset)
  View token_ids;                      // [tokens] i32; hash-routed layers
  View expert_ids;                     // out [tokens, topk] i32, ascending
  View expert_weights;                 // out [tokens, topk] f32
};

// Of a device's workspace, at its start: the gate's product, [max_tokens, num_experts] f32.
std::int64_t moe_route_logits_bytes(const MoeRouteDesc& desc);
MoeRoutePlan plan_moe_route(const MoeRouteDesc& desc, const DeviceInfo& device);
void run_moe_route(ExecutionContext& context, const MoeRoutePlan& plan, const MoeRouteArgs& args);
OpCost cost_moe_route(const MoeRoutePlan& plan, const MoeRouteArgs& args);

// Variants, by their registry names.
void moe_route_reference(ExecutionContext& context, const MoeRoutePlan& plan, const MoeRouteArgs& args);
void moe_route_cpu(ExecutionContext& context, const MoeRoutePlan& plan, const MoeRouteArgs& args);
std::int64_t moe_route_cpu_workspace(const MoeRouteDesc& desc, const DeviceInfo& device);
std::span<const Variant> moe_route_variants();

}  // namespace fathom
