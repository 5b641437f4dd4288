#include "ops/attention_output/attention_output.h"
#include "ops/attention_rows/attention_rows.h"
#include "ops/compress_kv/compress_kv.h"
#include "ops/cuda/variants.h"
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
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope_rows/rope_rows.h"
#include "ops/select_topk/select_topk.h"
#include "ops/sparse_attention/sparse_attention.h"
#include "ops/stream_mean/stream_mean.h"

namespace fathom {

// Of ops/sample/sample_rows.h: the drawing of rows has no folder of its own.
struct SampleRowsPlan;
struct SampleRowsArgs;

namespace cuda {

#define FATHOM_CUDA_VARIANT(name, Op) void name(ExecutionContext&, const Op##Plan&, const Op##Args&)
FATHOM_CUDA_VARIANT(embed_simt, Embed);
FATHOM_CUDA_VARIANT(hyper_connection_naive, HyperConnection);
FATHOM_CUDA_VARIANT(hyper_connection_fused, HyperConnection);
FATHOM_CUDA_VARIANT(hyper_connection_mma, HyperConnection);
FATHOM_CUDA_VARIANT(hc_head_fused, HcHead);
FATHOM_CUDA_VARIANT(linear_naive, Linear);
FATHOM_CUDA_VARIANT(linear_mma, Linear);
FATHOM_CUDA_VARIANT(linear_mma_tiled, Linear);
FATHOM_CUDA_VARIANT(linear_wgmma, Linear);
FATHOM_CUDA_VARIANT(rms_norm_simt, RmsNorm);
FATHOM_CUDA_VARIANT(rope_rows_simt, RopeRows);
FATHOM_CUDA_VARIANT(q_norm_rope_simt, QNormRope);
FATHOM_CUDA_VARIANT(kv_write_simt, KvWrite);
FATHOM_CUDA_VARIANT(compress_kv_simt, CompressKv);
FATHOM_CUDA_VARIANT(index_query_simt, IndexQuery);
FATHOM_CUDA_VARIANT(attention_rows_separate, AttentionRows);
FATHOM_CUDA_VARIANT(attention_rows_fused, AttentionRows);
FATHOM_CUDA_VARIANT(index_scores_naive, IndexScores);
FATHOM_CUDA_VARIANT(index_scores_full, IndexScores);
FATHOM_CUDA_VARIANT(index_scores_paged, IndexScores);
FATHOM_CUDA_VARIANT(index_scores_wgmma, IndexScores);
FATHOM_CUDA_VARIANT(select_topk_naive, SelectTopk);
FATHOM_CUDA_VARIANT(select_topk_radix, SelectTopk);
FATHOM_CUDA_VARIANT(select_topk_cluster, SelectTopk);
FATHOM_CUDA_VARIANT(sparse_attention_naive, SparseAttention);
FATHOM_CUDA_VARIANT(sparse_attention_simt, SparseAttention);
FATHOM_CUDA_VARIANT(sparse_attention_mma, SparseAttention);
FATHOM_CUDA_VARIANT(sparse_attention_mma_splitk, SparseAttention);
FATHOM_CUDA_VARIANT(sparse_attention_mma_splitk_arrival, SparseAttention);
FATHOM_CUDA_VARIANT(sparse_attention_wgmma, SparseAttention);
FATHOM_CUDA_VARIANT(sparse_attention_wgmma_whole, SparseAttention);
FATHOM_CUDA_VARIANT(sparse_attention_by_rows, SparseAttention);
FATHOM_CUDA_VARIANT(attention_output_naive, AttentionOutput);
FATHOM_CUDA_VARIANT(attention_output_mma, AttentionOutput);
FATHOM_CUDA_VARIANT(moe_route_naive, MoeRoute);
FATHOM_CUDA_VARIANT(moe_route_mma, MoeRoute);
FATHOM_CUDA_VARIANT(moe_experts_naive, MoeExperts);
FATHOM_CUDA_VARIANT(moe_experts_mma, MoeExperts);
FATHOM_CUDA_VARIANT(moe_experts_mma_arrival, MoeExperts);
FATHOM_CUDA_VARIANT(moe_experts_wgmma, MoeExperts);
FATHOM_CUDA_VARIANT(lm_head_naive, LmHead);
FATHOM_CUDA_VARIANT(lm_head_mma, LmHead);
FATHOM_CUDA_VARIANT(draft_input_mma, DraftInput);
FATHOM_CUDA_VARIANT(stream_mean_simt, StreamMean);
FATHOM_CUDA_VARIANT(markov_head_warp, MarkovHead);
FATHOM_CUDA_VARIANT(sample_rows_block, SampleRows);
FATHOM_CUDA_VARIANT(sample_rows_cooperative, SampleRows);
FATHOM_CUDA_VARIANT(sample_rows_cluster, SampleRows);
#undef FATHOM_CUDA_VARIANT

}  // namespace cuda

void register_cuda_variants(OpRegistry& registry) {
  const auto add = [&registry](OpKind op, std::string_view name, auto run) {
    registry.add(make_variant(op, name, BackendKind::kCuda, run));
  };
  add(OpKind::kEmbed, "simt", cuda::embed_simt);
  add(OpKind::kHyperConnection, "naive", cuda::hyper_connection_naive);
  add(OpKind::kHyperConnection, "fused", cuda::hyper_connection_fused);
  add(OpKind::kHyperConnection, "mma", cuda::hyper_connection_mma);
  add(OpKind::kHcHead, "fused", cuda::hc_head_fused);
  add(OpKind::kLinear, "naive", cuda::linear_naive);
  add(OpKind::kLinear, "mma", cuda::linear_mma);
  add(OpKind::kLinear, "mma_tiled", cuda::linear_mma_tiled);
  add(OpKind::kLinear, "wgmma", cuda::linear_wgmma);
  add(OpKind::kRmsNorm, "simt", cuda::rms_norm_simt);
  add(OpKind::kRopeRows, "simt", cuda::rope_rows_simt);
  add(OpKind::kQNormRope, "simt", cuda::q_norm_rope_simt);
  add(OpKind::kKvWrite, "simt", cuda::kv_write_simt);
  add(OpKind::kCompressKv, "simt", cuda::compress_kv_simt);
  add(OpKind::kIndexQuery, "simt", cuda::index_query_simt);
  add(OpKind::kAttentionRows, "separate", cuda::attention_rows_separate);
  add(OpKind::kAttentionRows, "fused", cuda::attention_rows_fused);
  add(OpKind::kIndexScores, "naive", cuda::index_scores_naive);
  add(OpKind::kIndexScores, "full", cuda::index_scores_full);
  add(OpKind::kIndexScores, "paged", cuda::index_scores_paged);
  add(OpKind::kIndexScores, "wgmma", cuda::index_scores_wgmma);
  add(OpKind::kSelectTopk, "naive", cuda::select_topk_naive);
  add(OpKind::kSelectTopk, "radix", cuda::select_topk_radix);
  add(OpKind::kSelectTopk, "cluster", cuda::select_topk_cluster);
  add(OpKind::kSparseAttention, "naive", cuda::sparse_attention_naive);
  add(OpKind::kSparseAttention, "simt", cuda::sparse_attention_simt);
  add(OpKind::kSparseAttention, "mma", cuda::sparse_attention_mma);
  add(OpKind::kSparseAttention, "wgmma", cuda::sparse_attention_wgmma);
  add(OpKind::kSparseAttention, "wgmma_whole", cuda::sparse_attention_wgmma_whole);
  add(OpKind::kSparseAttention, "mma_splitk", cuda::sparse_attention_mma_splitk);
  add(OpKind::kSparseAttention, "mma_splitk_arrival", cuda::sparse_attention_mma_splitk_arrival);
  add(OpKind::kSparseAttention, "by_rows", cuda::sparse_attention_by_rows);
  add(OpKind::kAttentionOutput, "naive", cuda::attention_output_naive);
  add(OpKind::kAttentionOutput, "mma", cuda::attention_output_mma);
  add(OpKind::kMoeRoute, "naive", cuda::moe_route_naive);
  add(OpKind::kMoeRoute, "mma", cuda::moe_route_mma);
  add(OpKind::kMoeExperts, "naive", cuda::moe_experts_naive);
  add(OpKind::kMoeExperts, "mma_arrival", cuda::moe_experts_mma_arrival);
  add(OpKind::kMoeExperts, "mma", cuda::moe_experts_mma);
  add(OpKind::kMoeExperts, "wgmma", cuda::moe_experts_wgmma);
  add(OpKind::kLmHead, "naive", cuda::lm_head_naive);
  add(OpKind::kLmHead, "mma", cuda::lm_head_mma);
  add(OpKind::kDraftInput, "mma", cuda::draft_input_mma);
  add(OpKind::kStreamMean, "simt", cuda::stream_mean_simt);
  add(OpKind::kMarkovHead, "warp", cuda::markov_head_warp);
  add(OpKind::kSample, "rows", cuda::sample_rows_block);
  add(OpKind::kSample, "cluster", cuda::sample_rows_cluster);
  add(OpKind::kSample, "cooperative", cuda::sample_rows_cooperative);
}

}  // namespace fathom
