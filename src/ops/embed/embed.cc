#include "ops/embed/embed.h"

#include <array>

#include "ops/check_view.h"
#include "ops/cost_terms.h"

namespace fathom {

EmbedPlan plan_embed(const EmbedDesc& desc, const DeviceInfo&) { return {desc, 0}; }

void run_embed(ExecutionContext& context, const EmbedPlan& plan, const EmbedArgs& args) {
  const std::int64_t tokens = args.streams.shape[0];
  check_view(args.token_ids, DType::kI32, tokens, 1);
  check_view(args.table, DType::kBF16, args.table.shape[0], plan.desc.hidden);
  check_activation(args.streams, tokens, plan.desc.hc_mult * plan.desc.hidden);
  run_operation(context, OpKind::kEmbed, plan, args, [&] { return cost_embed(plan, args); });
}

OpCost cost_embed(const EmbedPlan& plan, const EmbedArgs& args) {
  const auto row_bytes = static_cast<double>(plan.desc.hidden * dtype_bytes(DType::kBF16));
  return {static_cast<double>(args.streams.shape[0]) * row_bytes + view_bytes(args.streams), 0.0};
}

std::span<const Variant> embed_variants() {
  static const std::array variants = {
      make_variant(OpKind::kEmbed, "reference", BackendKind::kCpu, &embed_reference),
      make_variant(OpKind::kEmbed, "cpu", BackendKind::kCpu, &embed_cpu),
  };
  return variants;
}

}  // namespace fathom
