// q_norm_rope: per-head RMS normalisation without weight, then RoPE on the last rope_dim channels (spec 2.4.3-4).
//
//   q = store( q_raw * rsqrt(mean(q_raw^2) + eps) ),  (q[2i], q[2i+1]) of the last rope_dim channels rotated by
//   the row's angle i (interleaved pairs), store
//
// The statistic is fp32 and rounded once with the product (spec section 4 allows either).
#pragma once

#include "ops/numerics.h"
#include "ops/registry.h"

namespace fathom {

struct QNormRopeDesc {
  std::int32_t num_heads = 0;
  std::int32_t head_dim = 512;
  std::int32_t rope_dim = 64;
  float eps = 1e-6f;
  Numerics numerics;
};
struct QNormRopePlan {
  QNormRopeDesc desc;
  std::int64_t workspace_bytes = 0;
};
struct QNormRopeArgs {
  View q_raw;  // [tokens, heads * head_dim]
  View rope;   // [tokens, rope_dim / 2, 2] f32 cos, sin
  View q;      // out [tokens, heads, head_dim]
};

QNormRopePlan plan_q_norm_rope(const QNormRopeDesc& desc, const DeviceInfo& device);
// The checks that run_q_norm_rope makes: attention_rows makes them too.
void check_q_norm_rope(const QNormRopePlan& plan, const QNormRopeArgs& args);
void run_q_norm_rope(ExecutionContext& context, const QNormRopePlan& plan, const QNormRopeArgs& args);
OpCost cost_q_norm_rope(const QNormRopePlan& plan, const QNormRopeArgs& args);

// Variants, by their registry names.
void q_norm_rope_reference(ExecutionContext& context, const QNormRopePlan& plan, const QNormRopeArgs& args);
void q_norm_rope_cpu(ExecutionContext& context, const QNormRopePlan& plan, const QNormRopeArgs& args);
std::span<const Variant> q_norm_rope_variants();

}  // namespace fathom
