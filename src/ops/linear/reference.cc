#include <vector>

#include "ops/linear/linear.h"
#include "ops/scalar_math.h"

namespace fathom {

void linear_reference(ExecutionContext& context, const LinearPlan& plan, const LinearArgs& args) {
  const std::int64_t tokens = args.x.shape[0];
  const Numerics& numerics = plan.desc.numerics;
  for (const LinearOutput& output : args.outputs) {
    const LinearWeight& weight = *output.weight;
    const std::vector<float> input = linear_input(args.x.as<float>(), tokens, weight, numerics);
    float* out = output.out.as<float>();
    scalar_matmul(context, input.data(), weight.in_features, tokens, weight, 0, weight.out_features, out,
                  weight.out_features);
    if (output.keep_fp32) continue;
    for (std::int64_t i = 0; i < tokens * weight.out_features; ++i) out[i] = numerics.store(out[i]);
  }
}

}  // namespace fathom
