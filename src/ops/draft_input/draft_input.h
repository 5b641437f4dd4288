// draft_input: what the classic MTP block runs on (spec 2.9).
//
//   e = rms_norm(embed[id]; enorm);  g_j = rms_norm(h[j]; hnorm) per stream
//   h'_j = store( Linear8(e; e_proj) + Linear8(g_j; h_proj) ),  e broadcast over the streams
#pragma once

#include "ops/numerics.h"
#include "ops/registry.h"
#include "tensor/weights.h"

namespace fathom {

struct DraftInputDesc {
  std::int64_t max_tokens = 0;
  std::int64_t hidden = 0;
  std::int32_t hc_mult = 4;
  float eps = 1e-6f;
  Numerics numerics;
};
struct DraftInputPlan {
  DraftInputDesc desc;
  std::int64_t workspace_bytes = 0;
};
struct DraftInputArgs {
  View embedded;                         // [tokens, hidden]: embed[id of the token at p + 1]
  View streams;                          // [tokens, hc, hidden]: the trunk's, after its last block
  View enorm;                            // [hidden] bf16
  View hnorm;                            // [hidden] bf16
  const LinearWeight* e_proj = nullptr;  // [hidden, hidden]
  const LinearWeight* h_proj = nullptr;  // [hidden, hidden]
  View out;                              // out [tokens, hc, hidden]
};

DraftInputPlan plan_draft_input(const DraftInputDesc& desc, const DeviceInfo& device);
void run_draft_input(ExecutionContext& context, const DraftInputPlan& plan, const DraftInputArgs& args);
OpCost cost_draft_input(const DraftInputPlan& plan, const DraftInputArgs& args);

// Variants, by their registry names.
void draft_input_reference(ExecutionContext& context, const DraftInputPlan& plan, const DraftInputArgs& args);
void draft_input_cpu(ExecutionContext& context, const DraftInputPlan& plan, const DraftInputArgs& args);
std::int64_t draft_input_cpu_workspace(const DraftInputDesc& desc, const DeviceInfo& device);
std::span<const Variant> draft_input_variants();

}  // namespace fathom
