#include "ops/q_norm_rope/q_norm_rope.h"
#include "ops/scalar_math.h"

namespace fathom {

void q_norm_rope_reference(ExecutionContext&, const QNormRopePlan& plan, const QNormRopeArgs& args) {
  const QNormRopeDesc& desc = plan.desc;
  const auto head_dim = static_cast<std::size_t>(desc.head_dim);
  const auto rope_dim = static_cast<std::size_t>(desc.rope_dim);
  for (std::int64_t t = 0; t < args.q_raw.shape[0]; ++t) {
    for (std::int64_t h = 0; h < desc.num_heads; ++h) {
      const std::int64_t offset = (t * desc.num_heads + h) * desc.head_dim;
      const std::span<const float> raw(args.q_raw.as<float>() + offset, head_dim);
      const std::span<float> q(args.q.as<float>() + offset, head_dim);
      const double factor = inverse_rms(raw, desc.eps);
      for (std::size_t i = 0; i < head_dim; ++i) {
        q[i] = desc.numerics.store(static_cast<float>(static_cast<double>(raw[i]) * factor));
      }
      rotate_pairs(q.last(rope_dim), args.rope.as<float>() + t * desc.rope_dim, Rotation::kForward, desc.numerics);
    }
  }
}

}  // namespace fathom
