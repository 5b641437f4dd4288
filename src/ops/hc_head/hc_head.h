// hc_head: the streams of chosen rows collapsed for the output head (spec 2.8).
//
//   pre[j] = sigmoid((fn . v)[j] * r * scale[0] + base[j]) + hc_eps, v and r as in hyper_connection
//   x = store( sum_j pre[j] * h[j] ),  normed = store( norm_weight * x * rsqrt(mean(x^2) + rms_norm_eps) )
#pragma once

#include "ops/hyper_connection/hyper_connection.h"

namespace fathom {

struct HcHeadDesc {
  std::int64_t hidden = 0;
  std::int32_t hc_mult = 4;
  float hc_eps = 1e-6f;
  float rms_norm_eps = 1e-6f;
  Numerics numerics;
};
struct HcHeadPlan {
  HcHeadDesc desc;
  std::int64_t workspace_bytes = 0;
};
struct HcHeadArgs {
  View streams;                  // [tokens, hc, hidden]
  View row_indices;              // [rows] i32: which tokens; unset: all, rows == tokens
  HyperConnectionParams params;  // fn [hc, hc * hidden] f32, base [hc], scale [1]
  View norm_weight;              // [hidden] bf16
  View collapsed;                // out [rows, hidden]: x (tap hc_head)
  View normed;                   // out [rows, hidden] (tap norm)
};

HcHeadPlan plan_hc_head(const HcHeadDesc& desc, const DeviceInfo& device);
void run_hc_head(ExecutionContext& context, const HcHeadPlan& plan, const HcHeadArgs& args);
OpCost cost_hc_head(const HcHeadPlan& plan, const HcHeadArgs& args);

// Variants, by their registry names.
void hc_head_reference(ExecutionContext& context, const HcHeadPlan& plan, const HcHeadArgs& args);
void hc_head_cpu(ExecutionContext& context, const HcHeadPlan& plan, const HcHeadArgs& args);
std::int64_t hc_head_cpu_workspace(const HcHeadDesc& desc, const DeviceInfo& device);
std::span<const Variant> hc_head_variants();

}  // namespace fathom
