// embed: e = embed[token]; all hc_mult residual streams start as copies of e (spec 2.2).
#pragma once

#include "ops/numerics.h"
#include "ops/registry.h"

namespace fathom {

struct EmbedDesc {
  std::int64_t hidden = 0;
  std::int32_t hc_mult = 0;  // 1 gives plain rows
};
struct EmbedPlan {
  EmbedDesc desc;
  std::int64_t workspace_bytes = 0;
};
struct EmbedArgs {
  View token_ids;  // [tokens] i32, each in [0, vocab)
  View table;      // [vocab, hidden] bf16, maybe misaligned
  View streams;    // out [tokens, hc_mult, hidden] activation dtype
};

EmbedPlan plan_embed(const EmbedDesc& desc, const DeviceInfo& device);
void run_embed(ExecutionContext& context, const EmbedPlan& plan, const EmbedArgs& args);
OpCost cost_embed(const EmbedPlan& plan, const EmbedArgs& args);

// Variants, by their registry names.
void embed_reference(ExecutionContext& context, const EmbedPlan& plan, const EmbedArgs& args);
void embed_cpu(ExecutionContext& context, const EmbedPlan& plan, const EmbedArgs& args);
std::span<const Variant> embed_variants();

}  // namespace fathom
