#include <vector>

#include "ops/dequantise.h"
#include "ops/markov_head/markov_head.h"

namespace fathom {

void markov_head_reference(ExecutionContext&, const MarkovHeadPlan& plan, const MarkovHeadArgs& args) {
  const MarkovHeadDesc& desc = plan.desc;
  for (std::int64_t i = 0; i < args.out.shape[0]; ++i) {
    const std::int64_t previous = load_element<std::int32_t>(args.previous, i);
    const std::int64_t row = load_element<std::int32_t>(args.row_indices, i);
    FATHOM_CHECK(0 <= previous && previous < desc.vocab, "a token of the vocabulary");
    FATHOM_CHECK(0 <= row && row < args.logits.shape[0], "a row of the logits");
    const auto embedded = [&](std::int64_t k) { return load_float(args.markov_w1, previous * desc.rank + k); };
    for (std::int64_t v = 0; v < desc.vocab; ++v) {
      float bias = 0.0f;
      for (std::int64_t k = 0; k < desc.rank; ++k) bias += weight_element(*args.markov_w2, v, k) * embedded(k);
      args.out.as<float>()[i * desc.vocab + v] = args.logits.as<float>()[row * desc.vocab + v] + bias;
    }
    float confidence = 0.0f;
    for (std::int64_t k = 0; k < desc.hidden; ++k) {
      confidence += weight_element(*args.confidence_proj, 0, k) * args.collapsed.as<float>()[row * desc.hidden + k];
    }
    for (std::int64_t k = 0; k < desc.rank; ++k) {
      confidence += weight_element(*args.confidence_proj, 0, desc.hidden + k) * embedded(k);
    }
    args.confidence.as<float>()[i] = confidence;
  }
}

}  // namespace fathom
