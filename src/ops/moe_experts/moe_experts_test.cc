#include "ops/moe_experts/moe_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/testing/run.h"
#include "ops/testing/tensors.h"
#include "tensor/block_quantise.h"

namespace fathom::testing {
namespace {

struct Expert {
  TestWeight w1, w2, w3;
  ExpertWeights weights() const { return {w1.weight, w2.weight, w3.weight}; }
};

Expert random_expert(Random& random, WeightFormat format, std::int64_t hidden, std::int64_t inter) {
  return {random_weight(random, format, inter, hidden, 1), random_weight(random, format, hidden, inter, 3),
          random_weight(random, format, inter, hidden, 1)};
}

struct Layer {
  std::vector<Expert> experts;
  Expert shared;
  bool has_shared = true;
};

std::vector<float> run(const std::string& variant, int threads, MoeExpertsDesc desc, const Layer& layer,
                       const Tensor& x, const Tensor& ids, const Tensor& weights) {
  const std::int64_t rows = x.view().shape[0];
  desc.max_tokens = rows;
  desc.hidden = x.view().shape[1];
  desc.num_experts = static_cast<std::int32_t>(layer.experts.size());
  desc.topk = static_cast<std::int32_t>(ids.view().shape[1]);
  std::vector<ExpertWeights> experts;
  for (const Expert& expert : layer.experts) experts.push_back(expert.weights());
  const ExpertWeights shared = layer.shared.weights();
  const MoeExpertsPlan plan = plan_moe_experts(desc, {BackendKind::kCpu, std::max(threads, 1)});
  const Tensor out = poisoned(DType::kF32, {rows, desc.hidden});
  const MoeExpertsArgs args{x.view(), ids.view(), weights.view(), experts, layer.has_shared ? &shared : nullptr,
                            nullptr,  out.view()};
  run_with(OpKind::kMoeExperts, variant, threads, plan.workspace_bytes,
           [&](ExecutionContext& context) { run_moe_experts(context, plan, args); });
  return out.to_vector();
}

MoeExpertsDesc make_desc(std::int64_t inter, const Numerics& numerics) {
  MoeExpertsDesc desc;
  desc.intermediate = inter;
  desc.numerics = numerics;
  return desc;
}

// weight * silu(min(w1 x, 10)) * clamp(w3 x, +-10) through w2, quantising like Linear4 when asked to.
std::vector<double> exact_expert(const Expert& expert, std::vector<float> x, double weight, bool quantise,
                                 bool weight_after = false) {
  const auto product = [](const LinearWeight& w, const std::vector<float>& input) {
    const std::vector<double> values = exact_weight(w);
    std::vector<double> y(static_cast<std::size_t>(w.out_features));
    for (std::size_t n = 0; n < y.size(); ++n) {
      for (std::size_t k = 0; k < input.size(); ++k) y[n] += values[n * input.size() + k] * double{input[k]};
    }
    return y;
  };
  if (quantise) simulate_e4m3(x, 128);
  const std::vector<double> a = product(expert.w1.weight, x);
  const std::vector<double> b = product(expert.w3.weight, x);
  std::vector<float> t(a.size());
  for (std::size_t i = 0; i < t.size(); ++i) {
    const double gate = std::min(a[i], 10.0);
    const double up = std::min(std::max(b[i], -10.0), 10.0);
    t[i] = static_cast<float>((weight_after ? 1.0 : weight) * (gate / (1.0 + std::exp(-gate)) * up));
  }
  if (quantise) simulate_e4m3(t, 128);
  std::vector<double> y = product(expert.w2.weight, t);
  for (double& value : y) value *= weight_after ? weight : 1.0;
  return y;
}

TEST(MoeExperts, IsTheFormulaAndTheWeightStandsBeforeW2) {
  Random random;
  for (WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kNvfp4, WeightFormat::kFp8Block128}) {
    Layer layer;
    for (int e = 0; e < 3; ++e) layer.experts.push_back(random_expert(random, format, 160, 96));
    layer.shared = random_expert(random, WeightFormat::kFp8Block128, 160, 96);
    const Tensor x = random_f32(random, {1, 160}, 3.0f);
    const std::vector<float> row = x.to_vector();
    const std::vector<std::int32_t> chosen = {0, 2};
    const std::vector<float> routing = {0.3f, 1.1f};
    const Tensor ids = make_i32({1, 2}, chosen);
    const Tensor weights = make_f32({1, 2}, routing);
    for (const bool quantise : {false, true}) {
      SCOPED_TRACE(format_name(format) + (quantise ? " vendor" : " plain"));
      std::vector<float> before(160, 0.0f), after(160, 0.0f), shared(160, 0.0f);
      for (std::size_t i = 0; i < 3; ++i) {
        const Expert& expert = i < 2 ? layer.experts[static_cast<std::size_t>(chosen[i])] : layer.shared;
        const double weight = i < 2 ? double{routing[i]} : 1.0;
        const std::vector<double> y = exact_expert(expert, row, weight, quantise);
        const std::vector<double> late = exact_expert(expert, row, weight, quantise, true);
        for (std::size_t c = 0; c < 160; ++c) {
          before[c] += static_cast<float>(y[c]);
          after[c] += static_cast<float>(late[c]);
          if (i == 2) shared[c] = static_cast<float>(y[c]);
        }
      }
      const Numerics numerics = quantise ? Numerics::vendor() : Numerics::plain();
      const std::vector<float> found = run("reference", 2, make_desc(96, numerics), layer, x, ids, weights);
      if (!quantise) {
        EXPECT_TRUE(within(found, before, 2e-6));
      } else {
        // A sum in its last bit may flip one code of t in a run of many; the weight after w2 moves them all: e4m3's
        // three mantissa bits round a value by 2^-4 / sqrt(3) / 1.5 = 2.4 % rms, and t and weight * t round
        // independently, so the routed experts' part moves by 3.4 % of itself, by less where few codes make most of it:
        // a quarter is asked. The shared expert has no weight; where the draw makes it the larger, the whole moves by
        // less.
        std::vector<float> routed_before(160), routed_after(160);
        for (std::size_t c = 0; c < 160; ++c) {
          routed_before[c] = before[c] - shared[c];
          routed_after[c] = after[c] - shared[c];
        }
        EXPECT_GT(relative_l2(routed_after, routed_before), 0.034 / 4);
        EXPECT_LT(relative_l2(found, before), 0.4 * relative_l2(after, before));
      }
    }
  }
}

// F32 weights small enough for the hand. Gate -20 is not clamped below: silu(-20) = -4.1e-8, not silu(-10).
TEST(MoeExperts, GateIsClampedOnlyAbove) {
  const auto scalar = [](float value) {
    TestWeight weight;
    weight.values = make_f32({1, 1}, {&value, 1});
    weight.weight = {WeightFormat::kF32, 1, 1, weight.values.view(), {}, 1.0f, {}};
    return weight;
  };
  struct Hand {
    float w1, w3;
    double expected;
  };
  const auto silu = [](double z) { return z / (1 + std::exp(-z)); };
  for (const Hand& hand : {Hand{-20.0f, 5.0f, 5 * silu(-20)}, Hand{20.0f, 5.0f, 5 * silu(10)},
                           Hand{2.0f, 50.0f, 10 * silu(2)}, Hand{2.0f, -50.0f, -10 * silu(2)}}) {
    Layer layer;
    layer.experts.push_back({scalar(hand.w1), scalar(1.0f), scalar(hand.w3)});
    layer.shared = {scalar(hand.w1), scalar(1.0f), scalar(hand.w3)};  // the shared expert clamps too
    const std::vector<float> one = {1.0f};
    const std::vector<float> half = {0.5f};
    const std::vector<std::int32_t> zero = {0};
    const Tensor x = make_f32({1, 1}, one);
    const Tensor ids = make_i32({1, 1}, zero);
    const Tensor weights = make_f32({1, 1}, half);
    for (const std::string& variant : cpu_variants(OpKind::kMoeExperts)) {
      const float out = run(variant, 1, make_desc(1, Numerics::plain()), layer, x, ids, weights)[0];
      EXPECT_NEAR(out, 1.5 * hand.expected, 1e-5 * std::fabs(hand.expected)) << variant << " gate " << hand.w1;
    }
  }
}

// Experts add in ascending id, the shared one last: 1 + 2^24 - 2^24 tells the orders apart.
TEST(MoeExperts, AddsInAscendingOrder) {
  const auto constant = [](float value) {
    const auto scalar = [](float v) {
      TestWeight weight;
      weight.values = make_f32({1, 1}, {&v, 1});
      weight.weight = {WeightFormat::kF32, 1, 1, weight.values.view(), {}, 1.0f, {}};
      return weight;
    };
    return Expert{scalar(10.0f), scalar(value), scalar(1.0f)};
  };
  Layer layer;
  const float t = 10.0f / (1.0f + std::exp(-10.0f));  // silu(10)
  layer.experts.push_back(constant(0x1p24f / t));
  layer.experts.push_back(constant(-0x1p24f / t));
  layer.experts.push_back(constant(1.0f / t));
  layer.shared = constant(1.0f / t);
  const std::vector<float> one = {1.0f};
  const std::vector<float> ones(3, 1.0f);
  const std::vector<std::int32_t> all = {0, 1, 2};
  const Tensor x = make_f32({1, 1}, one);
  const Tensor ids = make_i32({1, 3}, all);
  const Tensor weights = make_f32({1, 3}, ones);
  for (const std::string& variant : cpu_variants(OpKind::kMoeExperts)) {
    // (2^24 - 2^24) + 1 + 1; any order with the large ones apart loses a 1.
    EXPECT_NEAR(run(variant, 1, make_desc(1, Numerics::plain()), layer, x, ids, weights)[0], 2.0, 1e-5) << variant;
  }
}

TEST(MoeExperts, VariantsAgreeAndAreRowInvariant) {
  Random random;
  for (const Numerics& numerics : kAllNumerics) {
    for (WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kNvfp4, WeightFormat::kFp8Block128}) {
      SCOPED_TRACE(std::string(numerics_name(numerics.mode)) + " " + format_name(format));
      for (const auto& [hidden, inter] : {std::pair{160, 96}, std::pair{64, 288}}) {
        if (format != WeightFormat::kMxfp4 && hidden != 160) continue;  // one shape of the rarer formats
        constexpr std::int32_t kTopk = 3;
        Layer layer;
        for (int e = 0; e < 6; ++e) layer.experts.push_back(random_expert(random, format, hidden, inter));
        layer.shared = random_expert(random, WeightFormat::kFp8Block128, hidden, inter);
        constexpr std::int32_t kRows = 31;
        const Tensor x = random_bf16_valued(random, {kRows, hidden}, 2.0f);
        std::vector<std::int32_t> routed;
        for (std::int32_t t = 0; t < kRows; ++t) {
          std::vector<std::int32_t> row;
          for (std::int32_t i = 0; i < kTopk; ++i) row.push_back(static_cast<std::int32_t>(random.integer(0, 5)));
          std::sort(row.begin(), row.end());  // equal ids are allowed; expert 5 is never hit
          routed.insert(routed.end(), row.begin(), row.end());
        }
        const Tensor ids = make_i32({kRows, kTopk}, routed);
        const Tensor weights = random_f32(random, {kRows, kTopk}, 0.2f, 0.5f);
        const RowRunner rows = [&](const std::string& variant, int threads, std::span<const std::int32_t> chosen) {
          return run(variant, threads, make_desc(inter, numerics), layer, gather_rows(x, chosen),
                     gather_rows(ids, chosen), gather_rows(weights, chosen));
        };
        // As in attention_output: a code of t that flips moves its row.
        const Comparison compare =
            numerics.quantise_linear_input
                ? Comparison([](std::span<const float> a, std::span<const float> b) { return within(a, b, 4e-3); })
                : sum_order(numerics);
        expect_matches_reference(OpKind::kMoeExperts, kRows, rows, compare);
        expect_row_invariance(OpKind::kMoeExperts, 5, rows);
      }
    }
  }
}

}  // namespace
}  // namespace fathom::testing
