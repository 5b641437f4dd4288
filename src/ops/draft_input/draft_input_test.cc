#include "ops/draft_input/draft_input.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/dequantise.h"
#include "ops/testing/run.h"
#include "ops/testing/tensors.h"

namespace fathom::testing {
namespace {

struct Parameters {
  Tensor enorm, hnorm;
  TestWeight e_proj, h_proj;
};

Parameters random_parameters(Random& random, std::int64_t hidden) {
  return {random_bf16(random, {hidden}, 0.3f, 1.0f, 1), random_bf16(random, {hidden}, 0.3f, 1.0f, 1),
          random_weight(random, WeightFormat::kFp8Block128, hidden, hidden, 1),
          random_weight(random, WeightFormat::kFp8Block128, hidden, hidden, 1)};
}

std::vector<float> run(const std::string& variant, int threads, const Numerics& numerics, const Parameters& parameters,
                       const Tensor& embedded, const Tensor& streams) {
  const std::int64_t rows = embedded.view().shape[0];
  const std::int64_t hidden = embedded.view().shape[1];
  const DraftInputPlan plan =
      plan_draft_input({rows, hidden, 4, 1e-6f, numerics}, {BackendKind::kCpu, std::max(threads, 1)});
  const Tensor out = poisoned(DType::kF32, {rows, 4, hidden});
  const DraftInputArgs args{embedded.view(),
                            streams.view(),
                            parameters.enorm.view(),
                            parameters.hnorm.view(),
                            &parameters.e_proj.weight,
                            &parameters.h_proj.weight,
                            out.view()};
  run_with(OpKind::kDraftInput, variant, threads, plan.workspace_bytes,
           [&](ExecutionContext& context) { run_draft_input(context, plan, args); });
  return out.to_vector();
}

TEST(DraftInput, PlainIsTheFormula) {
  Random random;
  constexpr std::size_t kHidden = 160;
  const Parameters parameters = random_parameters(random, kHidden);
  const Tensor embedded = random_f32(random, {2, kHidden}, 0.05f);
  const Tensor streams = random_f32(random, {2, 4, kHidden}, 3.0f);
  const auto projected = [&](const float* x, const View& norm, const LinearWeight& weight) {
    const std::vector<double> w = exact_weight(weight);
    double squares = 0;
    for (std::size_t i = 0; i < kHidden; ++i) squares += double{x[i]} * double{x[i]};
    std::vector<double> y(kHidden);
    for (std::size_t n = 0; n < kHidden; ++n) {
      for (std::size_t i = 0; i < kHidden; ++i) {
        y[n] += w[n * kHidden + i] * double{load_float(norm, static_cast<std::int64_t>(i))} * double{x[i]};
      }
      y[n] /= std::sqrt(squares / kHidden + 1e-6);
    }
    return y;
  };
  std::vector<float> expected;
  for (std::size_t t = 0; t < 2; ++t) {
    const std::vector<double> e =
        projected(&embedded.floats()[t * kHidden], parameters.enorm.view(), parameters.e_proj.weight);
    for (std::size_t j = 0; j < 4; ++j) {
      const std::vector<double> g =
          projected(&streams.floats()[(t * 4 + j) * kHidden], parameters.hnorm.view(), parameters.h_proj.weight);
      for (std::size_t i = 0; i < kHidden; ++i) expected.push_back(static_cast<float>(e[i] + g[i]));
    }
  }
  for (const std::string& variant : cpu_variants(OpKind::kDraftInput)) {
    EXPECT_TRUE(within(run(variant, 2, Numerics::plain(), parameters, embedded, streams), expected, 2e-6)) << variant;
  }
}

TEST(DraftInput, VariantsAgreeAndAreRowInvariant) {
  Random random;
  for (const Numerics& numerics : kAllNumerics) {
    SCOPED_TRACE(numerics_name(numerics.mode));
    for (std::int64_t hidden : {96, 256}) {
      const Parameters parameters = random_parameters(random, hidden);
      const Tensor embedded = random_bf16_valued(random, {31, hidden}, 0.05f);
      const Tensor streams = random_bf16_valued(random, {31, 4, hidden}, 3.0f);
      const RowRunner rows = [&](const std::string& variant, int threads, std::span<const std::int32_t> chosen) {
        return run(variant, threads, numerics, parameters, gather_rows(embedded, chosen), gather_rows(streams, chosen));
      };
      // The norms feed a quantiser: a code that flips moves its row.
      const Comparison compare =
          numerics.quantise_linear_input
              ? Comparison([](std::span<const float> a, std::span<const float> b) { return within(a, b, 4e-3); })
              : sum_order(numerics);
      expect_matches_reference(OpKind::kDraftInput, 31, rows, compare);
      expect_row_invariance(OpKind::kDraftInput, 7, rows);
    }
  }
}

}  // namespace
}  // namespace fathom::testing
