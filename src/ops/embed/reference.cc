#include "ops/dequantise.h"
#include "ops/embed/embed.h"

namespace fathom {

void embed_reference(ExecutionContext&, const EmbedPlan& plan, const EmbedArgs& args) {
  const std::int64_t hidden = plan.desc.hidden;
  float* out = args.streams.as<float>();
  for (std::int64_t t = 0; t < args.streams.shape[0]; ++t) {
    const std::int64_t token = load_element<std::int32_t>(args.token_ids, t);
    FATHOM_CHECK(0 <= token && token < args.table.shape[0], "token ids are checked before a step is planned");
    for (std::int32_t j = 0; j < plan.desc.hc_mult; ++j) {
      for (std::int64_t i = 0; i < hidden; ++i) *out++ = load_float(args.table, token * hidden + i);
    }
  }
}

}  // namespace fathom
