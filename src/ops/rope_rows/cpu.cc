#include "ops/rope_rows/rope_rows.h"
#include "ops/scalar_math.h"
#include "ops/simd/products.h"

namespace fathom {

// A cosine takes as long as about fifty elements of anything else.
void rope_rows_cpu(ExecutionContext& context, const RopeRowsPlan& plan, const RopeRowsArgs& args) {
  const std::int64_t width = plan.desc.rope_dim;
  const auto floats = static_cast<std::size_t>(width);
  const auto pairs = floats / 2;
  const std::int32_t* positions = args.positions.as<std::int32_t>();
  simd::for_rows(context, args.positions.shape[0], 100 * width, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      rope_angles(positions[t], {args.window_frequencies.as<float>(), pairs},
                  {args.window_rope.as<float>() + t * width, floats});
      rope_angles(positions[t], {args.compressed_frequencies.as<float>(), pairs},
                  {args.compressed_rope.as<float>() + t * width, floats});
    }
  });
}

}  // namespace fathom
