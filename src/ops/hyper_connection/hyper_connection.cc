#include "ops/hyper_connection/hyper_connection.h"

#include <array>

#include "ops/check_view.h"
#include "ops/cost_terms.h"
#include "ops/hyper_connection/plan.h"

namespace fathom {

HyperConnectionPlan plan_hyper_connection(const HyperConnectionDesc& desc, const DeviceInfo& device) {
  if (device.backend == BackendKind::kCpu) return {desc, hyper_connection_cpu_workspace(desc, device)};
  return {desc, cuda::hc_workspace_bytes(desc.max_tokens, desc.hidden)};
}

void run_hyper_connection(ExecutionContext& context, const HyperConnectionPlan& plan, const HyperConnectionArgs& args) {
  const std::int64_t tokens = args.streams.shape[0];
  const std::int64_t hc = plan.desc.hc_mult;
  const std::int64_t hidden = plan.desc.hidden;
  check_activation(args.streams, tokens, hc * hidden);
  FATHOM_CHECK(!args.sublayer_out.empty() || !args.next.fn.empty() || tokens == 0, "a transition has a half");
  if (!args.sublayer_out.empty()) {
    check_activation(args.sublayer_out, tokens, hidden);
    check_view(args.post, DType::kF32, tokens, hc);
    check_view(args.comb, DType::kF32, tokens, hc * hc);
    check_activation(args.next_streams, tokens, hc * hidden);
    FATHOM_CHECK(args.next_streams.data != args.streams.data, "streams are double-buffered");
  }
  if (!args.next.fn.empty()) {
    check_view(args.next.fn, DType::kF32, (2 + hc) * hc, hc * hidden);
    check_vector(args.next.base, DType::kF32, (2 + hc) * hc);
    check_vector(args.next.scale, DType::kF32, 3);
    check_vector(args.norm_weight, DType::kBF16, hidden);
    check_view(args.next_post, DType::kF32, tokens, hc);
    check_view(args.next_comb, DType::kF32, tokens, hc * hc);
    check_activation(args.normed, tokens, hidden);
    if (!args.normed_quantised.empty()) {
      FATHOM_CHECK((*context.variants)[OpKind::kHyperConnection].backend == BackendKind::kCuda && hidden % 128 == 0,
                   "quantised rows are written on CUDA, in whole blocks");
      check_activation(args.normed_quantised, tokens, hidden);
    }
    FATHOM_CHECK(args.next_post.data != args.post.data || tokens == 0, "post is double-buffered");
    FATHOM_CHECK(args.next_comb.data != args.comb.data || tokens == 0, "comb is double-buffered");
  }
  run_operation(context, OpKind::kHyperConnection, plan, args, [&] { return cost_hyper_connection(plan, args); });
}

OpCost cost_hyper_connection(const HyperConnectionPlan& plan, const HyperConnectionArgs& args) {
  const auto tokens = static_cast<double>(args.streams.shape[0]);
  const auto hc = static_cast<double>(plan.desc.hc_mult);
  const auto hidden = static_cast<double>(plan.desc.hidden);
  OpCost cost{view_bytes(args.streams), 0.0};
  if (!args.sublayer_out.empty()) {
    cost.bytes += view_bytes(args.sublayer_out) + view_bytes(args.post) + view_bytes(args.comb);
    cost.bytes += view_bytes(args.next_streams);
    cost.flops += tokens * hidden * 2.0 * hc * (hc + 1.0);
  }
  if (!args.next.fn.empty()) {
    cost.bytes += view_bytes(args.next.fn) + view_bytes(args.next.base) + view_bytes(args.next.scale);
    cost.bytes += view_bytes(args.norm_weight) + view_bytes(args.next_post) + view_bytes(args.next_comb);
    cost.bytes += view_bytes(args.normed) + view_bytes(args.normed_quantised);
    const double mix_rows = (2.0 + hc) * hc;
    cost.flops += tokens * hidden * (2.0 * hc * mix_rows + 2.0 * hc + 2.0 * hc + 4.0);
    cost.flops += tokens * 4.0 * hc * hc * static_cast<double>(plan.desc.sinkhorn_iters);
  }
  return cost;
}

std::span<const Variant> hyper_connection_variants() {
  static const std::array variants = {
      make_variant(OpKind::kHyperConnection, "reference", BackendKind::kCpu, &hyper_connection_reference),
      make_variant(OpKind::kHyperConnection, "cpu", BackendKind::kCpu, &hyper_connection_cpu),
  };
  return variants;
}

}  // namespace fathom
