#include "ops/index_query/index_query.h"

#include <array>

#include "ops/check_view.h"
#include "ops/cost_terms.h"

namespace fathom {

IndexQueryPlan plan_index_query(const IndexQueryDesc& desc, const DeviceInfo&) {
  FATHOM_CHECK(desc.rope_dim % 2 == 0 && desc.rope_dim <= desc.head_dim, "rotated channels are pairs of a head");
  FATHOM_CHECK((desc.head_dim & (desc.head_dim - 1)) == 0, "the Hadamard transform spans a power of two");
  return {desc, 0};
}

void check_index_query(const IndexQueryPlan& plan, const IndexQueryArgs& args) {
  const std::int64_t tokens = args.q_raw.shape[0];
  const std::int64_t width = static_cast<std::int64_t>(plan.desc.num_heads) * plan.desc.head_dim;
  check_activation(args.q_raw, tokens, width);
  check_view(args.rope, DType::kF32, tokens, plan.desc.rope_dim);
  check_activation(args.q, tokens, width);
}

void run_index_query(ExecutionContext& context, const IndexQueryPlan& plan, const IndexQueryArgs& args) {
  check_index_query(plan, args);
  run_operation(context, OpKind::kIndexQuery, plan, args, [&] { return cost_index_query(plan, args); });
}

OpCost cost_index_query(const IndexQueryPlan& plan, const IndexQueryArgs& args) {
  double butterflies = 0.0;  // log2(head_dim)
  for (std::int32_t half = 1; half < plan.desc.head_dim; half *= 2) butterflies += 1.0;
  return {view_bytes(args.q_raw) + view_bytes(args.rope) + view_bytes(args.q),
          (butterflies + 6.0) * static_cast<double>(args.q.shape.num_elements())};
}

std::span<const Variant> index_query_variants() {
  static const std::array variants = {
      make_variant(OpKind::kIndexQuery, "reference", BackendKind::kCpu, &index_query_reference),
      make_variant(OpKind::kIndexQuery, "cpu", BackendKind::kCpu, &index_query_cpu),
  };
  return variants;
}

}  // namespace fathom
