#include "model/activations.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace fathom {
namespace {

// Adds every buffer to a plan, and afterwards points each view at its place.
class ArenaBuilder {
 public:
  explicit ArenaBuilder(MemoryPlan& plan) : plan_(plan) {}

  void add(View& view, const char* name, DType dtype, Shape shape, Phase first, Phase last) {
    view = make_view(nullptr, dtype, shape);
    views_.emplace_back(&view, plan_.add(name, view.num_bytes(), first, last));
  }
  void add(View& view, const char* name, DType dtype, Shape shape) {
    add(view, name, dtype, shape, Phase::kAttentionInputs, Phase::kHead);
  }
  void point(std::byte* base) {
    for (auto& [view, entry] : views_) view->data = base + plan_.offset_bytes(entry);
  }

 private:
  MemoryPlan& plan_;
  std::vector<std::pair<View*, int>> views_;
};

void describe(const ModelConfig& config, DType act_dtype, const ActivationLimits& limits, Activations& act,
              View& workspace, ArenaBuilder& arena) {
  const std::int64_t tokens = limits.max_tokens;
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t hc = config.hc_mult;
  const std::int64_t pairs = config.qk_rope_head_dim / 2;
  const std::int64_t width = config.attention_width();
  const bool ratio4 = config.num_layers_of(LayerKind::kRatio4) > 0;
  const bool compressed = ratio4 || config.num_layers_of(LayerKind::kRatio128) > 0;
  const std::int64_t main_width = (ratio4 ? 2 : 1) * config.head_dim;
  const std::int64_t index_width = static_cast<std::int64_t>(config.index_n_heads) * config.index_head_dim;
  const DType f32 = DType::kF32;

  for (int i = 0; i < (limits.draft ? 3 : 2); ++i)
    arena.add(act.streams[i], "streams", act_dtype, {tokens, hc, hidden});
  for (int i = 0; i < 2; ++i) {
    arena.add(act.post[i], "post", f32, {tokens, hc});
    arena.add(act.comb[i], "comb", f32, {tokens, hc, hc});
  }
  arena.add(act.x, "x", act_dtype, {tokens, hidden});
  if (limits.quantised_inputs) arena.add(act.x_quantised, "x_quantised", act_dtype, {tokens, hidden});
  arena.add(act.y, "y", act_dtype, {tokens, hidden});
  arena.add(act.window_rope, "window_rope", f32, {tokens, pairs, 2});
  arena.add(act.compressed_rope, "compressed_rope", f32, {tokens, pairs, 2});

  using enum Phase;
  arena.add(act.q_low, "q_low", act_dtype, {tokens, config.q_lora_rank}, kAttentionInputs, kQueries);
  arena.add(act.q_low_normed, "q_low_normed", act_dtype, {tokens, config.q_lora_rank}, kQueries, kQueries);
  if (limits.quantised_inputs) {
    arena.add(act.q_low_quantised, "q_low_quantised", act_dtype, {tokens, config.q_lora_rank}, kQueries, kQueries);
  }
  arena.add(act.kv_raw, "kv_raw", act_dtype, {tokens, config.head_dim}, kAttentionInputs, kCacheWrites);
  if (compressed) {
    arena.add(act.main_u, "main_u", f32, {tokens, main_width}, kAttentionInputs, kCacheWrites);
    arena.add(act.main_g, "main_g", f32, {tokens, main_width}, kAttentionInputs, kCacheWrites);
  }
  arena.add(act.q_raw, "q_raw", act_dtype, {tokens, width}, kQueries, kCacheWrites);
  arena.add(act.q, "q", act_dtype, {tokens, config.num_attention_heads, config.head_dim}, kCacheWrites, kAttention);
  if (ratio4) {
    const std::int64_t key_width = 2 * static_cast<std::int64_t>(config.index_head_dim);
    arena.add(act.index_u, "index_u", f32, {tokens, key_width}, kAttentionInputs, kCacheWrites);
    arena.add(act.index_g, "index_g", f32, {tokens, key_width}, kAttentionInputs, kCacheWrites);
    arena.add(act.index_weights, "index_weights", act_dtype, {tokens, config.index_n_heads}, kAttentionInputs, kIndex);
    // Operation by operation, the indexer's q comes last: what the others read is no longer needed then.
    const Phase made = limits.fused_rows ? kCacheWrites : kIndex;
    arena.add(act.index_q_raw, "index_q_raw", act_dtype, {tokens, index_width}, kQueries, made);
    arena.add(act.index_q, "index_q", act_dtype, {tokens, config.index_n_heads, config.index_head_dim}, made, kIndex);
    arena.add(act.index_scores, "index_scores", f32, {limits.index_score_bytes / 4}, kIndex, kIndex);
    arena.add(act.selected, "selected", DType::kI32, {tokens, config.index_topk}, kIndex, kAttention);
  }
  arena.add(act.o, "o", act_dtype, {tokens, config.num_attention_heads, config.head_dim}, kAttention, kOutput);

  arena.add(act.expert_ids, "expert_ids", DType::kI32, {tokens, config.num_experts_per_tok}, kRoute, kExperts);
  arena.add(act.expert_weights, "expert_weights", f32, {tokens, config.num_experts_per_tok}, kRoute, kExperts);

  arena.add(act.collapsed, "collapsed", act_dtype, {limits.max_logit_rows, hidden}, kHead, kHead);
  arena.add(act.normed, "normed", act_dtype, {limits.max_logit_rows, hidden}, kHead, kHead);
  arena.add(act.logits, "logits", f32, {limits.max_logit_rows, config.vocab_size}, kHead, kHead);
  if (limits.draft)
    arena.add(act.embedded, "embedded", act_dtype, {tokens, hidden}, kAttentionInputs, kAttentionInputs);
  if (limits.num_taps > 0) {
    arena.add(act.taps, "taps", act_dtype, {tokens, limits.num_taps * hidden});
    arena.add(act.tap_projection, "tap_projection", act_dtype, {tokens, hidden}, kAttentionInputs, kAttentionInputs);
    arena.add(act.tap_context, "tap_context", act_dtype, {tokens, hidden}, kAttentionInputs, kCacheWrites);
    arena.add(act.corrected_logits, "corrected_logits", f32, {limits.max_logit_rows, config.vocab_size}, kHead, kHead);
    arena.add(act.draft_confidence, "draft_confidence", f32, {limits.max_logit_rows}, kHead, kHead);
  }
  arena.add(workspace, "workspace", DType::kU8, {limits.workspace_bytes});
  if (limits.num_arrivals > 0) arena.add(act.arrivals, "arrivals", DType::kI32, {limits.num_arrivals});
}

}  // namespace

MemoryPlan plan_activations(const ModelConfig& config, DType activation_dtype, const ActivationLimits& limits) {
  MemoryPlan plan;
  Activations act;
  View workspace;
  ArenaBuilder arena(plan);
  describe(config, activation_dtype, limits, act, workspace, arena);
  plan.place();
  return plan;
}

Result<ActivationArena> make_activations(const ModelConfig& config, const ActivationLimits& limits, Backend& backend) {
  ActivationArena made;
  View workspace;
  ArenaBuilder arena(made.plan);
  describe(config, backend.activation_dtype(), limits, made.act, workspace, arena);
  made.plan.place();
  FATHOM_ASSIGN_OR_RETURN(made.memory, backend.allocate(made.plan.total_bytes(), "activations"));
  arena.point(made.memory.data);
  made.act.workspace = workspace.data;
  made.act.workspace_bytes = workspace.num_bytes();
  made.act.index_score_bytes = limits.index_score_bytes;
  if (limits.num_arrivals > 0) {
    const std::vector<std::int32_t> zeros(static_cast<std::size_t>(limits.num_arrivals));
    FATHOM_RETURN_IF_ERROR(backend.upload(made.act.arrivals.data, reinterpret_cast<const std::byte*>(zeros.data()),
                                          made.act.arrivals.num_bytes()));
    FATHOM_RETURN_IF_ERROR(backend.finish());
  }
  return made;
}

}  // namespace fathom
