#include "ops/lm_head/lm_head.h"

#include <gtest/gtest.h>

#include "ops/testing/run.h"
#include "ops/testing/tensors.h"

namespace fathom::testing {
namespace {

std::vector<float> run(const std::string& variant, int threads, const Tensor& x, const LinearWeight& head) {
  const std::int64_t rows = x.view().shape[0];
  const LmHeadPlan plan =
      plan_lm_head({rows, head.in_features, head.out_features}, {BackendKind::kCpu, std::max(threads, 1)});
  const Tensor logits = poisoned(DType::kF32, {rows, head.out_features});
  const LmHeadArgs args{x.view(), &head, logits.view()};
  run_with(OpKind::kLmHead, variant, threads, plan.workspace_bytes,
           [&](ExecutionContext& context) { run_lm_head(context, plan, args); });
  return logits.to_vector();
}

TEST(LmHead, IsTheExactProductInFp32) {
  Random random;
  for (std::int64_t misalignment : {0, 1}) {
    const TestWeight head = random_weight(random, WeightFormat::kBf16, 301, 77, misalignment);
    const std::vector<double> exact = exact_weight(head.weight);
    const Tensor x = random_f32(random, {3, 77});
    std::vector<float> expected;
    for (std::size_t t = 0; t < 3; ++t) {
      for (std::size_t n = 0; n < 301; ++n) {
        double sum = 0;
        for (std::size_t i = 0; i < 77; ++i) sum += double{x.floats()[t * 77 + i]} * exact[n * 77 + i];
        expected.push_back(static_cast<float>(sum));
      }
    }
    for (const std::string& variant : cpu_variants(OpKind::kLmHead)) {
      EXPECT_TRUE(within(run(variant, 2, x, head.weight), expected, 1e-6)) << variant;
    }
  }
}

TEST(LmHead, VariantsAgreeAndAreRowInvariant) {
  Random random;
  for (const auto& [vocab, hidden] : {std::pair{384, 128}, std::pair{1001, 100}}) {
    const TestWeight head = random_weight(random, WeightFormat::kBf16, vocab, hidden, 1);
    const Tensor x = random_bf16_valued(random, {130, hidden});
    const RowRunner rows = [&](const std::string& variant, int threads, std::span<const std::int32_t> chosen) {
      return run(variant, threads, gather_rows(x, chosen), head.weight);
    };
    expect_matches_reference(OpKind::kLmHead, 130, rows, sum_order(Numerics::plain()));
    expect_row_invariance(OpKind::kLmHead, 31, rows);
  }
}

}  // namespace
}  // namespace fathom::testing
