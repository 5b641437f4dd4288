// rms_norm: out = store( weight * (x * rsqrt(mean(x^2) + eps)) ) over the last dimension, fp32 inside (spec 2.1).
#pragma once

#include "ops/numerics.h"
#include "ops/registry.h"

namespace fathom {

struct RmsNormDesc {
  std::int64_t width = 0;
  float eps = 1e-6f;
  Numerics numerics;
};
struct RmsNormPlan {
  RmsNormDesc desc;
  std::int64_t workspace_bytes = 0;
};
struct RmsNormArgs {
  View x;       // [rows, width]
  View weight;  // [width] bf16
  View out;     // [rows, width]
  // Optional, CUDA: AQ(out, 128) beside out, for linears that quantise their input. width % 128 == 0.
  View out_quantised{};  // [rows, width]
};

RmsNormPlan plan_rms_norm(const RmsNormDesc& desc, const DeviceInfo& device);
void run_rms_norm(ExecutionContext& context, const RmsNormPlan& plan, const RmsNormArgs& args);
OpCost cost_rms_norm(const RmsNormPlan& plan, const RmsNormArgs& args);

// Variants, by their registry names.
void rms_norm_reference(ExecutionContext& context, const RmsNormPlan& plan, const RmsNormArgs& args);
void rms_norm_cpu(ExecutionContext& context, const RmsNormPlan& plan, const RmsNormArgs& args);
std::span<const Variant> rms_norm_variants();

}  // namespace fathom
