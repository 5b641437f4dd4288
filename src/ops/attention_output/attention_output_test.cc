#include "ops/attention_output/attention_output.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/testing/run.h"
#include "ops/testing/tensors.h"

namespace fathom::testing {
namespace {

struct Shape4 {
  std::int32_t groups;
  std::int64_t group_in, rank, hidden;
};

std::vector<float> run(const std::string& variant, int threads, const Numerics& numerics, const Shape4& shape,
                       const Tensor& o, const LinearWeight& wo_a, const LinearWeight& wo_b) {
  const std::int64_t rows = o.view().shape[0];
  const AttentionOutputPlan plan =
      plan_attention_output({rows, shape.groups, shape.group_in, shape.rank, shape.hidden, numerics},
                            {BackendKind::kCpu, std::max(threads, 1)});
  const Tensor out = poisoned(DType::kF32, {rows, shape.hidden});
  const AttentionOutputArgs args{o.view(), &wo_a, &wo_b, out.view()};
  run_with(OpKind::kAttentionOutput, variant, threads, plan.workspace_bytes,
           [&](ExecutionContext& context) { run_attention_output(context, plan, args); });
  return out.to_vector();
}

// o_lora_rank 32 and 96: a block of 128 scale rows spans four groups, or ends inside one.
constexpr Shape4 kShapes[] = {{4, 128, 32, 96}, {3, 160, 96, 130}, {2, 256, 128, 64}, {1, 64, 40, 33}};

TEST(AttentionOutput, PlainIsTheFormula) {
  Random random;
  for (const Shape4& shape : kShapes) {
    const auto rank = static_cast<std::size_t>(shape.rank);
    const auto group_in = static_cast<std::size_t>(shape.group_in);
    const auto groups = static_cast<std::size_t>(shape.groups);
    const TestWeight wo_a =
        random_weight(random, WeightFormat::kFp8Block128, shape.groups * shape.rank, shape.group_in, 1);
    const TestWeight wo_b =
        random_weight(random, WeightFormat::kFp8Block128, shape.hidden, shape.groups * shape.rank, 1);
    const std::vector<double> a = exact_weight(wo_a.weight);
    const std::vector<double> b = exact_weight(wo_b.weight);
    const Tensor o = random_f32(random, {2, shape.groups * shape.group_in});
    std::vector<float> expected;
    for (std::size_t t = 0; t < 2; ++t) {
      std::vector<double> z(groups * rank);
      for (std::size_t row = 0; row < z.size(); ++row) {
        const float* x = &o.floats()[(t * groups + row / rank) * group_in];  // its group's heads
        for (std::size_t i = 0; i < group_in; ++i) z[row] += a[row * group_in + i] * double{x[i]};
      }
      for (std::size_t n = 0; n < static_cast<std::size_t>(shape.hidden); ++n) {
        double sum = 0;
        for (std::size_t i = 0; i < z.size(); ++i) sum += b[n * z.size() + i] * z[i];
        expected.push_back(static_cast<float>(sum));
      }
    }
    for (const std::string& variant : cpu_variants(OpKind::kAttentionOutput)) {
      EXPECT_TRUE(within(run(variant, 2, Numerics::plain(), shape, o, wo_a.weight, wo_b.weight), expected, 2e-6))
          << variant;
    }
  }
}

// o goes into wo_a as it is, z into wo_b quantised. Identities: out = z = o but for z's quantiser.
TEST(AttentionOutput, OnlyTheSecondInputIsQuantised) {
  std::vector<float> identity(128 * 128, 0.0f);
  for (std::size_t i = 0; i < 128; ++i) identity[i * 129] = 1.0f;
  const auto fp8 = [&] {
    TestWeight weight;
    weight.values = Tensor(DType::kF8E4M3, {128, 128});
    weight.scales = Tensor(DType::kF8E8M0, {1, 1});
    for (std::size_t i = 0; i < identity.size(); ++i) {
      weight.values.view().data[i] = identity[i] != 0.0f ? std::byte{0x38} : std::byte{0};
    }
    weight.scales.view().data[0] = std::byte{127};
    weight.weight = {WeightFormat::kFp8Block128, 128, 128, weight.values.view(), weight.scales.view(), 1.0f, {}};
    return weight;
  };
  TestWeight bf16;
  bf16.values = make_bf16({128, 128}, identity);
  bf16.weight = {WeightFormat::kBf16, 128, 128, bf16.values.view(), {}, 1.0f, {}};
  const TestWeight quantising = fp8();
  std::vector<float> values(128, 0.0f);
  values[0] = 1.0625f;  // between two e4m3 values
  values[1] = 448.0f;
  const Tensor o = make_f32({1, 128}, values);
  const Shape4 shape{1, 128, 128, 128};
  for (const std::string& variant : cpu_variants(OpKind::kAttentionOutput)) {
    EXPECT_EQ(run(variant, 1, Numerics::vendor(), shape, o, quantising.weight, bf16.weight)[0], 1.0625f) << variant;
    EXPECT_EQ(run(variant, 1, Numerics::vendor(), shape, o, quantising.weight, quantising.weight)[0], 1.0f) << variant;
  }
}

TEST(AttentionOutput, VariantsAgreeAndAreRowInvariant) {
  Random random;
  for (const Numerics& numerics : kAllNumerics) {
    for (const Shape4& shape : kShapes) {
      SCOPED_TRACE(std::string(numerics_name(numerics.mode)) + " rank " + std::to_string(shape.rank));
      const TestWeight wo_a =
          random_weight(random, WeightFormat::kFp8Block128, shape.groups * shape.rank, shape.group_in, 1);
      const TestWeight wo_b =
          random_weight(random, WeightFormat::kFp8Block128, shape.hidden, shape.groups * shape.rank, 1);
      const Tensor o = random_bf16_valued(random, {65, shape.groups * shape.group_in});
      const RowRunner rows = [&](const std::string& variant, int threads, std::span<const std::int32_t> chosen) {
        return run(variant, threads, numerics, shape, gather_rows(o, chosen), wo_a.weight, wo_b.weight);
      };
      // z is summed in another order and then quantised: one e4m3 code that flips (1/16 of one of the row's
      // z) moves its whole row a little.
      const Comparison compare =
          numerics.quantise_linear_input
              ? Comparison([](std::span<const float> a, std::span<const float> b) { return within(a, b, 4e-3); })
              : sum_order(numerics);
      expect_matches_reference(OpKind::kAttentionOutput, 65, rows, compare);
      expect_row_invariance(OpKind::kAttentionOutput, 8, rows);
    }
  }
}

}  // namespace
}  // namespace fathom::testing
