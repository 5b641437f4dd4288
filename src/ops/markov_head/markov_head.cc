#include "ops/markov_head/markov_head.h"

#include <array>

#include "ops/check_view.h"
#include "ops/cost_terms.h"
#include "ops/dequantise.h"

namespace fathom {

MarkovHeadPlan plan_markov_head(const MarkovHeadDesc& desc, const DeviceInfo& device) {
  return {desc, device.backend == BackendKind::kCpu ? markov_head_cpu_workspace(desc, device) : 0};
}

void run_markov_head(ExecutionContext& context, const MarkovHeadPlan& plan, const MarkovHeadArgs& args) {
  const MarkovHeadDesc& desc = plan.desc;
  const std::int64_t rows = args.out.shape[0];
  FATHOM_CHECK(rows <= desc.max_rows, "the plan covers the rows of the call");
  check_vector(args.previous, DType::kI32, rows);
  check_vector(args.row_indices, DType::kI32, rows);
  check_view(args.logits, DType::kF32, args.logits.shape[0], desc.vocab);
  check_activation(args.collapsed, args.logits.shape[0], desc.hidden);
  check_view(args.markov_w1, DType::kBF16, desc.vocab, desc.rank);
  check_linear_weight(*args.markov_w2, desc.vocab, desc.rank);
  check_linear_weight(*args.confidence_proj, 1, desc.hidden + desc.rank);
  FATHOM_CHECK(!args.markov_w2->quantises_input() && !args.confidence_proj->quantises_input(),
               "the Markov head is BF16 or F32");
  check_view(args.out, DType::kF32, rows, desc.vocab);
  check_vector(args.confidence, DType::kF32, rows);
  FATHOM_CHECK(args.out.data != args.logits.data, "no output aliases an input");
  run_operation(context, OpKind::kMarkovHead, plan, args, [&] { return cost_markov_head(plan, args); });
}

OpCost cost_markov_head(const MarkovHeadPlan& plan, const MarkovHeadArgs& args) {
  const MarkovHeadDesc& desc = plan.desc;
  const std::int64_t rows = args.out.shape[0];
  const auto row_bytes =
      static_cast<double>(desc.hidden * dtype_bytes(args.collapsed.dtype) + desc.rank * dtype_bytes(DType::kBF16) + 4);
  return {weight_bytes(*args.markov_w2) + weight_bytes(*args.confidence_proj) + 2 * view_bytes(args.out) +
              static_cast<double>(rows) * row_bytes,
          matmul_flops(rows, desc.vocab, desc.rank) + matmul_flops(rows, 1, desc.hidden + desc.rank)};
}

std::span<const Variant> markov_head_variants() {
  static const std::array variants = {
      make_variant(OpKind::kMarkovHead, "reference", BackendKind::kCpu, &markov_head_reference),
      make_variant(OpKind::kMarkovHead, "cpu", BackendKind::kCpu, &markov_head_cpu),
  };
  return variants;
}

}  // namespace fathom
