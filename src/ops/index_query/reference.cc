#include <algorithm>

#include "ops/index_query/index_query.h"
#include "ops/scalar_math.h"
#include "tensor/block_quantise.h"

namespace fathom {

void index_query_reference(ExecutionContext&, const IndexQueryPlan& plan, const IndexQueryArgs& args) {
  const IndexQueryDesc& desc = plan.desc;
  const auto head_dim = static_cast<std::size_t>(desc.head_dim);
  const auto rope_dim = static_cast<std::size_t>(desc.rope_dim);
  for (std::int64_t t = 0; t < args.q_raw.shape[0]; ++t) {
    for (std::int64_t h = 0; h < desc.num_heads; ++h) {
      const std::int64_t offset = (t * desc.num_heads + h) * desc.head_dim;
      const std::span<float> q(args.q.as<float>() + offset, head_dim);
      std::copy_n(args.q_raw.as<float>() + offset, head_dim, q.begin());
      rotate_pairs(q.last(rope_dim), args.rope.as<float>() + t * desc.rope_dim, Rotation::kForward, desc.numerics);
      hadamard(q);
      for (float& value : q) value = desc.numerics.store(value);
      if (desc.numerics.quantise_index) simulate_e2m1(q, 32);
    }
  }
}

}  // namespace fathom
