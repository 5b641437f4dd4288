#include "ops/index_query/index_query.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "ops/testing/run.h"
#include "ops/testing/tensors.h"

namespace fathom::testing {
namespace {

std::vector<float> run(const std::string& variant, int threads, const IndexQueryDesc& desc, const Tensor& q_raw,
                       const Tensor& rope) {
  const IndexQueryPlan plan = plan_index_query(desc, {});
  const Tensor q = poisoned(DType::kF32, {q_raw.view().shape[0], desc.num_heads, desc.head_dim});
  const IndexQueryArgs args{q_raw.view(), rope.view(), q.view()};
  run_with(OpKind::kIndexQuery, variant, threads, plan.workspace_bytes,
           [&](ExecutionContext& context) { run_index_query(context, plan, args); });
  return q.to_vector();
}

Tensor angles(Random& random, std::int64_t tokens, std::int64_t pairs) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < tokens * pairs; ++i) {
    const double angle = 10.0 * static_cast<double>(random.normal());
    values.push_back(static_cast<float>(std::cos(angle)));
    values.push_back(static_cast<float>(std::sin(angle)));
  }
  return make_f32({tokens, pairs, 2}, values);
}

// Row i of the Sylvester matrix is (-1)^popcount(i & j).
std::vector<double> transformed(const float* x, const float* rope, int head_dim, int rope_dim) {
  std::vector<double> turned(x, x + head_dim);
  for (int i = 0; i < rope_dim / 2; ++i) {
    double* pair = &turned[static_cast<std::size_t>(head_dim - rope_dim + 2 * i)];
    const double x0 = pair[0];
    const double x1 = pair[1];
    pair[0] = x0 * static_cast<double>(rope[2 * i]) - x1 * static_cast<double>(rope[2 * i + 1]);
    pair[1] = x0 * static_cast<double>(rope[2 * i + 1]) + x1 * static_cast<double>(rope[2 * i]);
  }
  std::vector<double> y(turned.size());
  for (unsigned i = 0; i < y.size(); ++i) {
    for (unsigned j = 0; j < y.size(); ++j) y[i] += std::popcount(i & j) % 2 == 0 ? turned[j] : -turned[j];
    y[i] /= std::sqrt(static_cast<double>(head_dim));
  }
  return y;
}

TEST(IndexQuery, RotatesThenTransforms) {
  Random random;
  for (const auto& [head_dim, rope_dim] : {std::pair{128, 64}, std::pair{32, 8}}) {
    const IndexQueryDesc desc{3, head_dim, rope_dim, Numerics::plain()};
    const Tensor raw = random_f32(random, {4, 3 * head_dim});
    const Tensor rope = angles(random, 4, rope_dim / 2);
    const std::vector<float> q = run("reference", 0, desc, raw, rope);
    std::vector<float> expected;
    for (int row = 0; row < 12; ++row) {
      for (double value : transformed(raw.view().as<float>() + row * head_dim,
                                      rope.view().as<float>() + row / 3 * rope_dim, head_dim, rope_dim)) {
        expected.push_back(static_cast<float>(value));
      }
    }
    EXPECT_TRUE(within(q, expected, 5e-7));
  }
}

// One block of 32 large, the next small: a block of 16 would keep what 32 rounds to zero, a block of 64
// would lose what 32 keeps.
TEST(IndexQuery, QuantiserBlockIs32) {
  // The transform of H^-1 y is y: y is chosen, x computed.
  std::vector<double> y(128, 0.0);
  y[0] = 6.0;
  y[16] = 0.2;  // same block of 32, another of 16: rounds to 0
  y[32] = 0.5;  // next block: kept, its scale follows it; 0 with blocks of 64 (scale 1 rounds 0.2 to 0)
  y[33] = 0.125;
  std::vector<float> x(128);
  for (unsigned i = 0; i < 128; ++i) {
    double sum = 0;
    for (unsigned j = 0; j < 128; ++j) sum += std::popcount(i & j) % 2 == 0 ? y[j] : -y[j];
    x[i] = static_cast<float>(sum / std::sqrt(128.0));
  }
  std::vector<float> still;
  for (int i = 0; i < 32; ++i) {
    still.push_back(1.0f);
    still.push_back(0.0f);
  }
  const Tensor raw = make_f32({1, 128}, x);
  const Tensor rope = make_f32({1, 32, 2}, still);
  for (const std::string& variant : cpu_variants(OpKind::kIndexQuery)) {
    const std::vector<float> q = run(variant, 1, {1, 128, 64, Numerics::vendor()}, raw, rope);
    EXPECT_EQ(q[0], 6.0f) << variant;
    EXPECT_EQ(std::fabs(q[16]), 0.0f) << variant;
    EXPECT_EQ(q[32], 0.5f) << variant;
    EXPECT_EQ(q[33], 0.125f) << variant;
  }
}

TEST(IndexQuery, VariantsAgreeAndAreRowInvariant) {
  Random random;
  for (const Numerics& numerics : kAllNumerics) {
    SCOPED_TRACE(numerics_name(numerics.mode));
    for (const auto& [heads, head_dim, rope_dim] : {std::tuple{1, 128, 64}, std::tuple{5, 128, 64}}) {
      const IndexQueryDesc desc{heads, head_dim, rope_dim, numerics};
      const Tensor raw = random_bf16_valued(random, {65, heads * head_dim}, 2.0f);
      const Tensor rope = angles(random, 65, rope_dim / 2);
      const RowRunner rows = [&](const std::string& variant, int threads, std::span<const std::int32_t> chosen) {
        return run(variant, threads, desc, gather_rows(raw, chosen), gather_rows(rope, chosen));
      };
      // A sum that differs in its last bit may take the neighbouring e2m1 code: at most 1/2 of a value, or a
      // quarter of a block's largest near zero.
      const Comparison compare = numerics.quantise_index
                                     ? Comparison([](std::span<const float> a, std::span<const float> b) {
                                         return within_rounding(a, b, {.step = 0.5, .max_share = 0.002, .floor = 0.5});
                                       })
                                     : sum_order(numerics);
      expect_matches_reference(OpKind::kIndexQuery, 65, rows, compare);
      expect_row_invariance(OpKind::kIndexQuery, 8, rows);
    }
  }
}

}  // namespace
}  // namespace fathom::testing
