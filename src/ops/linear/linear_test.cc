#include "ops/linear/linear.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "ops/testing/run.h"
#include "ops/testing/tensors.h"

namespace fathom::testing {
namespace {

struct Group {
  std::vector<TestWeight> weights;
  std::vector<bool> keep_fp32;
};

// All outputs of a row side by side: [rows, sum of out_features].
std::vector<float> run(const std::string& variant, int threads, const Numerics& numerics, const Tensor& x,
                       const Group& group, int repeats = 1) {
  const std::int64_t rows = x.view().shape[0];
  LinearDesc desc{rows, x.view().shape[1], 0, numerics};
  std::vector<Tensor> outs;
  std::vector<LinearOutput> outputs;
  for (std::size_t i = 0; i < group.weights.size(); ++i) {
    const LinearWeight& weight = group.weights[i].weight;
    desc.out_features += weight.out_features;
    outs.push_back(poisoned(DType::kF32, {rows, weight.out_features}));
    outputs.push_back({&weight, outs.back().view(), group.keep_fp32[i]});
  }
  const LinearPlan plan = plan_linear(desc, {BackendKind::kCpu, std::max(threads, 1)});
  const LinearArgs args{x.view(), outputs};
  run_with(OpKind::kLinear, variant, threads, plan.workspace_bytes, [&](ExecutionContext& context) {
    context.repeats.fill(repeats);
    run_linear(context, plan, args);
  });
  std::vector<float> all;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (const Tensor& out : outs) {
      const auto width = static_cast<std::size_t>(out.view().shape[1]);
      const std::span<float> values = out.floats().subspan(static_cast<std::size_t>(row) * width, width);
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

Group one(TestWeight weight, bool keep_fp32 = false) {
  Group group;
  group.weights.push_back(std::move(weight));
  group.keep_fp32 = {keep_fp32};
  return group;
}

TEST(Linear, ReferenceIsTheExactProduct) {
  Random random;
  for (WeightFormat format : kAllFormats) {
    for (std::int64_t misalignment : {0, 1, 3}) {
      for (const auto& [n, k] : {std::pair{5, 32}, std::pair{130, 96}, std::pair{257, 288}}) {
        for (DType scale : {DType::kF8E8M0, DType::kF32}) {
          if (scale == DType::kF32 && format != WeightFormat::kFp8Block128) continue;
          SCOPED_TRACE(format_name(format) + " " + std::to_string(n) + "x" + std::to_string(k));
          TestWeight weight = random_weight(random, format, n, k, misalignment, scale);
          const std::vector<double> exact = exact_weight(weight.weight);
          const Tensor x = random_f32(random, {3, k});
          std::vector<float> expected;
          for (std::int64_t t = 0; t < 3; ++t) {
            for (std::int64_t row = 0; row < n; ++row) {
              double sum = 0;
              for (std::int64_t i = k - 1; i >= 0; --i) {
                sum += double{x.floats()[static_cast<std::size_t>(t * k + i)]} *
                       exact[static_cast<std::size_t>(row * k + i)];
              }
              expected.push_back(static_cast<float>(sum));
            }
          }
          EXPECT_TRUE(within(run("reference", 2, Numerics::plain(), x, one(std::move(weight))), expected, 2e-7));
        }
      }
    }
  }
}

// An identity of e4m3 ones, so that the output is the quantised input.
Group identity_fp8(std::int64_t k) {
  TestWeight weight;
  weight.values = Tensor(DType::kF8E4M3, {k, k});
  weight.scales = Tensor(DType::kF8E8M0, {k / 128, k / 128});
  std::fill_n(weight.values.view().data, k * k, std::byte{0});
  std::fill_n(weight.scales.view().data, weight.scales.view().num_bytes(), std::byte{127});
  for (std::int64_t i = 0; i < k; ++i) weight.values.view().data[i * k + i] = std::byte{0x38};  // 1.0
  weight.weight = {WeightFormat::kFp8Block128, k, k, weight.values.view(), weight.scales.view(), 1.0f, {}};
  return one(std::move(weight));
}

// Under a scale of 1 (largest 448) 0.0009 is below half of e4m3's smallest step and goes to 0. Channel 64 shares
// its block of 128 with the 448 (a block of 64 would keep it); channel 128 does not (a block of 256 would
// lose it).
TEST(Linear, QuantiserBlockIs128) {
  std::vector<float> x(256, 0.0f);
  x[0] = 448.0f;
  x[64] = 0.0009f;
  x[128] = 0.0009f;
  const Tensor input = make_f32({1, 256}, x);
  const Group group = identity_fp8(256);
  for (const std::string& variant : cpu_variants(OpKind::kLinear)) {
    SCOPED_TRACE(variant);
    const std::vector<float> quantised = run(variant, 1, Numerics::vendor(), input, group);
    EXPECT_EQ(quantised[0], 448.0f);
    EXPECT_EQ(quantised[64], 0.0f);
    EXPECT_NEAR(quantised[128], 0.0009f, 0.00005f);
    const std::vector<float> plain = run(variant, 1, Numerics::plain(), input, group);
    EXPECT_EQ(plain[64], 0.0009f);
  }
}

// Spec section 12's list as one block: padded with zeros to 128 it keeps its largest magnitude.
TEST(Linear, QuantiserGolden) {
  std::vector<float> x = {0.10009766f, -0.25f, 1.0f, 3.140625f, -7.3125f, 0.00090026855f, 12.5f, -100.0f};
  x.resize(128);
  const Tensor input = make_f32({1, 128}, x);
  const std::vector<float> expected = {0.1015625f, -0.25f, 1.0f, 3.25f, -7.5f, 0.0009765625f, 12.0f, -96.0f};
  for (const std::string& variant : cpu_variants(OpKind::kLinear)) {
    std::vector<float> out = run(variant, 1, Numerics::vendor(), input, identity_fp8(128));
    out.resize(8);
    EXPECT_TRUE(same_bits(out, expected)) << variant;
  }
}

// BF16 and F32 weights see x as it is, and keep_fp32 outputs are not rounded.
TEST(Linear, OnlyF8AndFp4QuantiseTheirInput) {
  Random random;
  const Tensor x = random_f32(random, {3, 64});
  for (WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    const Group kept = one(random_weight(random, format, 9, 64), true);
    for (const std::string& variant : cpu_variants(OpKind::kLinear)) {
      EXPECT_TRUE(same_bits(run(variant, 1, Numerics::serve(), x, kept), run(variant, 1, Numerics::plain(), x, kept)));
    }
  }
}

TEST(Linear, ServeRoundsTheResult) {
  Random random;
  const Tensor x = random_bf16_valued(random, {3, 128});
  const Group group = one(random_weight(random, WeightFormat::kFp8Block128, 9, 128));
  std::vector<float> vendor = run("reference", 1, Numerics::vendor(), x, group);
  for (float& value : vendor) value = round_to_bf16(value);
  EXPECT_TRUE(same_bits(run("reference", 1, Numerics::serve(), x, group), vendor));
}

TEST(Linear, VariantsAgreeAndAreRowInvariant) {
  Random random;
  for (const Numerics& numerics : kAllNumerics) {
    for (WeightFormat format : kAllFormats) {
      SCOPED_TRACE(std::string(numerics_name(numerics.mode)) + " " + format_name(format));
      // Not a multiple of a vector or a block where the format allows it.
      const bool is_fp4 = format == WeightFormat::kMxfp4 || format == WeightFormat::kNvfp4;
      for (const auto& [n, k] : {std::pair{130, is_fp4 ? 160 : 77}, std::pair{9, 512}}) {
        Group group;
        group.weights.push_back(random_weight(random, format, n, k, 1));
        group.weights.push_back(random_weight(random, WeightFormat::kBf16, 3, k, 1));
        group.keep_fp32 = {false, true};
        const Tensor x = random_bf16_valued(random, {130, k});
        const RowRunner rows = [&](const std::string& variant, int threads, std::span<const std::int32_t> chosen) {
          return run(variant, threads, numerics, gather_rows(x, chosen), group);
        };
        expect_matches_reference(OpKind::kLinear, 130, rows, sum_order(numerics));
        expect_row_invariance(OpKind::kLinear, 9, rows);
      }
    }
  }
}

// An output's bits do not depend on the weights it is grouped with; running twice changes nothing.
TEST(Linear, GroupsAndRepeatsChangeNothing) {
  Random random;
  const Tensor x = random_bf16_valued(random, {5, 256});
  Group pair;
  pair.weights.push_back(random_weight(random, WeightFormat::kFp8Block128, 40, 256, 1));
  pair.weights.push_back(random_weight(random, WeightFormat::kFp8Block128, 24, 256, 1));
  pair.keep_fp32 = {false, false};
  for (const std::string& variant : cpu_variants(OpKind::kLinear)) {
    SCOPED_TRACE(variant);
    const std::vector<float> together = run(variant, 2, Numerics::serve(), x, pair);
    EXPECT_TRUE(same_bits(run(variant, 2, Numerics::serve(), x, pair, 2), together));
    Group second;
    second.weights.push_back(std::move(pair.weights[1]));
    second.keep_fp32 = {false};
    const std::vector<float> alone = run(variant, 2, Numerics::serve(), x, second);
    for (std::size_t t = 0; t < 5; ++t) {
      EXPECT_TRUE(same_bits(std::span(together).subspan(t * 64 + 40, 24), std::span(alone).subspan(t * 24, 24)));
    }
    pair.weights[1] = std::move(second.weights[0]);
  }
}

// NaN in an input reaches every output of its row and no other row's, in every variant: a NaN that read as a number
// would be a wrong answer that looks like one. (FP8 weights hold none: loading refuses their NaN codes.)
TEST(Linear, NanIsNotHidden) {
  Random random;
  constexpr std::int64_t kOut = 13;
  constexpr std::int32_t kRows = 5;
  for (const WeightFormat format : kAllFormats) {
    for (const std::int64_t k : {96, 4224}) {
      for (const std::int64_t place : {std::int64_t{0}, k / 2, k - 1}) {
        SCOPED_TRACE(format_name(format) + ", " + std::to_string(k) + " columns, NaN at " + std::to_string(place));
        const Group group = one(random_weight(random, format, kOut, k, 1));
        const Tensor x = random_f32(random, {kRows, k});
        x.floats()[static_cast<std::size_t>(2 * k + place)] = NAN;
        // Rounding this like a number would carry into the sign.
        x.floats()[static_cast<std::size_t>(4 * k + place)] = std::bit_cast<float>(0xffffffffu);
        for (const std::string& variant : cpu_variants(OpKind::kLinear)) {
          for (const std::int32_t rows : {1, 2, 3, kRows}) {
            for (const Numerics& numerics : kAllNumerics) {
              const Tensor some = gather_rows(x, iota_rows(kRows - rows, kRows));
              const std::vector<float> out = run(variant, 1, numerics, some, group);
              for (std::size_t i = 0; i < out.size(); ++i) {
                const std::size_t row = i / kOut + static_cast<std::size_t>(kRows - rows);
                EXPECT_EQ(std::isnan(out[i]), row == 2 || row == 4) << variant << ", output " << i;
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace fathom::testing
