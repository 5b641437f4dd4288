#include "ops/stream_mean/stream_mean.h"

namespace fathom {

void stream_mean_reference(ExecutionContext&, const StreamMeanPlan& plan, const StreamMeanArgs& args) {
  const StreamMeanDesc& desc = plan.desc;
  const float* streams = args.streams.as<float>();
  float* out = args.out.as<float>();
  for (std::int64_t t = 0; t < args.streams.shape[0]; ++t) {
    for (std::int64_t i = 0; i < desc.hidden; ++i) {
      float sum = 0.0f;
      for (std::int32_t j = 0; j < desc.hc_mult; ++j) sum += streams[(t * desc.hc_mult + j) * desc.hidden + i];
      out[(t * desc.num_slots + args.slot) * desc.hidden + i] =
          desc.numerics.store(sum / static_cast<float>(desc.hc_mult));
    }
  }
}

}  // namespace fathom
