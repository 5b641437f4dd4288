#include <algorithm>
#include <array>
#include <cstring>

#include "ops/moe_experts/moe_experts.h"
#include "ops/simd/products.h"
#include "ops/simd/rows.h"

namespace fathom {
namespace {

using simd::ColumnOrder;
using simd::Scratch;

constexpr std::int64_t kMostScratchBytes = std::int64_t{64} << 20;

// A call of an expert by a token is a "pair"; the shared expert has one for every token, after all others.
std::int64_t pairs_of(const MoeExpertsDesc& desc, std::int64_t tokens) { return tokens * (desc.topk + 1); }

// Tokens handled at a time: experts are decoded once a chunk, so as many as scratch allows.
std::int64_t chunk_tokens(const MoeExpertsDesc& desc) {
  const std::int64_t per_pair = 4 * (2 * desc.intermediate + simd::prepared_columns(desc.intermediate));
  const std::int64_t per_token = (desc.topk + 1) * per_pair + 8 * simd::prepared_columns(desc.hidden);
  return std::clamp<std::int64_t>(std::min(desc.max_tokens, kMostScratchBytes / per_token), 1, 1024);
}

struct Arrays {
  Arrays(const MoeExpertsDesc& desc, std::int64_t tokens, Scratch& scratch) {
    const std::int64_t pairs = pairs_of(desc, tokens);
    x_pairs = scratch.take<float>(tokens * simd::prepared_columns(desc.hidden));
    x_natural = scratch.take<float>(tokens * simd::prepared_columns(desc.hidden));
    gate = scratch.take<float>(pairs * desc.intermediate);
    up = scratch.take<float>(pairs * desc.intermediate);
    hidden = scratch.take<float>(pairs * simd::prepared_columns(desc.intermediate));
    begin = scratch.take<std::int32_t>(desc.num_experts + 2);
    token = scratch.take<std::int32_t>(pairs);
    weight = scratch.take<float>(pairs);
    products = scratch.take<simd::Product>(2 * (desc.num_experts + 1));
  }
  static std::int64_t bytes(const MoeExpertsDesc& desc, std::int64_t tokens) {
    const std::int64_t pairs = pairs_of(desc, tokens);
    return 2 * Scratch::aligned_bytes<float>(tokens * simd::prepared_columns(desc.hidden)) +
           2 * Scratch::aligned_bytes<float>(pairs * desc.intermediate) +
           Scratch::aligned_bytes<float>(pairs * simd::prepared_columns(desc.intermediate)) +
           Scratch::aligned_bytes<std::int32_t>(desc.num_experts + 2) + Scratch::aligned_bytes<std::int32_t>(pairs) +
           Scratch::aligned_bytes<float>(pairs) + Scratch::aligned_bytes<simd::Product>(2 * (desc.num_experts + 1));
  }

  float* x_pairs;           // [tokens, prepared hidden] as the routed experts read it
  float* x_natural;         // the same as the shared expert reads it, if that differs
  float* gate;              // [pairs, intermediate]
  float* up;                // [pairs, intermediate]
  float* hidden;            // [pairs, prepared intermediate]: t, as w2 reads it
  std::int32_t* begin;      // [experts + 2]: first pair of each expert; experts: the shared one; then the end
  std::int32_t* token;      // [pairs]: token of the chunk
  float* weight;            // [pairs]
  simd::Product* products;  // [2 (experts + 1)]
};

// Pairs grouped by expert, in token order inside a group.
void group_pairs(const MoeExpertsDesc& desc, const std::int32_t* ids, const float* weights, std::int64_t tokens,
                 bool has_shared, const Arrays& arrays) {
  const std::int32_t experts = desc.num_experts;
  std::fill_n(arrays.begin, experts + 2, 0);
  for (std::int64_t i = 0; i < tokens * desc.topk; ++i) {
    FATHOM_CHECK(0 <= ids[i] && ids[i] < experts, "routing names experts that exist");
    ++arrays.begin[ids[i] + 1];
  }
  for (std::int32_t e = 0; e < experts; ++e) arrays.begin[e + 1] += arrays.begin[e];
  for (std::int64_t i = 0; i < tokens * desc.topk; ++i) {
    const std::int32_t at = arrays.begin[ids[i]]++;
    arrays.token[at] = static_cast<std::int32_t>(i / desc.topk);
    arrays.weight[at] = weights[i];
  }
  // Each begin has moved to its group's end: move them back by one place.
  for (std::int32_t e = experts; e > 0; --e) arrays.begin[e] = arrays.begin[e - 1];
  arrays.begin[0] = 0;
  const std::int32_t routed = arrays.begin[experts];
  arrays.begin[experts + 1] = routed + (has_shared ? static_cast<std::int32_t>(tokens) : 0);
  for (std::int32_t pair = routed; pair < arrays.begin[experts + 1]; ++pair) {
    arrays.token[pair] = pair - routed;
    arrays.weight[pair] = 1.0f;
  }
}

struct Input {
  bool quantise;
  ColumnOrder order;
  bool operator==(const Input&) const = default;
};
Input input_of(const MoeExpertsDesc& desc, const LinearWeight& weight) {
  return {desc.numerics.quantise_linear_input && weight.quantises_input(), simd::column_order(weight.format)};
}

void run_chunk(const ExecutionContext& context, const MoeExpertsDesc& desc, const MoeExpertsArgs& args,
               std::int64_t first, std::int64_t tokens, const Arrays& arrays, const simd::Tiles& tiles) {
  const std::int64_t inter = desc.intermediate;
  const std::int64_t x_width = simd::prepared_columns(desc.hidden);
  const std::int64_t t_width = simd::prepared_columns(inter);
  const bool round = desc.numerics.rounds_to_bf16();
  const std::int32_t experts = desc.num_experts;
  group_pairs(desc, args.expert_ids.as<std::int32_t>() + first * desc.topk,
              args.expert_weights.as<float>() + first * desc.topk, tokens, args.shared != nullptr, arrays);
  const auto expert_at = [&](std::int32_t e) -> const ExpertWeights& {
    return e < experts ? args.experts[static_cast<std::size_t>(e)] : *args.shared;
  };
  const auto pairs_at = [&](std::int32_t e) { return arrays.begin[e + 1] - arrays.begin[e]; };

  // x, once for the routed experts and once for the shared one if its format differs.
  const float* x = args.x.as<float>() + first * desc.hidden;
  const Input routed = input_of(desc, args.experts.empty() ? args.shared->w1 : args.experts.front().w1);
  simd::prepare_rows(context, x, tokens, desc.hidden, routed.quantise, routed.order, arrays.x_pairs);
  const float* x_shared = arrays.x_pairs;
  if (args.shared != nullptr && input_of(desc, args.shared->w1) != routed) {
    const Input shared = input_of(desc, args.shared->w1);
    simd::prepare_rows(context, x, tokens, desc.hidden, shared.quantise, shared.order, arrays.x_natural);
    x_shared = arrays.x_natural;
  }

  std::size_t num_products = 0;
  for (std::int32_t e = 0; e <= experts; ++e) {
    if (pairs_at(e) == 0) continue;
    const ExpertWeights& expert = expert_at(e);
    const simd::InputRows rows = {e < experts ? arrays.x_pairs : x_shared, x_width, arrays.token + arrays.begin[e]};
    const std::int64_t at = arrays.begin[e] * inter;
    const simd::Product product = {.weight = &expert.w1,
                                   .n_begin = 0,
                                   .n_end = inter,
                                   .x = rows,
                                   .out = {arrays.gate + at, inter, nullptr},
                                   .num_rows = pairs_at(e),
                                   .how = {.round = round}};
    arrays.products[num_products] = product;
    arrays.products[num_products + 1] = product;
    arrays.products[num_products + 1].weight = &expert.w3;
    arrays.products[num_products + 1].out.base = arrays.up + at;
    num_products += 2;
  }
  simd::run_products(context, {arrays.products, num_products}, tiles);

  const std::int64_t pairs = arrays.begin[experts + 1];
  const std::int64_t num_routed = arrays.begin[experts];
  const Input routed_hidden = input_of(desc, args.experts.empty() ? args.shared->w2 : args.experts.front().w2);
  const Input shared_hidden = args.shared != nullptr ? input_of(desc, args.shared->w2) : routed_hidden;
  simd::for_rows(context, pairs, 4 * inter, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t pair = begin; pair < end; ++pair) {
      float* gate = arrays.gate + pair * inter;
      simd::swiglu_row(gate, arrays.up + pair * inter, inter, desc.swiglu_limit, arrays.weight[pair], round, gate);
      const Input& input = pair < num_routed ? routed_hidden : shared_hidden;
      simd::prepare_row(gate, inter, input.quantise, input.order, arrays.hidden + pair * t_width);
    }
  });

  // Each thread owns output columns, so that experts add in ascending id and without atomics.
  float* out = args.out.as<float>() + first * desc.hidden;
  const std::int64_t work = pairs * desc.hidden * inter;
  const std::int64_t parts =
      std::clamp<std::int64_t>(std::min(work / (4 * simd::kWorthAThread), desc.hidden / 16), 1, tiles.count);
  simd::run_parts(context, parts, [&](std::int64_t part) {
    const std::int64_t unit = 16;
    const std::int64_t units = (desc.hidden + unit - 1) / unit;
    const std::int64_t n_begin = units * part / parts * unit;
    const std::int64_t n_end = std::min(desc.hidden, units * (part + 1) / parts * unit);
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::fill(out + t * desc.hidden + n_begin, out + t * desc.hidden + n_end, 0.0f);
    }
    for (std::int32_t e = 0; e <= experts; ++e) {
      if (pairs_at(e) == 0) continue;
      const std::int32_t at = arrays.begin[e];
      simd::matmul(expert_at(e).w2, n_begin, n_end, {arrays.hidden + at * t_width, t_width, nullptr},
                   {out, desc.hidden, arrays.token + at}, pairs_at(e), {.round = round, .accumulate = true},
                   tiles.base + part * tiles.stride);
    }
    if (!round) return;
    for (std::int64_t t = 0; t < tokens; ++t) simd::round_row(out + t * desc.hidden + n_begin, n_end - n_begin);
  });
}

}  // namespace

std::int64_t moe_experts_cpu_workspace(const MoeExpertsDesc& desc, const DeviceInfo& device) {
  return Arrays::bytes(desc, chunk_tokens(desc)) + simd::tiles_bytes(device, std::max(desc.hidden, desc.intermediate));
}

void moe_experts_cpu(ExecutionContext& context, const MoeExpertsPlan& plan, const MoeExpertsArgs& args) {
  const MoeExpertsDesc& desc = plan.desc;
  const std::int64_t tokens = args.x.shape[0];
  const std::int64_t chunk = chunk_tokens(desc);
  if (args.experts.empty() && args.shared == nullptr) {
    std::fill_n(args.out.as<float>(), tokens * desc.hidden, 0.0f);
    return;
  }
  Scratch scratch(context);
  const Arrays arrays(desc, std::min(tokens, chunk), scratch);
  const simd::Tiles tiles = simd::take_tiles(context, scratch, std::max(desc.hidden, desc.intermediate));
  for (std::int64_t first = 0; first < tokens; first += chunk) {
    run_chunk(context, desc, args, first, std::min(chunk, tokens - first), arrays, tiles);
  }
}

}  // namespace fathom
