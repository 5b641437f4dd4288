#include "ops/q_norm_rope/q_norm_rope.h"
#include "ops/simd/products.h"
#include "ops/simd/rows.h"

namespace fathom {

void q_norm_rope_cpu(ExecutionContext& context, const QNormRopePlan& plan, const QNormRopeArgs& args) {
  const QNormRopeDesc& desc = plan.desc;
  const std::int64_t width = desc.head_dim;
  const std::int64_t nope = width - desc.rope_dim;
  const bool round = desc.numerics.rounds_to_bf16();
  const std::int64_t rows = args.q.shape[0] * desc.num_heads;
  simd::for_rows(context, rows, 2 * width, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      float* q = args.q.as<float>() + r * width;
      simd::rms_norm_row(args.q_raw.as<float>() + r * width, nullptr, width, desc.eps, round, q);
      simd::rotate_row(q + nope, args.rope.as<float>() + r / desc.num_heads * desc.rope_dim, desc.rope_dim, false,
                       round, q + nope);
    }
  });
}

}  // namespace fathom
