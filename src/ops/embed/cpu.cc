#include <cstring>

#include "ops/embed/embed.h"
#include "ops/simd/products.h"
#include "ops/simd/rows.h"

namespace fathom {

void embed_cpu(ExecutionContext& context, const EmbedPlan& plan, const EmbedArgs& args) {
  const std::int64_t hidden = plan.desc.hidden;
  const std::int64_t hc = plan.desc.hc_mult;
  simd::for_rows(context, args.streams.shape[0], hidden * hc, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t token = args.token_ids.as<std::int32_t>()[t];
      FATHOM_CHECK(0 <= token && token < args.table.shape[0], "token ids are checked before a step is planned");
      float* out = args.streams.as<float>() + t * hc * hidden;
      simd::widen_bf16_row(args.table.data + 2 * token * hidden, hidden, out);
      for (std::int64_t j = 1; j < hc; ++j) {
        std::memcpy(out + j * hidden, out, static_cast<std::size_t>(hidden) * sizeof(float));
      }
    }
  });
}

}  // namespace fathom
