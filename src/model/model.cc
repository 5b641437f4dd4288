#include "model/model.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "model/layer.h"
#include "ops/all_reduce/all_reduce.h"
#include "tensor/scalar_formats.h"

namespace fathom {

Model::Model(const Checkpoint& checkpoint, Backend& backend, const VariantTable& variants, const ModelOptions& options)
    : config_(checkpoint.config),
      options_(options),
      backend_(backend),
      variants_(variants),
      taps_(backend, checkpoint.config.num_hidden_layers) {}

Result<std::unique_ptr<Model>> Model::make(const Checkpoint& checkpoint, Backend& backend, const VariantTable& variants,
                                           const ModelOptions& options) {
  std::unique_ptr<Model> model(new Model(checkpoint, backend, variants, options));
  const ModelConfig& config = model->config_;
  FATHOM_ASSIGN_OR_RETURN(model->weights_, bind_weights(checkpoint, backend, options.draft, options.progress));
  const auto num_draft_layers = static_cast<std::int32_t>(model->weights_.draft.stages.size());
  model->layout_ = plan_cache_layout(config, options.numerics, num_draft_layers);
  model->plans_ = plan_model(config, model->layout_, options.numerics, {options.max_tokens, options.max_logit_rows},
                             backend.device());

  ActivationLimits limits;
  limits.max_tokens = options.max_tokens;
  limits.max_logit_rows = options.max_logit_rows;
  limits.index_score_bytes = index_score_budget_bytes(config, options.max_logit_rows, options.max_context_tokens,
                                                      options.index_score_bytes, backend.device());
  limits.workspace_bytes = model->plans_.workspace_bytes;
  limits.num_arrivals = model->plans_.num_arrivals;
  limits.quantised_inputs = keeps_quantised_inputs(config, options.numerics, backend.device());
  limits.fused_rows = backend.device().backend == BackendKind::kCuda;
  limits.draft = num_draft_layers > 0;
  if (model->weights_.draft.kind == DraftKind::kDspark) {
    limits.num_taps = static_cast<std::int32_t>(config.dspark_target_layer_ids.size());
  }
  FATHOM_ASSIGN_OR_RETURN(model->arena_, make_activations(config, limits, backend));

  const std::int32_t rope_dim = config.qk_rope_head_dim;
  const YarnScaling none;
  const YarnScaling yarn{config.rope_scaling.factor, config.rope_scaling.beta_fast, config.rope_scaling.beta_slow,
                         config.rope_scaling.original_max_position_embeddings};
  const std::vector<float> window = make_rope_frequencies(config.rope_theta, rope_dim, none);
  const std::vector<float> compressed = make_rope_frequencies(config.compress_rope_theta, rope_dim, yarn);
  const std::int64_t table_bytes = round_up(rope_dim / 2 * 4, 256);
  FATHOM_ASSIGN_OR_RETURN(model->frequencies_, backend.allocate(2 * table_bytes, "rope frequencies"));
  model->window_frequencies_ = make_view(model->frequencies_.data, DType::kF32, {rope_dim / 2});
  model->compressed_frequencies_ = make_view(model->frequencies_.data + table_bytes, DType::kF32, {rope_dim / 2});
  for (const auto& [view, values] :
       {std::pair{model->window_frequencies_, &window}, std::pair{model->compressed_frequencies_, &compressed}}) {
    FATHOM_RETURN_IF_ERROR(
        backend.upload(view.data, reinterpret_cast<const std::byte*>(values->data()), view.num_bytes()));
  }
  FATHOM_RETURN_IF_ERROR(backend.finish());
  return model;
}

ExecutionContext Model::make_context() const {
  ExecutionContext context = backend_.make_context();
  context.variants = &variants_;
  context.scratch = arena_.act.workspace;
  context.scratch_bytes = arena_.act.workspace_bytes;
  context.arrivals = arena_.act.arrivals.as<std::uint32_t>();
  context.num_arrivals = plans_.num_arrivals;
  return context;
}

StepScope Model::scope_of(ExecutionContext& context, const StepInput& step, const CachePools& pools) const {
  context.lengths.positions = step.positions();
  context.layer = kNoLayer;
  return {context, step, pools, plans_, arena_.act, taps_, compressed_frequencies_};
}

// cos and sin of every row's angles, for both tables.
void Model::rotate_positions(const StepScope& scope) const {
  const Activations& act = arena_.act;
  run_rope_rows(scope.context, plans_.rope,
                {scope.step.rows().positions, window_frequencies_, compressed_frequencies_,
                 scope.rows_of(act.window_rope), scope.rows_of(act.compressed_rope)});
}

View Model::forward(ExecutionContext& context, const StepInput& step, const CachePools& pools) {
  const StepScope scope = scope_of(context, step, pools);
  rotate_positions(scope);

  Residual residual(0, 1);
  const View embedded = residual.streams(scope);
  run_embed(context, plans_.embed, {step.rows().token_ids, weights_.embed, embedded});
  run_all_reduce(context, embedded);
  for (std::int32_t l = 0; l < config_.num_hidden_layers; ++l) {
    run_layer(scope, weights_.layers[static_cast<std::size_t>(l)], l, residual);
    if (weights_.draft.kind == DraftKind::kDspark) tap_layer(scope, l, residual);
  }
  if (residual.is_open()) residual.end_sublayer(scope);
  final_streams_ = last_streams_ = residual.streams(scope);
  taps_.write(context, "layer", config_.num_hidden_layers - 1, final_streams_);

  context.layer = kNoLayer;
  return head(scope, final_streams_, weights_.hc_head, weights_.norm);
}

View Model::replayed(const StepInput& step) {
  FATHOM_CHECK(!final_streams_.empty(), "a forward was launched before one is replayed");
  // The streams of a step end in the same buffer whatever its rows.
  final_streams_ = last_streams_ = make_view(final_streams_.data, final_streams_.dtype,
                                             {step.num_tokens(), config_.hc_mult, std::int64_t{config_.hidden_size}});
  return step.num_logit_rows() == 0 ? View{} : arena_.act.logits.rows(0, step.num_logit_rows());
}

// Streams of the rows that want logits -> logits (spec 2.8).
View Model::head(const StepScope& scope, const View& streams, const HyperConnectionParams& hc_head, const View& norm) {
  const std::int64_t rows = scope.step.num_logit_rows();
  if (rows == 0) return {};
  const Activations& act = arena_.act;
  const View collapsed = act.collapsed.rows(0, rows);
  const View normed = act.normed.rows(0, rows);
  const View logits = act.logits.rows(0, rows);
  run_hc_head(scope.context, plans_.hc_head, {streams, scope.step.logit_rows(), hc_head, norm, collapsed, normed});
  run_lm_head(scope.context, plans_.lm_head, {normed, &weights_.head, logits});
  run_all_reduce(scope.context, logits);
  const bool draft = scope.context.layer >= config_.num_hidden_layers;
  const std::int32_t tap_layer = draft ? scope.context.layer : -1;
  taps_.write(scope.context, "hc_head", tap_layer, collapsed);
  taps_.write(scope.context, "norm", tap_layer, normed);
  taps_.write(scope.context, "logits", tap_layer, logits);
  return logits;
}

Status Model::copy_rows(ExecutionContext& context, const RowCopies& copies) const {
  const OpScope scope{context.layer, "copy", "rows"};
  if (context.observer != nullptr) context.observer->begin_operation(scope);
  const Status status = backend_.copy_rows(copies);
  const OpCost cost{2.0 * static_cast<double>(copies.count) * static_cast<double>(copies.row_bytes), 0};
  if (context.observer != nullptr) context.observer->end_operation(scope, 1, cost);
  return status;
}

Status Model::run_layer_alone(ExecutionContext& context, std::int32_t layer, const StepInput& step,
                              std::span<const float> in, std::span<float> out, const CachePools& pools) {
  const StepScope scope = scope_of(context, step, pools);
  Residual residual(0, 1);
  const View first = residual.streams(scope);
  FATHOM_CHECK(static_cast<std::int64_t>(in.size()) == first.shape.num_elements() && out.size() == in.size(),
               "streams of every row");
  FATHOM_RETURN_IF_ERROR(upload_floats(in, first));
  rotate_positions(scope);
  run_layer(scope, weights_.layers[static_cast<std::size_t>(layer)], layer, residual);
  residual.end_sublayer(scope);
  const View last = residual.streams(scope);
  taps_.write(context, "layer", layer, last);
  FATHOM_RETURN_IF_ERROR(download_floats(last, out));
  return backend_.finish();
}

Status Model::upload_floats(std::span<const float> values, const View& to) const {
  if (to.dtype == DType::kF32) {
    return backend_.upload(to.data, reinterpret_cast<const std::byte*>(values.data()), to.num_bytes());
  }
  FATHOM_CHECK(to.dtype == DType::kBF16, "activations are f32 or bf16");
  std::vector<std::uint16_t> narrow(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) narrow[i] = float_to_bf16(values[i]);
  return backend_.upload(to.data, reinterpret_cast<const std::byte*>(narrow.data()), to.num_bytes());
}

Status Model::download_floats(const View& from, std::span<float> values) const {
  if (from.dtype == DType::kF32) {
    return backend_.download(reinterpret_cast<std::byte*>(values.data()), from.data, from.num_bytes());
  }
  std::vector<std::uint16_t> narrow(values.size());
  FATHOM_RETURN_IF_ERROR(backend_.download(reinterpret_cast<std::byte*>(narrow.data()), from.data, from.num_bytes()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = bf16_to_float(narrow[i]);
  return {};
}

}  // namespace fathom
