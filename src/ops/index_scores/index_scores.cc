#include "ops/index_scores/index_scores.h"

#include <array>

#include "ops/check_step_rows.h"
#include "ops/cost_terms.h"

namespace fathom {

IndexScoresPlan plan_index_scores(const IndexScoresDesc& desc, const DeviceInfo& device) {
  FATHOM_CHECK(desc.cache.ratio == 4 && desc.cache.index_key_offset_bytes >= 0, "ratio-4 layers have index keys");
  if (device.backend == BackendKind::kCpu) return {desc, index_scores_cpu_workspace(desc, device), 0};
  return {desc, 0, device.num_multiprocessors};
}

void run_index_scores(ExecutionContext& context, const IndexScoresPlan& plan, const IndexScoresArgs& args) {
  const IndexScoresDesc& desc = plan.desc;
  check_step_rows(args.rows);
  check_context_tables(*args.rows);
  check_activation(args.q, args.rows->num_tokens,
                   static_cast<std::int64_t>(desc.num_heads) * desc.cache.index_key.head_dim);
  check_activation(args.weights_raw, args.rows->num_tokens, desc.num_heads);
  FATHOM_CHECK(args.scores.dtype == DType::kF32 && args.scores.shape.rank() == 2, "scores are F32 rows");
  FATHOM_CHECK(args.first_row >= 0 && args.first_row + args.scores.shape[0] <= args.rows->num_tokens,
               "score rows are rows of the step");
  run_operation(context, OpKind::kIndexScores, plan, args,
                [&] { return cost_index_scores(plan, args, context.lengths); });
}

OpCost cost_index_scores(const IndexScoresPlan& plan, const IndexScoresArgs& args, const HostLengths& lengths) {
  const IndexScoresDesc& desc = plan.desc;
  const auto key_bytes = static_cast<double>(desc.cache.index_key.data_bytes() + desc.cache.index_key.scale_bytes());
  const auto row_width = static_cast<double>(desc.num_heads) * static_cast<double>(desc.cache.index_key.head_dim);
  HostLengths here = lengths;
  if (!here.positions.empty()) {
    here.positions = here.positions.subspan(static_cast<std::size_t>(args.first_row),
                                            static_cast<std::size_t>(args.scores.shape[0]));
  }
  OpCost cost;
  for_each_position_run(here, [&](std::int64_t first, std::int64_t last) {
    double keys = 0.0;
    for (std::int64_t p = first; p <= last; ++p) {
      const std::int64_t visible = (p + 1) / desc.cache.ratio;
      if (visible <= desc.topk) continue;
      keys = static_cast<double>(visible);
      cost.flops += keys * (2.0 * row_width + 3.0 * static_cast<double>(desc.num_heads));
      cost.bytes += 4.0 * (keys + row_width + static_cast<double>(desc.num_heads));
    }
    cost.bytes += keys * key_bytes;
  });
  return cost;
}

std::span<const Variant> index_scores_variants() {
  static const std::array variants = {
      make_variant(OpKind::kIndexScores, "reference", BackendKind::kCpu, &index_scores_reference),
      make_variant(OpKind::kIndexScores, "cpu", BackendKind::kCpu, &index_scores_cpu),
  };
  return variants;
}

}  // namespace fathom
