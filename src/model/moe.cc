// Mixture of experts of one layer: hash or scored routing, routed experts and the shared one (spec 2.7).
#include "model/layer.h"
#include "ops/all_reduce/all_reduce.h"

namespace fathom {

void run_moe(const StepScope& scope, const MoeWeights& weights) {
  const Activations& act = scope.act;
  const View x = scope.rows_of(act.x);
  const View expert_ids = scope.rows_of(act.expert_ids);
  const View expert_weights = scope.rows_of(act.expert_weights);
  const View y = scope.rows_of(act.y);
  // Hash-routed layers have tid2eid and no bias; they read the rows' token ids.
  run_moe_route(
      scope.context, scope.plans.moe_route,
      {x, &weights.gate, weights.bias, weights.tid2eid, scope.step.rows().token_ids, expert_ids, expert_weights});
  scope.taps.write(scope.context, "route", scope.context.layer, expert_ids);
  run_moe_experts(scope.context, scope.plans.moe_experts,
                  {x, expert_ids, expert_weights, weights.experts, &weights.shared, weights.packed, y});
  run_all_reduce(scope.context, y);
}

}  // namespace fathom
