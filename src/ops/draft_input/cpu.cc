#include <algorithm>
#include <array>

#include "ops/draft_input/draft_input.h"
#include "ops/simd/products.h"
#include "ops/simd/rows.h"

namespace fathom {

// Rows are the e of a token or one of its streams: 1 + hc of them a token.
std::int64_t draft_input_cpu_workspace(const DraftInputDesc& desc, const DeviceInfo& device) {
  const std::int64_t tokens = std::min(desc.max_tokens, simd::kRowChunk);
  const std::int64_t rows = tokens * (1 + desc.hc_mult);
  return simd::Scratch::aligned_bytes<float>(rows * desc.hidden) * 2 +
         simd::Scratch::aligned_bytes<float>(rows * simd::prepared_columns(desc.hidden)) +
         simd::tiles_bytes(device, desc.hidden);
}

void draft_input_cpu(ExecutionContext& context, const DraftInputPlan& plan, const DraftInputArgs& args) {
  const DraftInputDesc& desc = plan.desc;
  const std::int64_t hidden = desc.hidden;
  const std::int64_t hc = desc.hc_mult;
  const std::int64_t width = simd::prepared_columns(hidden);
  const std::int64_t tokens = args.embedded.shape[0];
  const bool round = desc.numerics.rounds_to_bf16();
  const std::int64_t most_rows = std::min(tokens, simd::kRowChunk) * (1 + hc);
  simd::Scratch scratch(context);
  float* normed = scratch.take<float>(most_rows * hidden);
  float* projected = scratch.take<float>(most_rows * hidden);
  float* prepared = scratch.take<float>(most_rows * width);
  const simd::Tiles tiles = simd::take_tiles(context, scratch, hidden);

  for (std::int64_t begin = 0; begin < tokens; begin += simd::kRowChunk) {
    const std::int64_t chunk = std::min(tokens - begin, simd::kRowChunk);
    std::array<simd::Product, 2> products;
    const auto plan_product = [&](std::size_t i, const float* x, const View& norm, const LinearWeight& weight,
                                  std::int64_t first, std::int64_t rows) {
      float* rows_normed = normed + first * hidden;
      simd::for_rows(context, rows, 2 * hidden, [&](std::int64_t a, std::int64_t b) {
        for (std::int64_t t = a; t < b; ++t) {
          simd::rms_norm_row(x + t * hidden, norm.data, hidden, desc.eps, round, rows_normed + t * hidden);
        }
      });
      const bool quantise = desc.numerics.quantise_linear_input && weight.quantises_input();
      simd::prepare_rows(context, rows_normed, rows, hidden, quantise, simd::column_order(weight.format),
                         prepared + first * width);
      products[i] = {.weight = &weight,
                     .n_begin = 0,
                     .n_end = hidden,
                     .x = {prepared + first * width, width, nullptr},
                     .out = {projected + first * hidden, hidden, nullptr},
                     .num_rows = rows,
                     .how = {.round = round}};
    };
    plan_product(0, args.embedded.as<float>() + begin * hidden, args.enorm, *args.e_proj, 0, chunk);
    plan_product(1, args.streams.as<float>() + begin * hc * hidden, args.hnorm, *args.h_proj, chunk, chunk * hc);
    simd::run_products(context, products, tiles);
    float* out = args.out.as<float>() + begin * hc * hidden;
    simd::for_rows(context, chunk * hc, hidden, [&](std::int64_t a, std::int64_t b) {
      for (std::int64_t r = a; r < b; ++r) {
        simd::add_rows(projected + r / hc * hidden, projected + (chunk + r) * hidden, hidden, round, out + r * hidden);
      }
    });
  }
}

}  // namespace fathom
