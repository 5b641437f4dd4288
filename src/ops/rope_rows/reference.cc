#include "ops/dequantise.h"
#include "ops/rope_rows/rope_rows.h"
#include "ops/scalar_math.h"

namespace fathom {

void rope_rows_reference(ExecutionContext&, const RopeRowsPlan& plan, const RopeRowsArgs& args) {
  const auto width = static_cast<std::size_t>(plan.desc.rope_dim);
  const std::vector<float> window = widen(args.window_frequencies);
  const std::vector<float> compressed = widen(args.compressed_frequencies);
  for (std::int64_t t = 0; t < args.positions.shape[0]; ++t) {
    const std::int32_t position = args.positions.as<std::int32_t>()[t];
    rope_angles(position, window, {args.window_rope.as<float>() + t * plan.desc.rope_dim, width});
    rope_angles(position, compressed, {args.compressed_rope.as<float>() + t * plan.desc.rope_dim, width});
  }
}

}  // namespace fathom
