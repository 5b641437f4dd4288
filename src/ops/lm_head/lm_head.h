// lm_head: logits = x . head^T, both widened to fp32, fp32 logits (spec 2.8).
#pragma once

#include "ops/numerics.h"
#include "ops/registry.h"
#include "tensor/weights.h"

namespace fathom {

struct LmHeadDesc {
  std::int64_t max_rows = 0;
  std::int64_t hidden = 0;
  std::int64_t vocab = 0;
};
struct LmHeadPlan {
  LmHeadDesc desc;
  std::int64_t workspace_bytes = 0;
};
struct LmHeadArgs {
  View x;                              // [rows, hidden]
  const LinearWeight* head = nullptr;  // [vocab, hidden] bf16
  View logits;                         // out [rows, vocab] f32
};

LmHeadPlan plan_lm_head(const LmHeadDesc& desc, const DeviceInfo& device);
void run_lm_head(ExecutionContext& context, const LmHeadPlan& plan, const LmHeadArgs& args);
OpCost cost_lm_head(const LmHeadPlan& plan, const LmHeadArgs& args);

// Variants, by their registry names.
void lm_head_reference(ExecutionContext& context, const LmHeadPlan& plan, const LmHeadArgs& args);
void lm_head_cpu(ExecutionContext& context, const LmHeadPlan& plan, const LmHeadArgs& args);
std::int64_t lm_head_cpu_workspace(const LmHeadDesc& desc, const DeviceInfo& device);
std::span<const Variant> lm_head_variants();

}  // namespace fathom
