#include "ops/simd/products.h"
#include "ops/stream_mean/stream_mean.h"

namespace fathom {

// Bound by the streams it reads: plain loops over channels, which the compiler widens.
void stream_mean_cpu(ExecutionContext& context, const StreamMeanPlan& plan, const StreamMeanArgs& args) {
  const StreamMeanDesc& desc = plan.desc;
  const std::int64_t hidden = desc.hidden;
  const auto divisor = static_cast<float>(desc.hc_mult);
  const bool round = desc.numerics.rounds_to_bf16();
  simd::for_rows(context, args.streams.shape[0], hidden * desc.hc_mult, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const float* streams = args.streams.as<float>() + t * desc.hc_mult * hidden;
      float* out = args.out.as<float>() + (t * desc.num_slots + args.slot) * hidden;
      for (std::int64_t i = 0; i < hidden; ++i) out[i] = 0.0f + streams[i];
      for (std::int32_t j = 1; j < desc.hc_mult; ++j) {
        for (std::int64_t i = 0; i < hidden; ++i) out[i] += streams[j * hidden + i];
      }
      for (std::int64_t i = 0; i < hidden; ++i) out[i] /= divisor;
      if (!round) continue;
      for (std::int64_t i = 0; i < hidden; ++i) out[i] = round_to_bf16(out[i]);
    }
  });
}

}  // namespace fathom
