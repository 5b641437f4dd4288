// hyper_connection: one transition between sublayers (spec 2.3): HCpost of the sublayer that ended,
// HCpre of the one that begins, and its RMSNorm.
//
//   h'[k]  = store( post[k] * y + sum_j comb[j][k] * h[j] )           (sum over the row index j)
//   v = flatten(h'), r = rsqrt(mean(v^2) + rms_norm_eps), m = (fn . v) * r
//   pre[j]  = sigmoid(m[j] * scale[0] + base[j]) + hc_eps
//   post[j] = 2 sigmoid(m[hc + j] * scale[1] + base[hc + j])
//   comb    = Sinkhorn(m[2 hc + hc j + k] * scale[2] + base[2 hc + hc j + k])
//   x = store( sum_j pre[j] * h'[j] ),  normed = store( norm_weight * x * rsqrt(mean(x^2) + rms_norm_eps) )
//
// Either half may be absent: the first transition has no post (h' = h), the last no pre. All fp32 inside,
// fp32 parameters. Sinkhorn: row softmax (+ eps on every entry), a column step, then iters - 1 times a row
// and a column step, each dividing by (sum + eps).
#pragma once

#include "ops/numerics.h"
#include "ops/registry.h"

namespace fathom {

struct HyperConnectionDesc {
  std::int64_t hidden = 0;
  std::int32_t hc_mult = 4;
  std::int32_t sinkhorn_iters = 20;
  float hc_eps = 1e-6f;
  float rms_norm_eps = 1e-6f;
  Numerics numerics;
  std::int64_t max_tokens = 0;  // most rows of a call: sizes the workspace
};
struct HyperConnectionPlan {
  HyperConnectionDesc desc;
  std::int64_t workspace_bytes = 0;
};
struct HyperConnectionParams {
  View fn;     // [(2 + hc) * hc, hc * hidden] f32, aligned
  View base;   // [(2 + hc) * hc] f32
  View scale;  // [3] f32
};
struct HyperConnectionArgs {
  View streams;  // [tokens, hc, hidden]: h
  // The sublayer that ended; unset: no post, and next_streams is not written.
  View sublayer_out;  // [tokens, hidden]: y
  View post;          // [tokens, hc] f32
  View comb;          // [tokens, hc, hc] f32
  View next_streams;  // out [tokens, hc, hidden]: h', never an alias of streams
  // The sublayer that begins; fn unset: no pre.
  HyperConnectionParams next;
  View norm_weight;  // [hidden] bf16
  View next_post;    // out [tokens, hc] f32
  View next_comb;    // out [tokens, hc, hc] f32
  View normed;       // out [tokens, hidden]
  // Optional, CUDA: AQ(normed, 128) beside normed, for linears that quantise their input. hidden % 128 == 0.
  View normed_quantised{};  // out [tokens, hidden]
};

HyperConnectionPlan plan_hyper_connection(const HyperConnectionDesc& desc, const DeviceInfo& device);
void run_hyper_connection(ExecutionContext& context, const HyperConnectionPlan& plan, const HyperConnectionArgs& args);
OpCost cost_hyper_connection(const HyperConnectionPlan& plan, const HyperConnectionArgs& args);

// Variants, by their registry names.
void hyper_connection_reference(ExecutionContext& context, const HyperConnectionPlan& plan,
                                const HyperConnectionArgs& args);
void hyper_connection_cpu(ExecutionContext& context, const HyperConnectionPlan& plan, const HyperConnectionArgs& args);
std::int64_t hyper_connection_cpu_workspace(const HyperConnectionDesc& desc, const DeviceInfo& device);
std::span<const Variant> hyper_connection_variants();

}  // namespace fathom
