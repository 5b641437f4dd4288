#include "ops/q_norm_rope/q_norm_rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>

#include "ops/testing/run.h"
#include "ops/testing/tensors.h"

namespace fathom::testing {
namespace {

std::vector<float> run(const std::string& variant, int threads, const QNormRopeDesc& desc, const Tensor& q_raw,
                       const Tensor& rope) {
  const QNormRopePlan plan = plan_q_norm_rope(desc, {});
  const Tensor q = poisoned(DType::kF32, {q_raw.view().shape[0], desc.num_heads, desc.head_dim});
  const QNormRopeArgs args{q_raw.view(), rope.view(), q.view()};
  run_with(OpKind::kQNormRope, variant, threads, plan.workspace_bytes,
           [&](ExecutionContext& context) { run_q_norm_rope(context, plan, args); });
  return q.to_vector();
}

Tensor angles(Random& random, std::int64_t tokens, std::int64_t pairs) {
  const Tensor rope(DType::kF32, {tokens, pairs, 2});
  for (std::int64_t i = 0; i < tokens * pairs; ++i) {
    const double angle = 10.0 * static_cast<double>(random.normal());
    rope.floats()[static_cast<std::size_t>(2 * i)] = static_cast<float>(std::cos(angle));
    rope.floats()[static_cast<std::size_t>(2 * i + 1)] = static_cast<float>(std::sin(angle));
  }
  return make_f32(rope.view().shape, rope.floats());
}

// Each head is divided by its own root mean square; the last channels turn as complex numbers, interleaved.
TEST(QNormRope, IsNormalisedAndRotated) {
  Random random;
  const QNormRopeDesc desc{3, 24, 8, 1e-6f, Numerics::plain()};
  const Tensor raw = random_f32(random, {4, 3 * 24}, 5.0f);
  const Tensor rope = angles(random, 4, 4);
  const std::vector<float> q = run("reference", 0, desc, raw, rope);
  for (std::size_t row = 0; row < 12; ++row) {
    const float* x = &raw.floats()[row * 24];
    double squares = 0;
    for (int i = 0; i < 24; ++i) squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    const double factor = 1 / std::sqrt(squares / 24 + 1e-6);
    for (std::size_t i = 0; i < 16; ++i) EXPECT_NEAR(q[row * 24 + i], x[i] * factor, 1e-6);
    for (std::size_t i = 0; i < 4; ++i) {
      const float* turn = &rope.floats()[row / 3 * 8 + 2 * i];
      const std::complex<double> z =
          std::complex<double>(x[16 + 2 * i], x[17 + 2 * i]) * factor * std::complex<double>(turn[0], turn[1]);
      EXPECT_NEAR(q[row * 24 + 16 + 2 * i], z.real(), 1e-6);
      EXPECT_NEAR(q[row * 24 + 17 + 2 * i], z.imag(), 1e-6);
    }
  }
}

TEST(QNormRope, VariantsAgreeAndAreRowInvariant) {
  Random random;
  for (const Numerics& numerics : kAllNumerics) {
    SCOPED_TRACE(numerics_name(numerics.mode));
    for (const auto& [heads, head_dim, rope_dim] :
         {std::tuple{1, 512, 64}, std::tuple{5, 512, 64}, std::tuple{3, 24, 8}, std::tuple{2, 66, 66}}) {
      const QNormRopeDesc desc{heads, head_dim, rope_dim, 1e-6f, numerics};
      const Tensor raw = random_bf16_valued(random, {65, heads * head_dim}, 2.0f);
      const Tensor rope = angles(random, 65, rope_dim / 2);
      const RowRunner rows = [&](const std::string& variant, int threads, std::span<const std::int32_t> chosen) {
        return run(variant, threads, desc, gather_rows(raw, chosen), gather_rows(rope, chosen));
      };
      // Two roundings in a row (norm, rotation): a flipped one moves a rotated pair by up to two ulps.
      const Comparison compare =
          numerics.rounds_to_bf16() ? Comparison([](std::span<const float> a, std::span<const float> b) {
            return within_rounding(a, b, {.step = 0x1p-6, .max_share = 0.004, .floor = 1e-3, .pairs = true});
          })
                                    : sum_order(numerics);
      expect_matches_reference(OpKind::kQNormRope, 65, rows, compare);
      expect_row_invariance(OpKind::kQNormRope, 8, rows);
    }
  }
}

}  // namespace
}  // namespace fathom::testing
