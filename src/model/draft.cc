// Draft blocks: the classic MTP block (spec 2.9) and the DSpark drafter (spec 2.10).
#include <algorithm>

#include "model/layer.h"
#include "model/model.h"
#include "ops/all_reduce/all_reduce.h"

namespace fathom {

View Model::draft_mtp(ExecutionContext& context, const StepInput& step, const View& streams, const CachePools& pools) {
  const DraftWeights& draft = weights_.draft;
  FATHOM_CHECK(draft.kind == DraftKind::kMtp, "the checkpoint has an MTP block");
  const StepScope scope = scope_of(context, step, pools);
  const std::int32_t index = config_.num_hidden_layers;
  context.layer = index;
  rotate_positions(scope);

  const Activations& act = arena_.act;
  const View embedded = scope.rows_of(act.embedded);
  run_embed(context, plans_.embed_row,
            {step.rows().token_ids, weights_.embed,
             make_view(embedded.data, embedded.dtype, {step.num_tokens(), 1, config_.hidden_size})});
  run_all_reduce(context, embedded);
  // The block never writes the buffer that it reads.
  const int from = stream_buffer_of(streams);
  const int to = (from + 1) % Activations::kMaxStreams;
  const int spare = (from + 2) % Activations::kMaxStreams;
  Residual residual(to, spare);
  run_draft_input(context, plans_.draft_input,
                  {embedded, streams, draft.enorm, draft.hnorm, &draft.e_proj, &draft.h_proj, residual.streams(scope)});
  run_layer(scope, draft.stages[0], index, residual);
  residual.end_sublayer(scope);
  draft_streams_ = last_streams_ = residual.streams(scope);
  taps_.write(context, "layer", index, draft_streams_);
  return head(scope, draft_streams_, draft.hc_head, draft.norm);
}

View Model::draft_input_streams(std::int64_t num_rows) const {
  const int occupied = stream_buffer_of(last_streams_);
  return arena_.act.streams[(occupied + 1) % Activations::kMaxStreams].rows(0, num_rows);
}

int Model::stream_buffer_of(const View& streams) const {
  for (int i = 0; i < Activations::kMaxStreams; ++i) {
    const View& buffer = arena_.act.streams[i];
    if (buffer.data <= streams.data && streams.data < buffer.data + buffer.num_bytes()) return i;
  }
  FATHOM_CHECK(false, "streams come from forward or from a draft block");
  return -1;
}

// The mean over the streams behind a layer that the drafter taps; the layer's last HCpost is closed for it.
void Model::tap_layer(const StepScope& scope, std::int32_t layer, Residual& residual) const {
  const auto& tapped = config_.dspark_target_layer_ids;
  const auto found = std::find(tapped.begin(), tapped.end(), layer);
  if (found == tapped.end()) return;
  residual.end_sublayer(scope);
  const View streams = residual.streams(scope);
  if (layer + 1 < config_.num_hidden_layers) taps_.write(scope.context, "layer", layer, streams);
  run_stream_mean(scope.context, plans_.stream_mean,
                  {streams, static_cast<std::int32_t>(found - tapped.begin()), scope.rows_of(arena_.act.taps)});
}

void Model::draft_context(ExecutionContext& context, const StepInput& step, const CachePools& pools) {
  const DraftWeights& draft = weights_.draft;
  FATHOM_CHECK(draft.kind == DraftKind::kDspark, "the checkpoint has a DSpark drafter");
  const StepScope scope = scope_of(context, step, pools);
  const Activations& act = arena_.act;
  context.layer = config_.num_hidden_layers;
  rotate_positions(scope);
  const View taps = scope.rows_of(act.taps);
  taps_.write(context, "taps", -1, taps);
  const View projection = scope.rows_of(act.tap_projection);
  const LinearOutput projected[] = {{&draft.main_proj, projection}};
  run_linear(context, plans_.tap_projection, {taps, projected});
  const View m = scope.rows_of(act.tap_context);
  run_rms_norm(context, plans_.tap_norm, {projection, draft.main_norm, m});
  for (std::size_t k = 0; k < draft.stages.size(); ++k) {
    const AttentionWeights& attention = draft.stages[k].attention;
    const LayerPlans& plans = plans_.layers[static_cast<std::size_t>(config_.num_hidden_layers) + k];
    context.layer = config_.num_hidden_layers + static_cast<std::int32_t>(k);
    const View kv_raw = scope.rows_of(act.kv_raw);
    const LinearOutput keys[] = {{&attention.wkv, kv_raw}};
    run_linear(context, plans_.context_key, {m, keys});
    run_kv_write(context, plans.kv_write,
                 {&step.rows(), pools, kv_raw, attention.kv_norm, scope.rows_of(act.window_rope)});
  }
}

View Model::draft_block(ExecutionContext& context, const StepInput& step, const CachePools& pools) {
  const DraftWeights& draft = weights_.draft;
  FATHOM_CHECK(draft.kind == DraftKind::kDspark, "the checkpoint has a DSpark drafter");
  FATHOM_CHECK(step.num_logit_rows() == step.num_tokens(), "every row of a block wants logits");
  const StepScope scope = scope_of(context, step, pools);
  context.layer = config_.num_hidden_layers;
  rotate_positions(scope);
  Residual residual(0, 1);
  const View embedded = residual.streams(scope);
  run_embed(context, plans_.embed, {step.rows().token_ids, weights_.embed, embedded});
  run_all_reduce(context, embedded);
  for (std::size_t k = 0; k < draft.stages.size(); ++k) {
    run_layer(scope, draft.stages[k], config_.num_hidden_layers + static_cast<std::int32_t>(k), residual);
  }
  residual.end_sublayer(scope);
  draft_streams_ = last_streams_ = residual.streams(scope);
  taps_.write(context, "layer", context.layer, draft_streams_);
  block_logits_ = head(scope, draft_streams_, draft.hc_head, draft.norm);
  block_collapsed_ = arena_.act.collapsed.rows(0, step.num_logit_rows());
  return block_logits_;
}

Model::MarkovDrafts Model::draft_markov(ExecutionContext& context, const View& previous, const View& row_indices) {
  const DraftWeights& draft = weights_.draft;
  const std::int64_t rows = previous.shape[0];
  MarkovDrafts drafts;
  drafts.logits = arena_.act.corrected_logits.rows(0, rows);
  drafts.confidence = arena_.act.draft_confidence.rows(0, rows);
  run_markov_head(context, plans_.markov_head,
                  {previous, row_indices, block_logits_, block_collapsed_, draft.markov_w1, &draft.markov_w2,
                   &draft.confidence_proj, drafts.logits, drafts.confidence});
  return drafts;
}

}  // namespace fathom
