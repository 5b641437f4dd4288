#include "ops/rms_norm/rms_norm.h"
#include "ops/simd/products.h"
#include "ops/simd/rows.h"

namespace fathom {

void rms_norm_cpu(ExecutionContext& context, const RmsNormPlan& plan, const RmsNormArgs& args) {
  const std::int64_t width = plan.desc.width;
  simd::for_rows(context, args.x.shape[0], 2 * width, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      simd::rms_norm_row(args.x.as<float>() + t * width, args.weight.data, width, plan.desc.eps,
                         plan.desc.numerics.rounds_to_bf16(), args.out.as<float>() + t * width);
    }
  });
}

}  // namespace fathom
