// sparse_attention: one softmax over window keys and compressed entries, one shared K=V head, a sink per
// head, inverse RoPE on the output (spec 2.4.6-8).
//
//   s_i = (q_h . k_i) * head_dim^-0.5;  o_h = sum_i exp(s_i - M) k_i / (sum_i exp(s_i - M) + exp(sink_h - M))
//   o = store(o); its last rope_dim channels rotated by the inverse angle at p; store
//
// Keys are the window positions [window_begin, window_end) in ascending order, then compressed entries in
// ascending index: none for ratio 0, all j < (p + 1) div 128 for ratio 128, `selected` for ratio 4.
// Reduction (row invariance): groups of 128 keys, group 0 is the window (whatever it holds), then compressed
// entries in groups of 128; a group gives (m, l, o) in fp32; groups fold left to right:
//   m' = max(m_a, m_b);  l' = l_a e^(m_a - m') + l_b e^(m_b - m');  o' likewise.
// The sink joins the denominator after the fold; exp(sink - M) may be inf: the result is then 0, not NaN.
#pragma once

#include "ops/cache_view.h"
#include "ops/numerics.h"
#include "ops/registry.h"
#include "ops/step_rows.h"

namespace fathom {

struct SparseAttentionDesc {
  LayerCache cache;
  std::int64_t max_tokens = 0;  // most rows of a call: sizes the workspace
  std::int32_t num_heads = 0;
  std::int32_t topk = 0;  // ratio 4: index_topk
  Numerics numerics;
};
struct SparseAttentionPlan {
  SparseAttentionDesc desc;
  std::int64_t workspace_bytes = 0;
  std::int64_t shared_memory_per_block_bytes = 0;  // CUDA: what a block may ask for
  std::int32_t num_multiprocessors = 0;            // CUDA with compute capability 9.0, else 0
  std::int64_t num_arrivals = 0;                   // ExecutionContext::arrivals
};
struct SparseAttentionArgs {
  const StepRows* rows = nullptr;
  CachePools pools;
  View q;         // [tokens, heads, head_dim]
  View sink;      // [heads] f32
  View selected;  // [tokens, topk] i32, ascending then -1 (ratio 4), else unset
  View rope;      // [tokens, rope_dim / 2, 2] f32, the layer's table
  View out;       // out [tokens, heads, head_dim]
};

SparseAttentionPlan plan_sparse_attention(const SparseAttentionDesc& desc, const DeviceInfo& device);
void run_sparse_attention(ExecutionContext& context, const SparseAttentionPlan& plan, const SparseAttentionArgs& args);
OpCost cost_sparse_attention(const SparseAttentionPlan& plan, const SparseAttentionArgs& args,
                             const HostLengths& lengths);

// Variants, by their registry names.
void sparse_attention_reference(ExecutionContext& context, const SparseAttentionPlan& plan,
                                const SparseAttentionArgs& args);
void sparse_attention_cpu(ExecutionContext& context, const SparseAttentionPlan& plan, const SparseAttentionArgs& args);
std::int64_t sparse_attention_cpu_workspace(const SparseAttentionDesc& desc, const DeviceInfo& device);
std::span<const Variant> sparse_attention_variants();

}  // namespace fathom
