#include "ops/attention_output/attention_output.h"
#include "ops/compress_kv/compress_kv.h"
#include "ops/draft_input/draft_input.h"
#include "ops/embed/embed.h"
#include "ops/hc_head/hc_head.h"
#include "ops/hyper_connection/hyper_connection.h"
#include "ops/index_query/index_query.h"
#include "ops/index_scores/index_scores.h"
#include "ops/kv_write/kv_write.h"
#include "ops/linear/linear.h"
#include "ops/lm_head/lm_head.h"
#include "ops/markov_head/markov_head.h"
#include "ops/moe_experts/moe_experts.h"
#include "ops/moe_route/moe_route.h"
#include "ops/q_norm_rope/q_norm_rope.h"
#include "ops/registry.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope_rows/rope_rows.h"
#include "ops/sample/sample_rows.h"
#include "ops/select_topk/select_topk.h"
#include "ops/sparse_attention/sparse_attention.h"
#include "ops/stream_mean/stream_mean.h"

namespace fathom {

void register_cpu_variants(OpRegistry& registry) {
  for (const std::span<const Variant> variants :
       {embed_variants(),       hyper_connection_variants(), hc_head_variants(),          linear_variants(),
        rms_norm_variants(),    rope_rows_variants(),        sample_rows_variants(),      q_norm_rope_variants(),
        kv_write_variants(),    compress_kv_variants(),      index_query_variants(),      index_scores_variants(),
        select_topk_variants(), sparse_attention_variants(), attention_output_variants(), moe_route_variants(),
        moe_experts_variants(), lm_head_variants(),          draft_input_variants(),      stream_mean_variants(),
        markov_head_variants()}) {
    for (const Variant& variant : variants) registry.add(variant);
  }
}

}  // namespace fathom
