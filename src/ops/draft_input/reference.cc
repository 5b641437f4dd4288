#include <vector>

#include "ops/dequantise.h"
#include "ops/draft_input/draft_input.h"
#include "ops/scalar_math.h"

namespace fathom {
namespace {

// Linear(rms_norm(x; norm); weight) of `rows` rows, stored.
std::vector<float> project(const ExecutionContext& context, const DraftInputDesc& desc, const float* x,
                           std::int64_t rows, const View& norm, const LinearWeight& weight) {
  const auto hidden = static_cast<std::size_t>(desc.hidden);
  const std::vector<float> norm_weight = widen(norm);
  std::vector<float> normed(static_cast<std::size_t>(rows) * hidden);
  for (std::int64_t t = 0; t < rows; ++t) {
    rms_norm_row({x + t * desc.hidden, hidden}, norm_weight, desc.eps, desc.numerics,
                 std::span<float>(normed).subspan(static_cast<std::size_t>(t) * hidden, hidden));
  }
  const std::vector<float> input = linear_input(normed.data(), rows, weight, desc.numerics);
  std::vector<float> y(normed.size());
  scalar_matmul(context, input.data(), desc.hidden, rows, weight, 0, desc.hidden, y.data(), desc.hidden);
  for (float& value : y) value = desc.numerics.store(value);
  return y;
}

}  // namespace

void draft_input_reference(ExecutionContext& context, const DraftInputPlan& plan, const DraftInputArgs& args) {
  const DraftInputDesc& desc = plan.desc;
  const std::int64_t tokens = args.embedded.shape[0];
  const std::vector<float> e = project(context, desc, args.embedded.as<float>(), tokens, args.enorm, *args.e_proj);
  const std::vector<float> g =
      project(context, desc, args.streams.as<float>(), tokens * desc.hc_mult, args.hnorm, *args.h_proj);
  float* out = args.out.as<float>();
  const std::int64_t width = desc.hc_mult * desc.hidden;
  for (std::int64_t i = 0; i < tokens * width; ++i) {
    const std::int64_t in_embedded = i / width * desc.hidden + i % desc.hidden;
    out[i] = desc.numerics.store(e[static_cast<std::size_t>(in_embedded)] + g[static_cast<std::size_t>(i)]);
  }
}

}  // namespace fathom
