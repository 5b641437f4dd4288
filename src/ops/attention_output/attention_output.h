// attention_output: the grouped low-rank output projection (spec 2.4.9).
//
//   o viewed as [tokens, groups, heads / groups * head_dim]
//   z[g] = store( wo_a[g * o_lora_rank : (g + 1) * o_lora_rank, :] . o[g] )    no activation quantisation
//   out  = Linear8(flatten(z); wo_b)
//
// The FP8 scale row of wo_a is its global row div 128, so one block may span several groups.
#pragma once

#include "ops/numerics.h"
#include "ops/registry.h"
#include "tensor/weights.h"

namespace fathom {

struct AttentionOutputDesc {
  std::int64_t max_tokens = 0;
  std::int32_t num_groups = 0;
  std::int64_t group_in = 0;  // heads / groups * head_dim
  std::int64_t o_lora_rank = 0;
  std::int64_t hidden = 0;
  Numerics numerics;
};
struct AttentionOutputPlan {
  AttentionOutputDesc desc;
  std::int64_t workspace_bytes = 0;
};
struct AttentionOutputArgs {
  View o;                              // [tokens, heads, head_dim]
  const LinearWeight* wo_a = nullptr;  // [groups * o_lora_rank, group_in]
  const LinearWeight* wo_b = nullptr;  // [hidden, groups * o_lora_rank]
  View out;                            // out [tokens, hidden]
};

AttentionOutputPlan plan_attention_output(const AttentionOutputDesc& desc, const DeviceInfo& device);
void run_attention_output(ExecutionContext& context, const AttentionOutputPlan& plan, const AttentionOutputArgs& args);
OpCost cost_attention_output(const AttentionOutputPlan& plan, const AttentionOutputArgs& args);

// Variants, by their registry names.
void attention_output_reference(ExecutionContext& context, const AttentionOutputPlan& plan,
                                const AttentionOutputArgs& args);
void attention_output_cpu(ExecutionContext& context, const AttentionOutputPlan& plan, const AttentionOutputArgs& args);
std::int64_t attention_output_cpu_workspace(const AttentionOutputDesc& desc, const DeviceInfo& device);
std::span<const Variant> attention_output_variants();

}  // namespace fathom
