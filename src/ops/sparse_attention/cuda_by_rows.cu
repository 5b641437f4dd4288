// sparse_attention/by_rows: `mma_splitk_arrival` for few rows, `wgmma` for more, `wgmma_whole` for still more (sm_90a).
// They give a row the same bits (group_softmax.cuh), so the choice is one of time alone.
#include "ops/sparse_attention/plan.h"
#include "ops/sparse_attention/sparse_attention.h"

namespace fathom::cuda {

void sparse_attention_mma_splitk_arrival(ExecutionContext& context, const SparseAttentionPlan& plan,
                                         const SparseAttentionArgs& args);
void sparse_attention_wgmma(ExecutionContext& context, const SparseAttentionPlan& plan,
                            const SparseAttentionArgs& args);
void sparse_attention_wgmma_whole(ExecutionContext& context, const SparseAttentionPlan& plan,
                                  const SparseAttentionArgs& args);

void sparse_attention_by_rows(ExecutionContext& context, const SparseAttentionPlan& plan,
                              const SparseAttentionArgs& args) {
  if (attention_prefers_whole(args.rows->num_tokens, plan.desc.num_heads, plan.desc.cache.ratio,
                              plan.num_multiprocessors)) {
    sparse_attention_wgmma_whole(context, plan, args);
  } else if (attention_prefers_groups(args.rows->num_tokens, plan.desc.num_heads, plan.desc.cache.ratio,
                                      plan.num_multiprocessors)) {
    sparse_attention_wgmma(context, plan, args);
  } else {
    sparse_attention_mma_splitk_arrival(context, plan, args);
  }
}

}  // namespace fathom::cuda
