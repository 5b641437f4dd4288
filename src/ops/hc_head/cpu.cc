#include <algorithm>
#include <cstring>

#include "ops/hc_head/hc_head.h"
#include "ops/hyper_connection/stream_weights.h"
#include "ops/simd/products.h"
#include "ops/simd/rows.h"

namespace fathom {

std::int64_t hc_head_cpu_workspace(const HcHeadDesc& desc, const DeviceInfo& device) {
  const std::int64_t width = simd::prepared_columns(desc.hc_mult * desc.hidden);
  const std::int64_t padded = width == desc.hc_mult * desc.hidden ? 0 : simd::kRowChunk * width;
  return simd::Scratch::aligned_bytes<float>(padded) +
         simd::Scratch::aligned_bytes<float>(simd::kRowChunk * desc.hc_mult) + simd::tiles_bytes(device, width);
}

void hc_head_cpu(ExecutionContext& context, const HcHeadPlan& plan, const HcHeadArgs& args) {
  const HcHeadDesc& desc = plan.desc;
  const std::int64_t hc = desc.hc_mult;
  const std::int64_t hidden = desc.hidden;
  const std::int64_t width = hc * hidden;
  const std::int64_t num_rows = args.normed.shape[0];
  const bool round = desc.numerics.rounds_to_bf16();
  simd::Scratch scratch(context);
  const std::int64_t padded_width = simd::prepared_columns(width);
  const std::int64_t most_rows = std::min(num_rows, simd::kRowChunk);
  float* padded = padded_width == width ? nullptr : scratch.take<float>(most_rows * padded_width);
  float* m = scratch.take<float>(most_rows * hc);
  const simd::Tiles tiles = simd::take_tiles(context, scratch, width);
  float scale;
  std::memcpy(&scale, args.params.scale.data, sizeof scale);

  for (std::int64_t begin = 0; begin < num_rows; begin += simd::kRowChunk) {
    const std::int64_t rows = std::min(num_rows - begin, simd::kRowChunk);
    const std::int32_t* index = args.row_indices.empty() ? nullptr : args.row_indices.as<std::int32_t>() + begin;
    const float* v = args.streams.as<float>() + (index == nullptr ? begin * width : 0);
    for (std::int64_t r = 0; index != nullptr && r < rows; ++r) {
      FATHOM_CHECK(0 <= index[r] && index[r] < args.streams.shape[0], "row indices name tokens of the step");
    }
    mix_statistics_cpu(context, v, index, rows, width, args.params.fn, desc.rms_norm_eps, padded, m, tiles);
    simd::for_rows(context, rows, 2 * width, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t r = first; r < last; ++r) {
        float* pre = m + r * hc;
        for (std::int64_t j = 0; j < hc; ++j) {
          float base;
          std::memcpy(&base, args.params.base.data + 4 * j, sizeof base);
          pre[j] = mix_sigmoid(pre[j] * scale + base) + desc.hc_eps;
        }
        const float* streams = v + (index != nullptr ? index[r] : r) * width;
        float* x = args.collapsed.as<float>() + (begin + r) * hidden;
        simd::collapse_streams_row(streams, pre, hc, hidden, round, x);
        simd::rms_norm_row(x, args.norm_weight.data, hidden, desc.rms_norm_eps, round,
                           args.normed.as<float>() + (begin + r) * hidden);
      }
    });
  }
}

}  // namespace fathom
