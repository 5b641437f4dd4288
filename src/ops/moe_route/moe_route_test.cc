#include "ops/moe_route/moe_route.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/testing/run.h"
#include "ops/testing/tensors.h"

namespace fathom::testing {
namespace {

struct Routing {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

Routing run(const std::string& variant, int threads, MoeRouteDesc desc, const Tensor& x, const LinearWeight& gate,
            const View& bias, const View& tid2eid = {}, const View& token_ids = {}) {
  const std::int64_t rows = x.view().shape[0];
  desc.max_tokens = rows;
  const MoeRoutePlan plan = plan_moe_route(desc, {BackendKind::kCpu, std::max(threads, 1)});
  const Tensor ids = poisoned(DType::kI32, {rows, desc.topk});
  const Tensor weights = poisoned(DType::kF32, {rows, desc.topk});
  const MoeRouteArgs args{x.view(), &gate, bias, tid2eid, token_ids, ids.view(), weights.view()};
  run_with(OpKind::kMoeRoute, variant, threads, plan.workspace_bytes,
           [&](ExecutionContext& context) { run_moe_route(context, plan, args); });
  return {{ids.ints().begin(), ids.ints().end()}, weights.to_vector()};
}

TestWeight gate_of(std::span<const float> values, std::int64_t experts, std::int64_t hidden) {
  TestWeight gate;
  gate.values = make_bf16({experts, hidden}, values);
  gate.weight = {WeightFormat::kBf16, experts, hidden, gate.values.view(), {}, 1.0f, {}};
  return gate;
}

// Spec section 12: the scores of -3, 0, 1.25 and 25, read back as unnormalised weights.
TEST(MoeRoute, GoldenScores) {
  const std::vector<float> z = {-3.0f, 0.0f, 1.25f, 25.0f};
  const TestWeight gate = gate_of(z, 4, 1);
  const std::vector<float> one = {1.0f};
  const std::vector<float> zeros(4, 0.0f);
  const Tensor x = make_f32({1, 1}, one);
  const Tensor bias = make_f32({4}, zeros);
  for (const std::string& variant : cpu_variants(OpKind::kMoeRoute)) {
    const Routing routing = run(variant, 1, {0, 1, 4, 4, 1.0f, false}, x, gate.weight, bias.view());
    EXPECT_EQ(routing.ids, (std::vector<std::int32_t>{0, 1, 2, 3}));
    EXPECT_NEAR(routing.weights[0], 0.22042539, 3e-8) << variant;
    EXPECT_NEAR(routing.weights[1], 0.83255461, 1e-7) << variant;
    EXPECT_NEAR(routing.weights[2], 1.22553216, 2e-7) << variant;
    EXPECT_EQ(routing.weights[3], 5.0f) << variant;
  }
}

// The bias chooses, the unbiased score weighs; weights of a row sum to the scaling factor.
TEST(MoeRoute, BiasChoosesButDoesNotWeigh) {
  const std::vector<float> z = {2.0f, 0.0f, 1.0f, -1.0f};
  const TestWeight gate = gate_of(z, 4, 1);
  const std::vector<float> one = {1.0f};
  const std::vector<float> bias_values = {-10.0f, 0.0f, 0.0f, 10.0f};
  const Tensor x = make_f32({1, 1}, one);
  const Tensor bias = make_f32({4}, bias_values);
  const double s2 = std::sqrt(std::log1p(std::exp(1.0)));
  const double s3 = std::sqrt(std::log1p(std::exp(-1.0)));
  for (const std::string& variant : cpu_variants(OpKind::kMoeRoute)) {
    const Routing routing = run(variant, 1, {0, 1, 4, 2, 1.5f, true}, x, gate.weight, bias.view());
    EXPECT_EQ(routing.ids, (std::vector<std::int32_t>{2, 3})) << variant;
    EXPECT_NEAR(routing.weights[0], 1.5 * s2 / (s2 + s3), 3e-7) << variant;
    EXPECT_NEAR(routing.weights[1], 1.5 * s3 / (s2 + s3), 3e-7) << variant;
  }
}

TEST(MoeRoute, TiesGoToTheLowestExpert) {
  const std::vector<float> z = {1.0f, 3.0f, 1.0f, 3.0f, 1.0f, 1.0f, 3.0f};
  const TestWeight gate = gate_of(z, 7, 1);
  const std::vector<float> one = {1.0f};
  const std::vector<float> zeros(7, 0.0f);
  const Tensor x = make_f32({1, 1}, one);
  const Tensor bias = make_f32({7}, zeros);
  for (const std::string& variant : cpu_variants(OpKind::kMoeRoute)) {
    EXPECT_EQ(run(variant, 1, {0, 1, 7, 2, 1.0f, true}, x, gate.weight, bias.view()).ids,
              (std::vector<std::int32_t>{1, 3}))
        << variant;
    EXPECT_EQ(run(variant, 1, {0, 1, 7, 5, 1.0f, true}, x, gate.weight, bias.view()).ids,
              (std::vector<std::int32_t>{0, 1, 2, 3, 6}))
        << variant;
  }
}

// Hash-routed: the experts are the token's, written in ascending order, each with its own score.
TEST(MoeRoute, HashRoutingFollowsTheTokenId) {
  Random random;
  const TestWeight gate = random_weight(random, WeightFormat::kBf16, 8, 24, 1);
  const Tensor x = random_f32(random, {3, 24});
  // tid2eid [3, 3] i64 behind an odd address; token 1 names an expert twice.
  const std::int64_t table[] = {7, 0, 3, 5, 2, 5, 1, 6, 4};
  const Tensor tid2eid(DType::kI64, {3, 3}, 1);
  std::memcpy(tid2eid.view().data, table, sizeof(table));
  const std::vector<std::int32_t> tokens = {2, 0, 1};
  const Tensor token_ids = make_i32({3}, tokens);
  const std::vector<double> w = exact_weight(gate.weight);
  for (const std::string& variant : cpu_variants(OpKind::kMoeRoute)) {
    SCOPED_TRACE(variant);
    const Routing routing =
        run(variant, 1, {0, 24, 8, 3, 1.5f, true}, x, gate.weight, View(), tid2eid.view(), token_ids.view());
    EXPECT_EQ(routing.ids, (std::vector<std::int32_t>{1, 4, 6, 0, 3, 7, 2, 5, 5}));
    for (std::size_t t = 0; t < 3; ++t) {
      double s[3];
      double sum = 0;
      for (std::size_t i = 0; i < 3; ++i) {
        double z = 0;
        for (std::size_t c = 0; c < 24; ++c) {
          z += double{x.floats()[t * 24 + c]} * w[static_cast<std::size_t>(routing.ids[t * 3 + i]) * 24 + c];
        }
        s[i] = std::sqrt(std::log1p(std::exp(z)));
        sum += s[i];
      }
      for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(routing.weights[t * 3 + i], 1.5 * s[i] / sum, 1e-6);
    }
  }
}

TEST(MoeRoute, VariantsAgreeAndAreRowInvariant) {
  Random random;
  for (const auto& [experts, topk, hidden] : {std::tuple{5, 3, 128}, std::tuple{16, 2, 77}, std::tuple{256, 6, 100}}) {
    const TestWeight gate = random_weight(random, WeightFormat::kBf16, experts, hidden, 1);
    const Tensor x = random_bf16_valued(random, {130, hidden});
    const Tensor bias = random_f32(random, {experts}, 0.5f);
    const MoeRouteDesc desc{0, hidden, experts, topk, 1.5f, true};
    // Weights by expert: a row is [experts] with zeros where it does not go. Two experts whose biased scores
    // differ by fp32 noise may swap, which random values make rarer than one run in 1e4.
    const RowRunner rows = [&](const std::string& variant, int threads, std::span<const std::int32_t> chosen) {
      const Routing routing = run(variant, threads, desc, gather_rows(x, chosen), gate.weight, bias.view());
      std::vector<float> dense(chosen.size() * static_cast<std::size_t>(experts), 0.0f);
      for (std::size_t i = 0; i < routing.ids.size(); ++i) {
        const std::size_t row = i / static_cast<std::size_t>(topk);
        dense[row * static_cast<std::size_t>(experts) + static_cast<std::size_t>(routing.ids[i])] = routing.weights[i];
        EXPECT_TRUE(i % static_cast<std::size_t>(topk) == 0 || routing.ids[i - 1] < routing.ids[i]);
      }
      return dense;
    };
    expect_matches_reference(OpKind::kMoeRoute, 130, rows, sum_order(Numerics::plain()));
    expect_row_invariance(OpKind::kMoeRoute, 31, rows);
  }
}

}  // namespace
}  // namespace fathom::testing
