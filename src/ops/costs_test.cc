// Cost models against counts by hand: what is counted is what an operation has to touch.

#include <gtest/gtest.h>

#include "ops/attention_rows/attention_rows.h"
#include "ops/compress_kv/compress_kv.h"
#include "ops/index_scores/index_scores.h"
#include "ops/linear/linear.h"
#include "ops/moe_experts/moe_experts.h"
#include "ops/sparse_attention/sparse_attention.h"
#include "ops/testing/paged_cache.h"
#include "ops/testing/run.h"
#include "ops/testing/tensors.h"

namespace fathom::testing {
namespace {

TEST(Costs, LinearCountsCodesScalesAndRows) {
  Random random;
  const TestWeight weight = random_weight(random, WeightFormat::kFp8Block128, 256, 384);
  const Tensor x = random_f32(random, {3, 384});
  const Tensor out = poisoned(DType::kF32, {3, 256});
  const LinearOutput outputs[] = {{&weight.weight, out.view(), false}};
  const LinearPlan plan = plan_linear({3, 384, 256, Numerics::serve()}, {});
  const OpCost cost = cost_linear(plan, {x.view(), outputs});
  EXPECT_EQ(cost.bytes, 256 * 384 + 2 * 3 + 3 * 384 * 4 + 3 * 256 * 4);
  EXPECT_EQ(cost.flops, 2.0 * 3 * 256 * 384);
}

OpCost attention_cost(const PagedCache& cache, std::int32_t heads, std::int32_t topk, std::int32_t start,
                      std::int32_t tokens) {
  const StepPart parts[] = {{0, start, tokens}};
  const TestStep step = cache.make_step(parts);
  const Tensor q(DType::kF32, {tokens, heads, 512});
  const Tensor out(DType::kF32, {tokens, heads, 512});
  const Tensor sink(DType::kF32, {heads});
  const Tensor rope(DType::kF32, {tokens, 32, 2});
  const Tensor selected(DType::kI32, {tokens, std::max(topk, 1)});
  const SparseAttentionPlan plan =
      plan_sparse_attention({cache.layer(), tokens, heads, topk, Numerics::serve()}, {BackendKind::kCpu, 1});
  SparseAttentionArgs args{&step.rows(), cache.pools(), q.view(), sink.view(), {}, rope.view(), out.view()};
  if (topk > 0) args.selected = selected.view();
  OpCost cost = cost_sparse_attention(plan, args, {step.positions()});
  // Without the activations: cached records alone.
  for (const View& view : {args.q, args.sink, args.rope, args.out}) cost.bytes -= static_cast<double>(view.num_bytes());
  if (topk > 0) cost.bytes -= static_cast<double>(selected.view().num_bytes());
  return cost;
}

TEST(Costs, AttentionReadsEachVisibleRecordOnce) {
  Random random;
  const PagedCache window(random, 0, true, 1, 1024);
  EXPECT_EQ(attention_cost(window, 2, 0, 4, 1).bytes, 5 * 584);
  EXPECT_EQ(attention_cost(window, 2, 0, 500, 1).bytes, 128 * 584);
  EXPECT_EQ(attention_cost(window, 2, 0, 500, 1).flops, 4.0 * 128 * 2 * 512);
  EXPECT_EQ(attention_cost(window, 2, 0, 500, 10).bytes, 137 * 584);  // a chunk shares its window
  const PagedCache hca(random, 128, true, 1, 1024);
  EXPECT_EQ(attention_cost(hca, 2, 0, 639, 1).bytes, (128 + 5) * 584);
  const PagedCache csa(random, 4, true, 1, 1024);
  EXPECT_EQ(attention_cost(csa, 2, 64, 639, 1).bytes, (128 + 64) * 584);     // 160 visible, 64 selected
  EXPECT_EQ(attention_cost(csa, 2, 64, 639, 100).bytes, (227 + 184) * 584);  // all 184 may be selected by some row
}

// The configured maximum does not enter: only what is visible at these positions.
TEST(Costs, IndexScoresFollowTheLength) {
  Random random;
  for (std::int32_t max_tokens : {1024, 8192}) {
    const PagedCache cache(random, 4, true, 1, max_tokens);
    const StepPart parts[] = {{0, 639, 1}};
    const TestStep step = cache.make_step(parts);
    const Tensor scores(DType::kF32, {1, max_tokens / 4});
    const Tensor q(DType::kF32, {1, 8, 128});
    const Tensor weights(DType::kF32, {1, 8});
    const IndexScoresArgs args{&step.rows(), cache.pools(), 0, q.view(), weights.view(), scores.view()};
    const IndexScoresPlan scored = plan_index_scores({cache.layer(), 8, 64, 1.0f}, {BackendKind::kCpu, 1});
    EXPECT_EQ(cost_index_scores(scored, args, {step.positions()}).bytes, 160 * 68 + 4 * (160 + 1024 + 8));
    const IndexScoresPlan skipped = plan_index_scores({cache.layer(), 8, 160, 1.0f}, {BackendKind::kCpu, 1});
    EXPECT_EQ(cost_index_scores(skipped, args, {step.positions()}).bytes, 0);
  }
}

TEST(Costs, ExpertsThatAreHitCountOnce) {
  Random random;
  std::vector<TestWeight> owned;
  std::vector<ExpertWeights> experts;
  for (int e = 0; e < 4; ++e) {
    for (const auto& [n, k] : {std::pair{32, 64}, std::pair{64, 32}, std::pair{32, 64}}) {
      owned.push_back(random_weight(random, WeightFormat::kMxfp4, n, k));
    }
    const std::size_t at = owned.size() - 3;
    experts.push_back({owned[at].weight, owned[at + 1].weight, owned[at + 2].weight});
  }
  const Tensor x(DType::kF32, {2, 64});
  const Tensor out(DType::kF32, {2, 64});
  const std::vector<std::int32_t> routed = {0, 3, 3, 3};
  const Tensor ids = make_i32({2, 2}, routed);
  const Tensor weights(DType::kF32, {2, 2});
  MoeExpertsDesc desc;
  desc.max_tokens = 2;
  desc.hidden = 64;
  desc.intermediate = 32;
  desc.num_experts = 4;
  desc.topk = 2;
  const MoeExpertsPlan plan = plan_moe_experts(desc, {BackendKind::kCpu, 1});
  const MoeExpertsArgs args{x.view(), ids.view(), weights.view(), experts, nullptr, nullptr, out.view()};
  const OpCost cost = cost_moe_experts(plan, args);
  const double expert_bytes = 3.0 * (32 * 64 / 2 + 32 * 64 / 32);
  EXPECT_EQ(cost.bytes, 2 * expert_bytes + 2 * 64 * 4 + 2 * 64 * 4 + 4 * 4 + 4 * 4);
  EXPECT_EQ(cost.flops, 3.0 * 2 * 4 * 32 * 64);
}

// A layer without compressors has two parts, ratio 128 three, ratio 4 five.
TEST(Costs, AttentionRowsCountTheirParts) {
  Random random;
  for (const std::int32_t ratio : {0, 4, 128}) {
    const PagedCache cache(random, ratio, true, 1, 256);
    const LayerCache& layer = cache.layer();
    const StepPart parts[] = {{0, 126, 2}};
    const TestStep step = cache.make_step(parts);
    const Numerics numerics = Numerics::serve();
    AttentionRowsPlan plan;
    if (ratio != 0) plan.compress_main = plan_compress_kv({CompressorKind::kMain, layer, 1e-6f, numerics}, {});
    if (ratio == 4) plan.compress_index = plan_compress_kv({CompressorKind::kIndex, layer, 1e-6f, numerics}, {});
    plan = plan_attention_rows(plan_q_norm_rope({8, 512, 64, 1e-6f, numerics}, {}),
                               plan_kv_write({layer, 1e-6f, numerics}, {}), plan.compress_main, plan.compress_index,
                               plan_index_query({8, 128, 64, numerics}, {}));
    EXPECT_GE(plan.workspace_bytes, plan.kv_write.workspace_bytes);
    const Tensor q(DType::kF32, {2, 8, 512}), index_q(DType::kF32, {2, 8, 128}), rope(DType::kF32, {2, 32, 2}),
        kv(DType::kF32, {2, 512}), norm(DType::kBF16, {512}), main(DType::kF32, {2, ratio == 4 ? 1024 : 512}),
        index(DType::kF32, {2, 256});
    AttentionRowsArgs args;
    args.queries = {q.view(), rope.view(), q.view()};
    args.kv_write = {&step.rows(), cache.pools(), kv.view(), norm.view(), rope.view()};
    args.compress_main = {&step.rows(), cache.pools(), main.view(), main.view(), main.view(), norm.view(), rope.view()};
    args.compress_index = {&step.rows(), cache.pools(), index.view(), index.view(),
                           index.view(), norm.view(),   rope.view()};
    args.index_query = {index_q.view(), rope.view(), index_q.view()};
    const HostLengths lengths{step.positions()};
    double bytes =
        cost_q_norm_rope(plan.queries, args.queries).bytes + cost_kv_write(plan.kv_write, args.kv_write).bytes;
    if (ratio != 0) bytes += cost_compress_kv(plan.compress_main, args.compress_main, lengths).bytes;
    if (ratio == 4) {
      bytes += cost_compress_kv(plan.compress_index, args.compress_index, lengths).bytes +
               cost_index_query(plan.index_query, args.index_query).bytes;
    }
    EXPECT_EQ(cost_attention_rows(plan, args, lengths).bytes, bytes) << "ratio " << ratio;
  }
}

}  // namespace
}  // namespace fathom::testing
