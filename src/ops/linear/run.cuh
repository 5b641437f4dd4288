// From LinearArgs to launches: groups of at most kLinearMaxGroup weights that read one x.
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>

#include "ops/cuda/device_rows.cuh"
#include "ops/linear/kernels.cuh"
#include "ops/linear/linear.h"
#include "ops/linear/plan.h"

namespace fathom::cuda {

template <typename Launch>
void run_linear_group(ExecutionContext& context, const LinearPlan& plan, const LinearArgs& args, Launch&& launch) {
  const LinearCall call{args.x.as<Bf16Bits>(), plan.desc.in_features, static_cast<std::int32_t>(args.x.shape[0]),
                        args.x_quantised.as<Bf16Bits>()};
  FATHOM_CHECK(args.x.dtype == DType::kBF16 && args.x.shape[1] == plan.desc.in_features,
               "x is [tokens, in_features] bf16");
  if (call.num_tokens == 0) return;
  for (std::size_t begin = 0; begin < args.outputs.size(); begin += kLinearMaxGroup) {
    const std::size_t count = std::min<std::size_t>(kLinearMaxGroup, args.outputs.size() - begin);
    std::array<LinearItem, kLinearMaxGroup> items{};
    for (std::size_t i = 0; i < count; ++i) {
      const LinearOutput& output = args.outputs[begin + i];
      items[i] = {device_weight(*output.weight),
                  output.out.data,
                  output.keep_fp32,
                  output.weight->quantises_input() && plan.desc.numerics.quantise_linear_input,
                  0,
                  0};
    }
    launch(call, std::span<const LinearItem>(items.data(), count), reinterpret_cast<Bf16Bits*>(context.scratch),
           stream_of(context));
  }
}

}  // namespace fathom::cuda
