#include <algorithm>
#include <array>
#include <cstring>

#include "ops/markov_head/markov_head.h"
#include "ops/simd/products.h"
#include "ops/simd/rows.h"

namespace fathom {

std::int64_t markov_head_cpu_workspace(const MarkovHeadDesc& desc, const DeviceInfo& device) {
  const std::int64_t rows = std::min(desc.max_rows, simd::kRowChunk);
  const std::int64_t joined = desc.hidden + desc.rank;
  return simd::Scratch::aligned_bytes<float>(rows * joined) +
         simd::Scratch::aligned_bytes<float>(rows * simd::prepared_columns(desc.rank)) +
         simd::Scratch::aligned_bytes<float>(rows * simd::prepared_columns(joined)) + simd::tiles_bytes(device, joined);
}

void markov_head_cpu(ExecutionContext& context, const MarkovHeadPlan& plan, const MarkovHeadArgs& args) {
  const MarkovHeadDesc& desc = plan.desc;
  const std::int64_t total = args.out.shape[0];
  const std::int64_t most = std::min(total, simd::kRowChunk);
  const std::int64_t joined_width = desc.hidden + desc.rank;
  simd::Scratch scratch(context);
  float* joined = scratch.take<float>(most * joined_width);  // collapsed, then the embedded token
  float* embedded = scratch.take<float>(most * simd::prepared_columns(desc.rank));
  float* prepared = scratch.take<float>(most * simd::prepared_columns(joined_width));
  const simd::Tiles tiles = simd::take_tiles(context, scratch, joined_width);
  for (std::int64_t begin = 0; begin < total; begin += simd::kRowChunk) {
    const std::int64_t rows = std::min(total - begin, simd::kRowChunk);
    simd::for_rows(context, rows, desc.vocab + joined_width, [&](std::int64_t a, std::int64_t b) {
      for (std::int64_t i = a; i < b; ++i) {
        const std::int64_t previous = args.previous.as<std::int32_t>()[begin + i];
        const std::int64_t row = args.row_indices.as<std::int32_t>()[begin + i];
        FATHOM_CHECK(0 <= previous && previous < desc.vocab, "a token of the vocabulary");
        FATHOM_CHECK(0 <= row && row < args.logits.shape[0], "a row of the logits");
        std::memcpy(args.out.as<float>() + (begin + i) * desc.vocab, args.logits.as<float>() + row * desc.vocab,
                    static_cast<std::size_t>(desc.vocab) * sizeof(float));
        std::memcpy(joined + i * joined_width, args.collapsed.as<float>() + row * desc.hidden,
                    static_cast<std::size_t>(desc.hidden) * sizeof(float));
        float* token = joined + i * joined_width + desc.hidden;
        simd::widen_bf16_row(args.markov_w1.data + 2 * previous * desc.rank, desc.rank, token);
        simd::prepare_row(token, desc.rank, false, simd::ColumnOrder::kNatural,
                          embedded + i * simd::prepared_columns(desc.rank));
        simd::prepare_row(joined + i * joined_width, joined_width, false, simd::ColumnOrder::kNatural,
                          prepared + i * simd::prepared_columns(joined_width));
      }
    });
    const std::array products = {simd::Product{.weight = args.markov_w2,
                                               .n_begin = 0,
                                               .n_end = desc.vocab,
                                               .x = {embedded, simd::prepared_columns(desc.rank), nullptr},
                                               .out = {args.out.as<float>() + begin * desc.vocab, desc.vocab, nullptr},
                                               .num_rows = rows,
                                               .how = {.accumulate = true}},
                                 simd::Product{.weight = args.confidence_proj,
                                               .n_begin = 0,
                                               .n_end = 1,
                                               .x = {prepared, simd::prepared_columns(joined_width), nullptr},
                                               .out = {args.confidence.as<float>() + begin, 1, nullptr},
                                               .num_rows = rows,
                                               .how = {}}};
    simd::run_products(context, products, tiles);
  }
}

}  // namespace fathom
