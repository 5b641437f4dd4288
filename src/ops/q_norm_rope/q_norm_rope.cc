#include "ops/q_norm_rope/q_norm_rope.h"

#include <array>

#include "ops/check_view.h"
#include "ops/cost_terms.h"

namespace fathom {

QNormRopePlan plan_q_norm_rope(const QNormRopeDesc& desc, const DeviceInfo&) {
  FATHOM_CHECK(desc.rope_dim % 2 == 0 && desc.rope_dim <= desc.head_dim, "rotated channels are pairs of a head");
  return {desc, 0};
}

void check_q_norm_rope(const QNormRopePlan& plan, const QNormRopeArgs& args) {
  const std::int64_t tokens = args.q_raw.shape[0];
  const std::int64_t width = static_cast<std::int64_t>(plan.desc.num_heads) * plan.desc.head_dim;
  check_activation(args.q_raw, tokens, width);
  check_view(args.rope, DType::kF32, tokens, plan.desc.rope_dim);
  check_activation(args.q, tokens, width);
}

void run_q_norm_rope(ExecutionContext& context, const QNormRopePlan& plan, const QNormRopeArgs& args) {
  check_q_norm_rope(plan, args);
  run_operation(context, OpKind::kQNormRope, plan, args, [&] { return cost_q_norm_rope(plan, args); });
}

OpCost cost_q_norm_rope(const QNormRopePlan&, const QNormRopeArgs& args) {
  return {view_bytes(args.q_raw) + view_bytes(args.rope) + view_bytes(args.q),
          4.0 * static_cast<double>(args.q.shape.num_elements())};
}

std::span<const Variant> q_norm_rope_variants() {
  static const std::array variants = {
      make_variant(OpKind::kQNormRope, "reference", BackendKind::kCpu, &q_norm_rope_reference),
      make_variant(OpKind::kQNormRope, "cpu", BackendKind::kCpu, &q_norm_rope_cpu),
  };
  return variants;
}

}  // namespace fathom
