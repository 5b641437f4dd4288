#include <algorithm>
#include <array>

#include "ops/lm_head/lm_head.h"
#include "ops/simd/products.h"

namespace fathom {

std::int64_t lm_head_cpu_workspace(const LmHeadDesc& desc, const DeviceInfo& device) {
  const std::int64_t rows = std::min(desc.max_rows, simd::kRowChunk);
  return simd::Scratch::aligned_bytes<float>(rows * simd::prepared_columns(desc.hidden)) +
         simd::tiles_bytes(device, desc.hidden);
}

void lm_head_cpu(ExecutionContext& context, const LmHeadPlan& plan, const LmHeadArgs& args) {
  const std::int64_t hidden = plan.desc.hidden;
  const std::int64_t vocab = plan.desc.vocab;
  const std::int64_t width = simd::prepared_columns(hidden);
  simd::Scratch scratch(context);
  float* padded = scratch.take<float>(std::min(args.x.shape[0], simd::kRowChunk) * width);
  const simd::Tiles tiles = simd::take_tiles(context, scratch, hidden);
  for (std::int64_t begin = 0; begin < args.x.shape[0]; begin += simd::kRowChunk) {
    const std::int64_t rows = std::min(args.x.shape[0] - begin, simd::kRowChunk);
    const float* x = args.x.as<float>() + begin * hidden;
    if (!simd::reads_in_place(hidden, false, simd::ColumnOrder::kNatural)) {
      simd::prepare_rows(context, x, rows, hidden, false, simd::ColumnOrder::kNatural, padded);
      x = padded;
    }
    const std::array products = {simd::Product{.weight = args.head,
                                               .n_begin = 0,
                                               .n_end = vocab,
                                               .x = {x, width, nullptr},
                                               .out = {args.logits.as<float>() + begin * vocab, vocab, nullptr},
                                               .num_rows = rows,
                                               .how = {}}};
    simd::run_products(context, products, tiles);
  }
}

}  // namespace fathom
