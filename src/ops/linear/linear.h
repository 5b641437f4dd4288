// linear: out_i = x W_i^T for a group of weights that read the same x (spec 2.1: Linear8, LinearB, LinearF).
//
// Weights that quantise their input (LinearWeight::quantises_input) see AQ(x, 128) when
// numerics.quantise_linear_input is on; the others see x. fp32 accumulation; an output is rounded to bf16
// in `serve` unless it is kept in fp32 (compressors, router, head).
//
// Row invariance: out[t] is a bitwise function of x[t] and W; the order of summation over K follows from
// W's shape and format alone, never from the number of rows, the group, or the threads.
#pragma once

#include <span>

#include "ops/numerics.h"
#include "ops/registry.h"
#include "tensor/weights.h"

namespace fathom {

struct LinearDesc {
  std::int64_t max_tokens = 0;    // most rows of a call: sizes the workspace
  std::int64_t in_features = 0;   // K
  std::int64_t out_features = 0;  // the sum of N over the group
  Numerics numerics;
};
struct LinearPlan {
  LinearDesc desc;
  std::int64_t workspace_bytes = 0;
};
struct LinearOutput {
  const LinearWeight* weight = nullptr;
  View out;  // [tokens, out_features]; f32 when keep_fp32, else activation dtype
  bool keep_fp32 = false;
};
struct LinearArgs {
  View x;  // [tokens, in_features]
  std::span<const LinearOutput> outputs;
  // Optional, CUDA: AQ(x, 128), as the operation that made x wrote it; read instead of quantising x again.
  View x_quantised{};  // [tokens, in_features]
};

LinearPlan plan_linear(const LinearDesc& desc, const DeviceInfo& device);
void run_linear(ExecutionContext& context, const LinearPlan& plan, const LinearArgs& args);
OpCost cost_linear(const LinearPlan& plan, const LinearArgs& args);

// Variants, by their registry names.
void linear_reference(ExecutionContext& context, const LinearPlan& plan, const LinearArgs& args);
void linear_cpu(ExecutionContext& context, const LinearPlan& plan, const LinearArgs& args);
std::int64_t linear_cpu_workspace(const LinearDesc& desc, const DeviceInfo& device);
std::span<const Variant> linear_variants();

}  // namespace fathom
