#include "ops/dequantise.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/scalar_math.h"

namespace fathom {

void rms_norm_reference(ExecutionContext&, const RmsNormPlan& plan, const RmsNormArgs& args) {
  const std::int64_t width = plan.desc.width;
  const auto n = static_cast<std::size_t>(width);
  const std::vector<float> weight = widen(args.weight);
  for (std::int64_t t = 0; t < args.x.shape[0]; ++t) {
    rms_norm_row({args.x.as<float>() + t * width, n}, weight, plan.desc.eps, plan.desc.numerics,
                 {args.out.as<float>() + t * width, n});
  }
}

}  // namespace fathom
