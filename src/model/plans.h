// The plan of every operation of a model, made once: pure functions of config, numerics and device.
#pragma once

#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/expected_tensors.h"
#include "model/cache_layout.h"
#include "ops/attention_output/attention_output.h"
#include "ops/attention_rows/attention_rows.h"
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
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope_rows/rope_rows.h"
#include "ops/select_topk/select_topk.h"
#include "ops/sparse_attention/sparse_attention.h"
#include "ops/stream_mean/stream_mean.h"

namespace fathom {

// What differs from layer to layer: the group of weights that read x, and where the cache is.
struct LayerPlans {
  LinearPlan inputs;   // wq_a, wkv, compressors, index weights: all read x
  LinearPlan queries;  // wq_b, the indexer's wq_b: both read the low-rank q
  KvWritePlan kv_write;
  CompressKvPlan compress_main;
  CompressKvPlan compress_index;
  AttentionRowsPlan attention_rows;  // of kv_write, the compressors and the queries, where they are one operation
  IndexScoresPlan index_scores;
  SparseAttentionPlan attention;
};

struct ModelPlans {
  RopeRowsPlan rope;
  EmbedPlan embed;      // into all streams
  EmbedPlan embed_row;  // one row a token: draft blocks
  HyperConnectionPlan hyper_connection;
  RmsNormPlan q_norm;
  QNormRopePlan q_norm_rope;
  IndexQueryPlan index_query;
  SelectTopkPlan select_topk;
  AttentionOutputPlan attention_output;
  MoeRoutePlan moe_route;
  MoeExpertsPlan moe_experts;
  HcHeadPlan hc_head;
  LmHeadPlan lm_head;
  DraftInputPlan draft_input;
  // DSpark (spec 2.10).
  StreamMeanPlan stream_mean;
  LinearPlan tap_projection;
  RmsNormPlan tap_norm;
  LinearPlan context_key;
  MarkovHeadPlan markov_head;
  std::vector<LayerPlans> layers;    // trunk, then draft stages
  std::int64_t workspace_bytes = 0;  // the largest
  std::int64_t num_arrivals = 0;     // the largest (ExecutionContext::arrivals)
};

struct PlanLimits {
  std::int64_t max_tokens = 0;
  std::int64_t max_logit_rows = 0;
};

// Of one tile of index scores: `least`, or one row at the longest context, which is `max_context_tokens` or, where that
// is 0, what the config says. On CUDA every row of a decode step, at most 128: a tile more is two launches more.
std::int64_t index_score_budget_bytes(const ModelConfig& config, std::int64_t max_logit_rows,
                                      std::int64_t max_context_tokens, std::int64_t least, const DeviceInfo& device);

// Whether a sublayer's input and the low-rank q are written after AQ too, by the operations that make them: where a
// quantising pass would be a launch. The rows are whole blocks.
bool keeps_quantised_inputs(const ModelConfig& config, const Numerics& numerics, const DeviceInfo& device);

ModelPlans plan_model(const ModelConfig& config, const CacheLayout& layout, const Numerics& numerics,
                      const PlanLimits& limits, const DeviceInfo& device);

}  // namespace fathom
