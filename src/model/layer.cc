#include "model/layer.h"

#include <utility>

namespace fathom {

void Residual::begin_sublayer(const StepScope& scope, const HyperConnectionParams& params, const View& norm,
                              const View& quantised) {
  transition(scope, &params, norm, quantised);
  open_ = true;
}

void Residual::end_sublayer(const StepScope& scope) {
  FATHOM_CHECK(open_, "a sublayer is open");
  transition(scope, nullptr, {}, {});
  open_ = false;
}

void Residual::transition(const StepScope& scope, const HyperConnectionParams* next, const View& norm,
                          const View& quantised) {
  HyperConnectionArgs args;
  args.streams = streams(scope);
  if (open_) {
    args.sublayer_out = scope.rows_of(scope.act.y);
    args.post = scope.rows_of(scope.act.post[mix_]);
    args.comb = scope.rows_of(scope.act.comb[mix_]);
    std::swap(current_, spare_);
    args.next_streams = streams(scope);
    mix_ = 1 - mix_;
  }
  if (next != nullptr) {
    args.next = *next;
    args.norm_weight = norm;
    args.next_post = scope.rows_of(scope.act.post[mix_]);
    args.next_comb = scope.rows_of(scope.act.comb[mix_]);
    args.normed = scope.rows_of(scope.act.x);
    args.normed_quantised = quantised;
  }
  run_hyper_connection(scope.context, scope.plans.hyper_connection, args);
}

void run_layer(const StepScope& scope, const LayerWeights& weights, std::int32_t index, Residual& residual) {
  const bool closes_previous = residual.is_open();
  scope.context.layer = index;
  residual.begin_sublayer(scope, weights.attention_hc, weights.attention_norm,
                          scope.rows_if_kept(scope.act.x_quantised));
  if (closes_previous) scope.taps.write(scope.context, "layer", index - 1, residual.streams(scope));
  run_attention(scope, weights.attention, index);
  scope.taps.write(scope.context, "attn", index, scope.rows_of(scope.act.y));

  residual.begin_sublayer(scope, weights.ffn_hc, weights.ffn_norm);
  run_moe(scope, weights.moe);
  scope.taps.write(scope.context, "mlp", index, scope.rows_of(scope.act.y));
}

}  // namespace fathom
