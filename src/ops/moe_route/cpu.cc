#include <algorithm>
#include <array>
#include <cstring>

#include "ops/moe_route/moe_route.h"
#include "ops/simd/products.h"
#include "ops/simd/rows.h"

namespace fathom {
namespace {

// The topk largest s + bias, ties to the lowest id, in ascending id. `biased` is overwritten.
void choose_best(float* biased, std::int32_t num_experts, std::int32_t topk, std::int32_t* chosen) {
  for (std::int32_t i = 0; i < topk; ++i) {
    std::int32_t best = 0;
    for (std::int32_t e = 1; e < num_experts; ++e) {
      if (biased[e] > biased[best]) best = e;
    }
    chosen[i] = best;
    biased[best] = -3.0e38f;
  }
  std::sort(chosen, chosen + topk);
}

void choose_hashed(const MoeRouteArgs& args, std::int64_t t, std::int32_t topk, std::int32_t* chosen) {
  const std::int64_t token = args.token_ids.as<std::int32_t>()[t];
  FATHOM_CHECK(0 <= token && token < args.tid2eid.shape[0], "token ids are checked before a step is planned");
  for (std::int32_t i = 0; i < topk; ++i) {
    std::int64_t id;
    std::memcpy(&id, args.tid2eid.data + 8 * (token * topk + i), sizeof id);
    chosen[i] = static_cast<std::int32_t>(id);
  }
  std::sort(chosen, chosen + topk);
}

}  // namespace

std::int64_t moe_route_cpu_workspace(const MoeRouteDesc& desc, const DeviceInfo& device) {
  const std::int64_t rows = std::min(desc.max_tokens, simd::kRowChunk);
  return simd::Scratch::aligned_bytes<float>(rows * simd::prepared_columns(desc.hidden)) +
         2 * simd::Scratch::aligned_bytes<float>(rows * desc.num_experts) + simd::tiles_bytes(device, desc.hidden);
}

void moe_route_cpu(ExecutionContext& context, const MoeRoutePlan& plan, const MoeRouteArgs& args) {
  const MoeRouteDesc& desc = plan.desc;
  const std::int64_t tokens = args.x.shape[0];
  const std::int64_t hidden = desc.hidden;
  const std::int64_t experts = desc.num_experts;
  const std::int64_t width = simd::prepared_columns(hidden);
  const std::int64_t most_rows = std::min(tokens, simd::kRowChunk);
  simd::Scratch scratch(context);
  float* padded = scratch.take<float>(most_rows * width);
  float* scores = scratch.take<float>(most_rows * experts);
  float* biased = scratch.take<float>(most_rows * experts);
  const simd::Tiles tiles = simd::take_tiles(context, scratch, hidden);

  for (std::int64_t begin = 0; begin < tokens; begin += simd::kRowChunk) {
    const std::int64_t rows = std::min(tokens - begin, simd::kRowChunk);
    const float* x = args.x.as<float>() + begin * hidden;
    if (!simd::reads_in_place(hidden, false, simd::ColumnOrder::kNatural)) {
      simd::prepare_rows(context, x, rows, hidden, false, simd::ColumnOrder::kNatural, padded);
      x = padded;
    }
    const std::array products = {simd::Product{.weight = args.gate,
                                               .n_begin = 0,
                                               .n_end = experts,
                                               .x = {x, width, nullptr},
                                               .out = {scores, experts, nullptr},
                                               .num_rows = rows,
                                               .how = {}}};
    simd::run_products(context, products, tiles);
    simd::for_rows(context, rows, 4 * (desc.topk + 8) * experts, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t r = first; r < last; ++r) {
        const std::int64_t t = begin + r;
        float* s = scores + r * experts;
        simd::sqrt_softplus_row(s, experts);
        std::int32_t* chosen = args.expert_ids.as<std::int32_t>() + t * desc.topk;
        if (args.tid2eid.empty()) {
          float* b = biased + r * experts;
          for (std::int64_t e = 0; e < experts; ++e) {
            float bias;
            std::memcpy(&bias, args.bias.data + 4 * e, sizeof bias);
            b[e] = s[e] + bias;
          }
          choose_best(b, desc.num_experts, desc.topk, chosen);
        } else {
          choose_hashed(args, t, desc.topk, chosen);
        }
        FATHOM_CHECK(chosen[0] >= 0 && chosen[desc.topk - 1] < experts, "routing names experts that exist");
        float sum = 0.0f;
        for (std::int32_t i = 0; i < desc.topk; ++i) sum += s[chosen[i]];
        const float factor = desc.norm_topk_prob ? desc.routed_scaling_factor / sum : desc.routed_scaling_factor;
        float* weights = args.expert_weights.as<float>() + t * desc.topk;
        for (std::int32_t i = 0; i < desc.topk; ++i) weights[i] = s[chosen[i]] * factor;
      }
    });
  }
}

}  // namespace fathom
