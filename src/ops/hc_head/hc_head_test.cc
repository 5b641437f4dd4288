#include "ops/hc_head/hc_head.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/dequantise.h"
#include "ops/testing/run.h"
#include "ops/testing/tensors.h"

namespace fathom::testing {
namespace {

struct Parameters {
  Tensor fn, base, scale, norm;
};

Parameters random_parameters(Random& random, std::int64_t hc, std::int64_t hidden) {
  Parameters made;
  made.fn = random_f32(random, {hc, hc * hidden}, 1.0f / std::sqrt(static_cast<float>(hc * hidden)));
  made.base = random_f32(random, {hc});
  made.scale = random_f32(random, {1}, 0.3f, 1.0f);
  made.norm = random_bf16(random, {hidden}, 0.2f, 1.0f, 1);
  return made;
}

// Rows of collapsed and normed, side by side.
std::vector<float> run(const std::string& variant, int threads, const HcHeadDesc& desc, const Tensor& streams,
                       const Parameters& parameters, const View& row_indices) {
  const std::int64_t rows = row_indices.empty() ? streams.view().shape[0] : row_indices.shape[0];
  const Tensor collapsed = poisoned(DType::kF32, {rows, desc.hidden});
  const Tensor normed = poisoned(DType::kF32, {rows, desc.hidden});
  const HcHeadPlan plan = plan_hc_head(desc, {});
  const HcHeadArgs args{
      streams.view(),         row_indices,      {parameters.fn.view(), parameters.base.view(), parameters.scale.view()},
      parameters.norm.view(), collapsed.view(), normed.view()};
  run_with(OpKind::kHcHead, variant, threads, plan.workspace_bytes,
           [&](ExecutionContext& context) { run_hc_head(context, plan, args); });
  std::vector<float> both;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (const Tensor* part : {&collapsed, &normed}) {
      const std::span<float> values =
          part->floats().subspan(static_cast<std::size_t>(row * desc.hidden), static_cast<std::size_t>(desc.hidden));
      both.insert(both.end(), values.begin(), values.end());
    }
  }
  return both;
}

TEST(HcHead, IsTheFormula) {
  Random random;
  constexpr std::size_t kHidden = 19;
  const Tensor streams = random_f32(random, {5, 4, kHidden}, 2.0f);
  const Parameters parameters = random_parameters(random, 4, kHidden);
  const std::vector<std::int32_t> chosen = {4, 1};
  const Tensor indices = make_i32({2}, chosen);
  const std::vector<float> out =
      run("reference", 0, {kHidden, 4, 1e-6f, 1e-6f, Numerics::plain()}, streams, parameters, indices.view());
  for (std::size_t row = 0; row < 2; ++row) {
    const float* v = &streams.floats()[static_cast<std::size_t>(chosen[row]) * 4 * kHidden];
    double squares = 0;
    for (std::size_t i = 0; i < 4 * kHidden; ++i) squares += double{v[i]} * v[i];
    std::vector<double> x(kHidden);
    for (std::size_t j = 0; j < 4; ++j) {
      double m = 0;
      for (std::size_t i = 0; i < 4 * kHidden; ++i) m += double{parameters.fn.floats()[j * 4 * kHidden + i]} * v[i];
      m = m / std::sqrt(squares / (4 * kHidden) + 1e-6) * double{parameters.scale.floats()[0]};
      const double pre = 1 / (1 + std::exp(-m - double{parameters.base.floats()[j]})) + 1e-6;
      for (std::size_t i = 0; i < kHidden; ++i) x[i] += pre * double{v[j * kHidden + i]};
    }
    double x_squares = 0;
    for (double value : x) x_squares += value * value;
    for (std::size_t i = 0; i < kHidden; ++i) {
      EXPECT_NEAR(out[row * 2 * kHidden + i], x[i], 1e-5);
      const double weight = double{load_float(parameters.norm.view(), static_cast<std::int64_t>(i))};
      EXPECT_NEAR(out[(row * 2 + 1) * kHidden + i], weight * x[i] / std::sqrt(x_squares / kHidden + 1e-6), 1e-5);
    }
  }
}

// sigmoid(-30) = 1e-13: what is left of pre is eps.
TEST(HcHead, PreHasItsEps) {
  Random random;
  Parameters parameters = random_parameters(random, 4, 8);
  const std::vector<float> zeros(4 * 32, 0.0f);
  const std::vector<float> base(4, -30.0f);
  parameters.fn = make_f32({4, 32}, zeros);
  parameters.base = make_f32({4}, base);
  const std::vector<float> ones(32, 1.0f);
  const Tensor streams = make_f32({1, 4, 8}, ones);
  for (const std::string& variant : cpu_variants(OpKind::kHcHead)) {
    const std::vector<float> out =
        run(variant, 1, {8, 4, 1e-6f, 1e-6f, Numerics::plain()}, streams, parameters, View());
    EXPECT_NEAR(out[0], 4e-6, 1e-11) << variant;
  }
}

TEST(HcHead, VariantsAgreeAndAreRowInvariant) {
  Random random;
  for (const Numerics& numerics : kAllNumerics) {
    SCOPED_TRACE(numerics_name(numerics.mode));
    for (std::int64_t hidden : {7, 256, 333}) {
      const HcHeadDesc desc{hidden, 4, 1e-6f, 1e-6f, numerics};
      const Tensor streams = random_bf16_valued(random, {31, 4, hidden}, 2.0f);
      const Parameters parameters = random_parameters(random, 4, hidden);
      // Chosen through row_indices: neighbours in the step stay, rows of the call change.
      const RowRunner rows = [&](const std::string& variant, int threads, std::span<const std::int32_t> chosen) {
        const Tensor indices = make_i32({static_cast<std::int64_t>(chosen.size())}, chosen);
        return run(variant, threads, desc, streams, parameters, indices.view());
      };
      const Comparison compare =
          numerics.rounds_to_bf16() ? Comparison([](std::span<const float> a, std::span<const float> b) {
            return within_rounding(a, b, {.step = 0x1p-6, .max_share = 0.01, .floor = 1e-2});
          })
                                    : sum_order(numerics, 5e-6);
      expect_matches_reference(OpKind::kHcHead, 31, rows, compare);
      expect_row_invariance(OpKind::kHcHead, 8, rows);
    }
  }
}

}  // namespace
}  // namespace fathom::testing
