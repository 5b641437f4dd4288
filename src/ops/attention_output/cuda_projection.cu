// attention_output: the grouped wo_a, then wo_b, each as one launch of linear's kernels.
#include "ops/attention_output/attention_output.h"
#include "ops/cuda/device_rows.cuh"
#include "ops/linear/kernels.cuh"

namespace fathom::cuda {
namespace {

struct Calls {
  LinearCall a, b;
  LinearItem wo_a, wo_b;
  Bf16Bits *z, *prepared;
};

Calls make_calls(ExecutionContext& context, const AttentionOutputPlan& plan, const AttentionOutputArgs& args) {
  const AttentionOutputDesc& d = plan.desc;
  const auto num_tokens = static_cast<std::int32_t>(args.o.shape[0]);
  const std::int64_t inner = d.num_groups * d.o_lora_rank;
  FATHOM_CHECK(args.wo_a->in_features == d.group_in && args.wo_a->out_features == inner,
               "wo_a [groups * rank, group_in]");
  auto* z = reinterpret_cast<Bf16Bits*>(context.scratch);
  Bf16Bits* prepared = z + num_tokens * inner;
  return {{args.o.as<Bf16Bits>(), d.num_groups * d.group_in, num_tokens},
          {z, inner, num_tokens},
          {device_weight(*args.wo_a), z, false, false, static_cast<std::int32_t>(d.o_lora_rank), 0},
          {device_weight(*args.wo_b), args.out.data, false,
           args.wo_b->quantises_input() && d.numerics.quantise_linear_input, 0, 0},
          z,
          prepared};
}

}  // namespace

void attention_output_naive(ExecutionContext& context, const AttentionOutputPlan& plan,
                            const AttentionOutputArgs& args) {
  const Calls calls = make_calls(context, plan, args);
  if (calls.a.num_tokens == 0) return;
  const cudaStream_t stream = stream_of(context);
  launch_linear_naive(calls.a, {&calls.wo_a, 1}, nullptr, stream);
  if (calls.wo_b.quantise)
    launch_quantise_rows(calls.z, calls.b.x_stride, calls.prepared, calls.b.num_tokens, calls.b.x_stride, stream);
  launch_linear_naive(calls.b, {&calls.wo_b, 1}, calls.prepared, stream);
}

void attention_output_mma(ExecutionContext& context, const AttentionOutputPlan& plan, const AttentionOutputArgs& args) {
  const Calls calls = make_calls(context, plan, args);
  if (calls.a.num_tokens == 0) return;
  launch_linear_wgmma(calls.a, {&calls.wo_a, 1}, calls.prepared, stream_of(context));
  launch_linear_wgmma(calls.b, {&calls.wo_b, 1}, calls.prepared, stream_of(context));
}

}  // namespace fathom::cuda
