#include "model/plans.h"

#include <algorithm>
#include <cmath>

namespace fathom {
namespace {

class Planner {
 public:
  Planner(const ModelConfig& config, const Numerics& numerics, const PlanLimits& limits, const DeviceInfo& device)
      : config_(config), numerics_(numerics), limits_(limits), device_(device) {}

  ModelPlans plan(const CacheLayout& layout) {
    ModelPlans plans;
    const ModelConfig& c = config_;
    const std::int64_t tokens = limits_.max_tokens;
    plans.rope = keep(plan_rope_rows({c.qk_rope_head_dim}, device_));
    plans.embed = keep(plan_embed({c.hidden_size, c.hc_mult}, device_));
    plans.embed_row = keep(plan_embed({c.hidden_size, 1}, device_));
    plans.hyper_connection = keep(plan_hyper_connection(
        {c.hidden_size, c.hc_mult, c.hc_sinkhorn_iters, c.hc_eps, c.rms_norm_eps, numerics_, tokens}, device_));
    plans.q_norm = keep(plan_rms_norm({c.q_lora_rank, c.rms_norm_eps, numerics_}, device_));
    plans.q_norm_rope = keep(
        plan_q_norm_rope({c.num_attention_heads, c.head_dim, c.qk_rope_head_dim, c.rms_norm_eps, numerics_}, device_));
    plans.index_query =
        keep(plan_index_query({c.index_n_heads, c.index_head_dim, c.qk_rope_head_dim, numerics_}, device_));
    plans.select_topk = keep(plan_select_topk({c.index_topk, 4}, device_));
    const std::int64_t group_in = static_cast<std::int64_t>(c.heads_per_group()) * c.head_dim;
    plans.attention_output =
        keep(plan_attention_output({tokens, c.o_groups, group_in, c.o_lora_rank, c.hidden_size, numerics_}, device_));
    plans.moe_route = keep(plan_moe_route(
        {tokens, c.hidden_size, c.n_routed_experts, c.num_experts_per_tok, c.routed_scaling_factor, c.norm_topk_prob},
        device_));
    plans.moe_experts = keep(plan_moe_experts({tokens, c.hidden_size, c.moe_intermediate_size, c.n_routed_experts,
                                               c.num_experts_per_tok, c.swiglu_limit, numerics_},
                                              device_));
    plans.num_arrivals = plans.moe_experts.num_arrivals;
    plans.hc_head = keep(plan_hc_head({c.hidden_size, c.hc_mult, c.hc_eps, c.rms_norm_eps, numerics_}, device_));
    plans.lm_head = keep(plan_lm_head({limits_.max_logit_rows, c.hidden_size, c.vocab_size}, device_));
    plans.draft_input = keep(plan_draft_input({tokens, c.hidden_size, c.hc_mult, c.rms_norm_eps, numerics_}, device_));
    if (c.has_dspark_keys()) plan_dspark(plans);
    for (const LayerCache& cache : layout.layers) {
      plans.layers.push_back(plan_layer(cache, plans.q_norm_rope, plans.index_query));
      plans.num_arrivals = std::max(plans.num_arrivals, plans.layers.back().attention.num_arrivals);
    }
    plans.workspace_bytes = workspace_bytes_;
    return plans;
  }

 private:
  LayerPlans plan_layer(const LayerCache& cache, const QNormRopePlan& q_norm_rope, const IndexQueryPlan& index_query) {
    const ModelConfig& c = config_;
    LayerPlans plans;
    std::int64_t inputs = c.q_lora_rank + c.head_dim;
    std::int64_t queries = c.attention_width();
    if (cache.ratio != 0) {
      plans.compress_main = keep(plan_compress_kv({CompressorKind::kMain, cache, c.rms_norm_eps, numerics_}, device_));
      inputs += 2 * plans.compress_main.desc.row_width();
    }
    if (cache.ratio == 4) {
      plans.compress_index =
          keep(plan_compress_kv({CompressorKind::kIndex, cache, c.rms_norm_eps, numerics_}, device_));
      inputs += 2 * plans.compress_index.desc.row_width() + c.index_n_heads;
      queries += static_cast<std::int64_t>(c.index_n_heads) * c.index_head_dim;
      // Spec 2.6.3, in fp32: index_head_dim^-0.5 * index_n_heads^-0.5.
      const double scale = 1.0 / std::sqrt(static_cast<double>(c.index_head_dim) * c.index_n_heads);
      plans.index_scores =
          keep(plan_index_scores({cache, c.index_n_heads, c.index_topk, static_cast<float>(scale)}, device_));
    }
    plans.inputs = keep(plan_linear({limits_.max_tokens, c.hidden_size, inputs, numerics_}, device_));
    plans.queries = keep(plan_linear({limits_.max_tokens, c.q_lora_rank, queries, numerics_}, device_));
    plans.kv_write = keep(plan_kv_write({cache, c.rms_norm_eps, numerics_}, device_));
    plans.attention_rows =
        keep(plan_attention_rows(q_norm_rope, plans.kv_write, plans.compress_main, plans.compress_index, index_query));
    plans.attention = keep(
        plan_sparse_attention({cache, limits_.max_tokens, c.num_attention_heads, c.index_topk, numerics_}, device_));
    return plans;
  }

  void plan_dspark(ModelPlans& plans) {
    const ModelConfig& c = config_;
    const auto num_taps = static_cast<std::int32_t>(c.dspark_target_layer_ids.size());
    plans.stream_mean = keep(plan_stream_mean({c.hidden_size, c.hc_mult, num_taps, numerics_}, device_));
    plans.tap_projection = keep(
        plan_linear({limits_.max_tokens, num_taps * std::int64_t{c.hidden_size}, c.hidden_size, numerics_}, device_));
    plans.tap_norm = keep(plan_rms_norm({c.hidden_size, c.rms_norm_eps, numerics_}, device_));
    plans.context_key = keep(plan_linear({limits_.max_tokens, c.hidden_size, c.head_dim, numerics_}, device_));
    plans.markov_head =
        keep(plan_markov_head({limits_.max_logit_rows, c.hidden_size, c.dspark_markov_rank, c.vocab_size}, device_));
  }

  template <typename Plan>
  Plan keep(Plan plan) {
    workspace_bytes_ = std::max(workspace_bytes_, plan.workspace_bytes);
    return plan;
  }

  const ModelConfig& config_;
  const Numerics& numerics_;
  const PlanLimits& limits_;
  const DeviceInfo& device_;
  std::int64_t workspace_bytes_ = 0;
};

}  // namespace

bool keeps_quantised_inputs(const ModelConfig& config, const Numerics& numerics, const DeviceInfo& device) {
  return device.backend == BackendKind::kCuda && numerics.quantise_linear_input && config.hidden_size % 128 == 0 &&
         config.q_lora_rank % 128 == 0;
}

std::int64_t index_score_budget_bytes(const ModelConfig& config, std::int64_t max_logit_rows,
                                      std::int64_t max_context_tokens, std::int64_t least, const DeviceInfo& device) {
  // A score of 4 bytes for every fourth position.
  const std::int64_t longest = config.max_position_embeddings,
                     row_bytes = max_context_tokens > 0 ? std::min(max_context_tokens, longest) : longest;
  const std::int64_t rows = device.backend == BackendKind::kCuda ? std::min<std::int64_t>(max_logit_rows, 128) : 1;
  return std::max(least, std::max<std::int64_t>(rows, 1) * row_bytes);
}

ModelPlans plan_model(const ModelConfig& config, const CacheLayout& layout, const Numerics& numerics,
                      const PlanLimits& limits, const DeviceInfo& device) {
  return Planner(config, numerics, limits, device).plan(layout);
}

}  // namespace fathom
