#include <cstring>

#include "ops/index_query/index_query.h"
#include "ops/simd/products.h"
#include "ops/simd/rows.h"

namespace fathom {

void index_query_cpu(ExecutionContext& context, const IndexQueryPlan& plan, const IndexQueryArgs& args) {
  const IndexQueryDesc& desc = plan.desc;
  const std::int64_t width = desc.head_dim;
  const std::int64_t nope = width - desc.rope_dim;
  const bool round = desc.numerics.rounds_to_bf16();
  const std::int64_t rows = args.q.shape[0] * desc.num_heads;
  simd::for_rows(context, rows, 8 * width, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      float* q = args.q.as<float>() + r * width;
      std::memcpy(q, args.q_raw.as<float>() + r * width, static_cast<std::size_t>(width) * sizeof(float));
      simd::rotate_row(q + nope, args.rope.as<float>() + r / desc.num_heads * desc.rope_dim, desc.rope_dim, false,
                       round, q + nope);
      simd::hadamard_row(q, width);
      if (round) simd::round_row(q, width);
      if (desc.numerics.quantise_index) simd::fake_quantise_e2m1_row(q, width);
    }
  });
}

}  // namespace fathom
