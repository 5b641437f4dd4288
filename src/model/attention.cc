// Attention of one layer: window keys, compressed entries, the indexer's choice (spec 2.4 to 2.6).
#include <algorithm>
#include <array>

#include "model/layer.h"
#include "ops/all_reduce/all_reduce.h"

namespace fathom {
namespace {

// Everything that reads x in one pass: the low-rank q, kv, compressor rows, index weights.
void project_inputs(const StepScope& scope, const AttentionWeights& weights, const LayerPlans& plans,
                    std::int32_t ratio) {
  const Activations& act = scope.act;
  std::array<LinearOutput, 7> outputs;
  std::size_t count = 0;
  outputs[count++] = {&weights.wq_a, scope.rows_of(act.q_low)};
  outputs[count++] = {&weights.wkv, scope.rows_of(act.kv_raw)};
  if (ratio != 0) {
    const std::int64_t width = plans.compress_main.desc.row_width();
    outputs[count++] = {&weights.compressor.wkv, scope.rows_of(act.main_u, width), true};
    outputs[count++] = {&weights.compressor.wgate, scope.rows_of(act.main_g, width), true};
  }
  if (ratio == 4) {
    outputs[count++] = {&weights.indexer.compressor.wkv, scope.rows_of(act.index_u), true};
    outputs[count++] = {&weights.indexer.compressor.wgate, scope.rows_of(act.index_g), true};
    outputs[count++] = {&weights.indexer.weights_proj, scope.rows_of(act.index_weights)};
  }
  run_linear(scope.context, plans.inputs,
             {scope.rows_of(act.x), {outputs.data(), count}, scope.rows_if_kept(act.x_quantised)});
}

// What the low-rank q becomes: q_raw = wq_b qr, and the indexer's; qr = norm(low-rank q) is shared.
void project_queries(const StepScope& scope, const AttentionWeights& weights, const LayerPlans& plans,
                     std::int32_t ratio) {
  const Activations& act = scope.act;
  const View q_low_normed = scope.rows_of(act.q_low_normed);
  const View q_low_quantised = scope.rows_if_kept(act.q_low_quantised);
  run_rms_norm(scope.context, scope.plans.q_norm,
               {scope.rows_of(act.q_low), weights.q_norm, q_low_normed, q_low_quantised});
  std::array<LinearOutput, 2> outputs;
  std::size_t count = 0;
  outputs[count++] = {&weights.wq_b, scope.rows_of(act.q_raw)};
  if (ratio == 4) outputs[count++] = {&weights.indexer.wq_b, scope.rows_of(act.index_q_raw)};
  run_linear(scope.context, plans.queries, {q_low_normed, {outputs.data(), count}, q_low_quantised});
}

CompressKvArgs compressor_args(const StepScope& scope, const CompressorWeights& weights, const CompressKvPlan& plan,
                               const View& u, const View& g) {
  const std::int64_t width = plan.desc.row_width();
  return {&scope.step.rows(), scope.pools,  scope.rows_of(u, width),     scope.rows_of(g, width),
          weights.ape,        weights.norm, scope.compressed_frequencies};
}

// q = rope(head_norm(q_raw)), the window key, the compressors, the indexer's q: one operation where the backend has
// it. Compressors before the index and before attention: the entry that a row closes is visible to that row.
void make_rows(const StepScope& scope, const AttentionWeights& weights, const LayerPlans& plans, std::int32_t ratio,
               const View& rope) {
  const Activations& act = scope.act;
  AttentionRowsArgs args;
  args.queries = {scope.rows_of(act.q_raw), rope, scope.rows_of(act.q)};
  args.kv_write = {&scope.step.rows(), scope.pools, scope.rows_of(act.kv_raw), weights.kv_norm, rope};
  if (ratio != 0) {
    args.compress_main = compressor_args(scope, weights.compressor, plans.compress_main, act.main_u, act.main_g);
  }
  if (ratio == 4) {
    args.compress_index =
        compressor_args(scope, weights.indexer.compressor, plans.compress_index, act.index_u, act.index_g);
    args.index_query = {scope.rows_of(act.index_q_raw), rope, scope.rows_of(act.index_q)};
  }
  if (scope.context.variants->has(OpKind::kAttentionRows)) {
    return run_attention_rows(scope.context, plans.attention_rows, args);
  }
  run_q_norm_rope(scope.context, scope.plans.q_norm_rope, args.queries);
  run_kv_write(scope.context, plans.kv_write, args.kv_write);
  if (ratio != 0) run_compress_kv(scope.context, plans.compress_main, args.compress_main);
  if (ratio == 4) {
    run_compress_kv(scope.context, plans.compress_index, args.compress_index);
    run_index_query(scope.context, scope.plans.index_query, args.index_query);
  }
}

// Scores and selection in tiles of rows: a tile's scores fit the budget, whatever the context. Rows do not
// see each other, so the tiling does not enter the result.
void select_entries(const StepScope& scope, const LayerPlans& plans) {
  const Activations& act = scope.act;
  const View index_q = scope.rows_of(act.index_q);
  std::int64_t most_visible = 1;
  for (const std::int32_t position : scope.step.positions()) {
    most_visible = std::max<std::int64_t>(most_visible, (std::int64_t{position} + 1) / 4);
  }
  // A step that is captured is replayed at other lengths: the kernels leave early at each row's own.
  if (scope.context.capture_max_position > 0) most_visible = (scope.context.capture_max_position + 1) / 4;
  const std::int32_t num_tokens = scope.step.num_tokens();
  const bool selects_all = most_visible <= plans.index_scores.desc.topk;
  const std::int64_t tile = selects_all ? num_tokens : act.index_score_bytes / (4 * most_visible);
  FATHOM_CHECK(tile >= 1, "one row of index scores fits the budget");
  const std::int64_t stride = selects_all ? 1 : most_visible;
  for (std::int64_t first = 0; first < num_tokens; first += tile) {
    const std::int64_t rows = std::min<std::int64_t>(tile, num_tokens - first);
    const View scores = make_view(act.index_scores.data, DType::kF32, {rows, stride});
    if (!selects_all) {
      run_index_scores(scope.context, plans.index_scores,
                       {&scope.step.rows(), scope.pools, static_cast<std::int32_t>(first), index_q,
                        scope.rows_of(act.index_weights), scores});
      run_all_reduce(scope.context, scores);
    }
    run_select_topk(scope.context, scope.plans.select_topk,
                    {&scope.step.rows(), static_cast<std::int32_t>(first), scores, scope.rows_of(act.selected)});
  }
}

}  // namespace

void run_attention(const StepScope& scope, const AttentionWeights& weights, std::int32_t index) {
  const Activations& act = scope.act;
  const LayerPlans& plans = scope.plans.layers[static_cast<std::size_t>(index)];
  const std::int32_t ratio = plans.kv_write.desc.cache.ratio;
  const View rope = scope.rows_of(ratio == 0 ? act.window_rope : act.compressed_rope);

  project_inputs(scope, weights, plans, ratio);
  project_queries(scope, weights, plans, ratio);
  make_rows(scope, weights, plans, ratio, rope);
  if (ratio == 4) {
    select_entries(scope, plans);
    scope.taps.write(scope.context, "topk", index, scope.rows_of(act.selected));
  }
  const View o = scope.rows_of(act.o);
  run_sparse_attention(scope.context, plans.attention,
                       {&scope.step.rows(), scope.pools, scope.rows_of(act.q), weights.sink,
                        ratio == 4 ? scope.rows_of(act.selected) : View{}, rope, o});
  const View y = scope.rows_of(act.y);
  run_attention_output(scope.context, scope.plans.attention_output, {o, &weights.wo_a, &weights.wo_b, y});
  run_all_reduce(scope.context, y);
}

}  // namespace fathom
