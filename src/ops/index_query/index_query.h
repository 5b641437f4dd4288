// index_query: indexer queries ready for scoring (spec 2.6.1): RoPE at p on the last rope_dim of
// index_head_dim channels (compressed table), store; Hadamard128, store; FQ 32 (quantise_index).
#pragma once

#include "ops/numerics.h"
#include "ops/registry.h"

namespace fathom {

struct IndexQueryDesc {
  std::int32_t num_heads = 0;
  std::int32_t head_dim = 128;
  std::int32_t rope_dim = 64;
  Numerics numerics;
};
struct IndexQueryPlan {
  IndexQueryDesc desc;
  std::int64_t workspace_bytes = 0;
};
struct IndexQueryArgs {
  View q_raw;  // [tokens, heads * head_dim]
  View rope;   // [tokens, rope_dim / 2, 2] f32
  View q;      // out [tokens, heads, head_dim]
};

IndexQueryPlan plan_index_query(const IndexQueryDesc& desc, const DeviceInfo& device);
// The checks that run_index_query makes: attention_rows makes them too.
void check_index_query(const IndexQueryPlan& plan, const IndexQueryArgs& args);
void run_index_query(ExecutionContext& context, const IndexQueryPlan& plan, const IndexQueryArgs& args);
OpCost cost_index_query(const IndexQueryPlan& plan, const IndexQueryArgs& args);

// Variants, by their registry names.
void index_query_reference(ExecutionContext& context, const IndexQueryPlan& plan, const IndexQueryArgs& args);
void index_query_cpu(ExecutionContext& context, const IndexQueryPlan& plan, const IndexQueryArgs& args);
std::span<const Variant> index_query_variants();

}  // namespace fathom
