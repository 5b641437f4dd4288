#include "ops/stream_mean/stream_mean.h"

#include <array>

#include "ops/check_view.h"
#include "ops/cost_terms.h"

namespace fathom {

StreamMeanPlan plan_stream_mean(const StreamMeanDesc& desc, const DeviceInfo&) { return {desc, 0}; }

void run_stream_mean(ExecutionContext& context, const StreamMeanPlan& plan, const StreamMeanArgs& args) {
  const StreamMeanDesc& desc = plan.desc;
  const std::int64_t tokens = args.streams.shape[0];
  check_activation(args.streams, tokens, desc.hc_mult * desc.hidden);
  check_activation(args.out, tokens, desc.num_slots * desc.hidden);
  FATHOM_CHECK(0 <= args.slot && args.slot < desc.num_slots, "a slot of the row");
  run_operation(context, OpKind::kStreamMean, plan, args, [&] { return cost_stream_mean(plan, args); });
}

OpCost cost_stream_mean(const StreamMeanPlan& plan, const StreamMeanArgs& args) {
  const double elements = static_cast<double>(args.streams.shape.num_elements());
  return {view_bytes(args.streams) * (1.0 + 1.0 / plan.desc.hc_mult), elements};
}

std::span<const Variant> stream_mean_variants() {
  static const std::array variants = {
      make_variant(OpKind::kStreamMean, "reference", BackendKind::kCpu, &stream_mean_reference),
      make_variant(OpKind::kStreamMean, "cpu", BackendKind::kCpu, &stream_mean_cpu),
  };
  return variants;
}

}  // namespace fathom
