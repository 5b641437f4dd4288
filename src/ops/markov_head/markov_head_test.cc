#include "ops/markov_head/markov_head.h"

#include <gtest/gtest.h>

#include "ops/testing/run.h"
#include "ops/testing/tensors.h"

namespace fathom::testing {
namespace {

LinearWeight bf16_weight(const View& values) {
  LinearWeight weight;
  weight.values = values;
  weight.format = WeightFormat::kBf16;
  weight.out_features = values.shape[0];
  weight.in_features = values.shape[1];
  return weight;
}

struct Head {
  Tensor w1, w2, proj;
  LinearWeight markov_w2, confidence_proj;
};

Head random_head(Random& random, std::int64_t vocab, std::int64_t rank, std::int64_t hidden) {
  Head head{random_bf16(random, {vocab, rank}, 1.0f, 0.0f, 1),
            random_bf16(random, {vocab, rank}, 1.0f, 0.0f, 1),
            random_bf16(random, {1, hidden + rank}, 0.3f, 0.0f, 1),
            {},
            {}};
  head.markov_w2 = bf16_weight(head.w2.view());
  head.confidence_proj = bf16_weight(head.proj.view());
  return head;
}

// Logits of each row, then its confidence.
std::vector<float> run(const std::string& variant, int threads, const MarkovHeadDesc& desc, const Head& head,
                       const Tensor& previous, const Tensor& indices, const Tensor& logits, const Tensor& collapsed) {
  const std::int64_t rows = previous.view().shape[0];
  const MarkovHeadPlan plan = plan_markov_head(desc, {BackendKind::kCpu, std::max(threads, 1)});
  const Tensor out = poisoned(DType::kF32, {rows, desc.vocab});
  const Tensor confidence = poisoned(DType::kF32, {rows});
  const MarkovHeadArgs args{previous.view(), indices.view(),        logits.view(), collapsed.view(), head.w1.view(),
                            &head.markov_w2, &head.confidence_proj, out.view(),    confidence.view()};
  run_with(OpKind::kMarkovHead, variant, threads, plan.workspace_bytes,
           [&](ExecutionContext& context) { run_markov_head(context, plan, args); });
  std::vector<float> all;
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows); ++i) {
    const auto row =
        out.floats().subspan(i * static_cast<std::size_t>(desc.vocab), static_cast<std::size_t>(desc.vocab));
    all.insert(all.end(), row.begin(), row.end());
    all.push_back(confidence.floats()[i]);
  }
  return all;
}

TEST(MarkovHead, ByHand) {
  // Vocabulary 3, rank 2, hidden 2.
  Head head;
  head.w1 = make_bf16({3, 2}, std::vector<float>{1, 0, 2, -1, 0.5, 4}, 1);
  head.w2 = make_bf16({3, 2}, std::vector<float>{1, 1, -2, 0, 0, 0.5}, 1);
  head.proj = make_bf16({1, 4}, std::vector<float>{1, -1, 2, 0.25}, 1);
  head.markov_w2 = bf16_weight(head.w2.view());
  head.confidence_proj = bf16_weight(head.proj.view());
  const Tensor logits = make_f32({2, 3}, std::vector<float>{10, 20, 30, 1, 2, 3});
  const Tensor collapsed = make_f32({2, 2}, std::vector<float>{5, 7, -1, 3});
  // Row 1 after token 2 (0.5, 4): bias (4.5, -1, 2); row 0 after token 1 (2, -1): bias (1, -4, -0.5).
  const Tensor previous = make_i32({2}, std::vector<std::int32_t>{2, 1});
  const Tensor indices = make_i32({2}, std::vector<std::int32_t>{1, 0});
  for (const std::string& variant : cpu_variants(OpKind::kMarkovHead)) {
    SCOPED_TRACE(variant);
    // Confidences: -1 - 3 + 2 * 0.5 + 0.25 * 4 = -2; 5 - 7 + 2 * 2 - 0.25 = 1.75.
    EXPECT_EQ(run(variant, 2, {2, 2, 2, 3}, head, previous, indices, logits, collapsed),
              (std::vector<float>{5.5, 1, 5, -2, 11, 16, 29.5, 1.75}));
  }
}

TEST(MarkovHead, VariantsAgreeAndAreRowInvariant) {
  Random random;
  for (const auto& [vocab, rank, hidden] : {std::array<std::int64_t, 3>{37, 5, 11}, {384, 32, 128}}) {
    const Head head = random_head(random, vocab, rank, hidden);
    const Tensor logits = random_f32(random, {31, vocab});
    const Tensor collapsed = random_bf16_valued(random, {31, hidden});
    std::vector<std::int32_t> tokens;
    for (int i = 0; i < 31; ++i) tokens.push_back(static_cast<std::int32_t>(random.integer(0, vocab)));
    const Tensor previous = make_i32({31}, tokens);
    const std::int64_t v = vocab, r = rank, h = hidden;
    const RowRunner rows = [&](const std::string& variant, int threads, std::span<const std::int32_t> chosen) {
      const Tensor indices = make_i32({static_cast<std::int64_t>(chosen.size())}, chosen);
      return run(variant, threads, {300, h, r, v}, head, gather_rows(previous, chosen), indices, logits, collapsed);
    };
    expect_matches_reference(OpKind::kMarkovHead, 31, rows, sum_order(Numerics::plain()));
    expect_row_invariance(OpKind::kMarkovHead, 31, rows);
  }
}

}  // namespace
}  // namespace fathom::testing
