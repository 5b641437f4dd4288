#include "ops/cuda/device_rows.cuh"
#include "ops/linear/kernels.cuh"
#include "ops/lm_head/lm_head.h"

namespace fathom::cuda {
namespace {

LinearCall call_of(const LmHeadPlan& plan, const LmHeadArgs& args) {
  return {args.x.as<Bf16Bits>(), plan.desc.hidden, static_cast<std::int32_t>(args.x.shape[0])};
}
LinearItem item_of(const LmHeadArgs& args) { return {device_weight(*args.head), args.logits.data, true, false, 0, 0}; }

}  // namespace

void lm_head_naive(ExecutionContext& context, const LmHeadPlan& plan, const LmHeadArgs& args) {
  const LinearItem item = item_of(args);
  launch_linear_naive(call_of(plan, args), {&item, 1}, nullptr, stream_of(context));
}

void lm_head_mma(ExecutionContext& context, const LmHeadPlan& plan, const LmHeadArgs& args) {
  const LinearItem item = item_of(args);
  if (args.x.shape[0] == 0) return;
  launch_linear_wgmma(call_of(plan, args), {&item, 1}, reinterpret_cast<Bf16Bits*>(context.scratch),
                      stream_of(context));
}

}  // namespace fathom::cuda
