#include "ops/rms_norm/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/dequantise.h"
#include "ops/testing/run.h"
#include "ops/testing/tensors.h"

namespace fathom::testing {
namespace {

std::vector<float> run(const std::string& variant, int threads, const RmsNormDesc& desc, const Tensor& x,
                       const View& weight) {
  const RmsNormPlan plan = plan_rms_norm(desc, {});
  const Tensor out = poisoned(DType::kF32, x.view().shape);
  const RmsNormArgs args{x.view(), weight, out.view()};
  run_with(OpKind::kRmsNorm, variant, threads, plan.workspace_bytes,
           [&](ExecutionContext& context) { run_rms_norm(context, plan, args); });
  return out.to_vector();
}

TEST(RmsNorm, IsTheFormula) {
  Random random;
  for (std::int64_t width : {1, 3, 64, 200}) {
    const Tensor x = random_f32(random, {5, width}, 3.0f);
    const Tensor weight = random_bf16(random, {width}, 0.3f, 1.0f, 1);
    const std::vector<float> out = run("reference", 0, {width, 1e-6f, Numerics::plain()}, x, weight.view());
    std::vector<float> expected;
    for (std::int64_t t = 0; t < 5; ++t) {
      double squares = 0;
      for (std::int64_t i = 0; i < width; ++i) squares += std::pow(static_cast<double>(x.floats()[t * width + i]), 2);
      for (std::int64_t i = 0; i < width; ++i) {
        expected.push_back(static_cast<float>(static_cast<double>(load_float(weight.view(), i)) *
                                              static_cast<double>(x.floats()[t * width + i]) /
                                              std::sqrt(squares / static_cast<double>(width) + 1e-6)));
      }
    }
    EXPECT_TRUE(within(out, expected, 1e-7));
  }
}

// The DSpark drafter's M is this of the projected taps (spec 2.10). Squares 9 + 16 + 0 + 75 = 100, mean 25.
TEST(RmsNorm, ByHand) {
  const Tensor x = make_f32({1, 4}, std::vector<float>{3, 4, 0, -8.6602540378f});
  const Tensor weight = make_bf16({4}, std::vector<float>{1, 0.5f, 3, 2});
  const float expected[] = {0.6f, 0.4f, 0, -3.4641016f};
  for (const std::string& variant : cpu_variants(OpKind::kRmsNorm)) {
    const std::vector<float> found = run(variant, 1, {4, 1e-6f, Numerics::plain()}, x, weight.view());
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(found[i], expected[i], 1e-6f) << variant << " channel " << i;
  }
}

// Values so small that eps decides: 1e-3 / sqrt(1e-6 + 1e-6).
TEST(RmsNorm, EpsIsInsideTheRoot) {
  const std::vector<float> small(8, 1e-3f);
  const std::vector<float> ones(8, 1.0f);
  const Tensor x = make_f32({1, 8}, small);
  const Tensor weight = make_bf16({8}, ones);
  for (const std::string& variant : cpu_variants(OpKind::kRmsNorm)) {
    for (float value : run(variant, 1, {8, 1e-6f, Numerics::plain()}, x, weight.view())) {
      EXPECT_NEAR(value, 0.70710678f, 1e-6f) << variant;
    }
  }
}

TEST(RmsNorm, VariantsAgreeAndAreRowInvariant) {
  Random random;
  for (const Numerics& numerics : kAllNumerics) {
    SCOPED_TRACE(numerics_name(numerics.mode));
    for (std::int64_t width : {1, 9, 128, 517}) {
      const Tensor x = random_f32(random, {130, width}, 2.0f);
      const Tensor weight = random_bf16(random, {width}, 0.3f, 1.0f, 1);
      const RowRunner rows = [&](const std::string& variant, int threads, std::span<const std::int32_t> chosen) {
        return run(variant, threads, {width, 1e-6f, numerics}, gather_rows(x, chosen), weight.view());
      };
      expect_matches_reference(OpKind::kRmsNorm, 130, rows, sum_order(numerics));
      expect_row_invariance(OpKind::kRmsNorm, 31, rows);
    }
  }
}

TEST(RmsNorm, ServeRoundsOnceAtTheEnd) {
  const std::vector<float> values = {1.0f, 2.0f, 3.0f, 4.0f};
  const std::vector<float> weights = {1.5f, 1.0f, 0.75f, 1.0f};
  const Tensor x = make_f32({1, 4}, values);
  const Tensor weight = make_bf16({4}, weights);
  const std::vector<float> plain = run("reference", 0, {4, 1e-6f, Numerics::plain()}, x, weight.view());
  const std::vector<float> serve = run("reference", 0, {4, 1e-6f, Numerics::serve()}, x, weight.view());
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(serve[i], round_to_bf16(plain[i]));
}

}  // namespace
}  // namespace fathom::testing
