#include <span>
#include <vector>

#include "ops/dequantise.h"
#include "ops/hc_head/hc_head.h"
#include "ops/hyper_connection/stream_mix.h"
#include "ops/scalar_math.h"

namespace fathom {

void hc_head_reference(ExecutionContext&, const HcHeadPlan& plan, const HcHeadArgs& args) {
  const HcHeadDesc& desc = plan.desc;
  const std::int64_t width = desc.hc_mult * desc.hidden;
  const auto hidden = static_cast<std::size_t>(desc.hidden);
  const std::vector<float> base = widen(args.params.base);
  const auto scale = static_cast<double>(load_float(args.params.scale, 0));
  const std::vector<float> norm_weight = widen(args.norm_weight);
  for (std::int64_t row = 0; row < args.normed.shape[0]; ++row) {
    const std::int64_t token = args.row_indices.empty() ? row : load_element<std::int32_t>(args.row_indices, row);
    FATHOM_CHECK(0 <= token && token < args.streams.shape[0], "row indices name tokens of the step");
    const std::span<const float> streams(args.streams.as<float>() + token * width, static_cast<std::size_t>(width));
    std::vector<double> pre = mix_statistics(streams, args.params.fn, desc.hc_mult, desc.rms_norm_eps);
    for (std::size_t j = 0; j < pre.size(); ++j) {
      pre[j] = sigmoid(pre[j] * scale + static_cast<double>(base[j])) + static_cast<double>(desc.hc_eps);
    }
    const std::span<float> x(args.collapsed.as<float>() + row * desc.hidden, hidden);
    collapse_streams(streams, pre, desc.numerics, x);
    rms_norm_row(x, norm_weight, desc.rms_norm_eps, desc.numerics,
                 {args.normed.as<float>() + row * desc.hidden, hidden});
  }
}

}  // namespace fathom
