// index scores, selection and attention over paged caches: every CUDA variant against the reference.
#include <algorithm>
#include <cmath>

#include "device.h"
#include "ops/index_scores/index_scores.h"
#include "ops/select_topk/select_topk.h"
#include "ops/sparse_attention/sparse_attention.h"
#include "ops/testing/run.h"

namespace fathom::gpu {
namespace {

using testing::PagedCache;
using testing::poisoned;
using testing::Random;
using testing::random_bf16_valued;
using testing::random_f32;
using testing::run_with;
using testing::StepPart;
using testing::Tensor;
using testing::TestStep;

constexpr Numerics kServe = Numerics::serve();
constexpr int kThreads = 7;
const DeviceInfo kCpu;

std::string label(OpKind op, const std::string& variant, const std::string& shape) {
  return std::string(op_name(op)) + "/" + variant + " " + shape;
}

Tensor random_rope(Random& random, std::int64_t rows) {
  Tensor rope(DType::kF32, {rows, 32, 2});
  for (std::size_t i = 0; i < rope.floats().size(); i += 2) {
    const float angle = 10.0f * random.normal();
    rope.floats()[i] = std::cos(angle);
    rope.floats()[i + 1] = std::sin(angle);
  }
  return rope;
}

// topk distinct visible entries a row, ascending, then -1.
Tensor random_selection(Random& random, const TestStep& step, std::int32_t topk) {
  const auto rows = static_cast<std::int64_t>(step.positions().size());
  Tensor selected(DType::kI32, {rows, topk});
  for (std::int64_t t = 0; t < rows; ++t) {
    const std::int32_t visible = (step.positions()[static_cast<std::size_t>(t)] + 1) / 4;
    std::vector<std::int32_t> all(static_cast<std::size_t>(visible));
    for (std::int32_t i = 0; i < visible; ++i) all[static_cast<std::size_t>(i)] = i;
    std::shuffle(all.begin(), all.end(), random.engine());
    all.resize(static_cast<std::size_t>(std::min(visible, topk)));
    std::sort(all.begin(), all.end());
    all.resize(static_cast<std::size_t>(topk), -1);
    std::copy(all.begin(), all.end(), selected.ints().begin() + t * topk);
  }
  return selected;
}

// One row of a step on the device: the sequence's tables stay whole.
StepRows one_row(const StepRows& rows, std::int64_t row) {
  StepRows one = rows;
  one.num_tokens = 1;
  one.token_ids = rows.token_ids.rows(row, row + 1), one.positions = rows.positions.rows(row, row + 1);
  one.sequence_of = rows.sequence_of.rows(row, row + 1);
  one.window_begin = rows.window_begin.rows(row, row + 1), one.window_end = rows.window_end.rows(row, row + 1);
  return one;
}

struct AttentionCase {
  std::int32_t ratio, heads, topk, max_tokens;
  std::vector<StepPart> parts;
  bool draft_block = false;
};

void check_attention(Random& random, const AttentionCase& s) {
  Arena arena;
  std::int32_t num_sequences = 1;
  for (const StepPart& part : s.parts) num_sequences = std::max(num_sequences, part.sequence + 1);
  PagedCache cache(random, s.ratio, true, num_sequences, s.max_tokens);
  cache.fill_records(random, s.max_tokens);
  TestStep step = cache.make_step(s.parts);
  const std::int64_t rows = step.rows().num_tokens;
  if (s.draft_block) {
    for (std::int32_t t = 0; t < rows; ++t)
      step.set_window(t, std::max(0, s.parts[0].start - 128), s.parts[0].start + s.parts[0].num_tokens);
  }
  const Tensor q = random_bf16_valued(random, {rows, s.heads, 512}), sink = random_f32(random, {s.heads}),
               rope = random_rope(random, rows);
  const Tensor selected = s.ratio == 4 ? random_selection(random, step, s.topk) : Tensor();
  const Tensor want = poisoned(DType::kF32, {rows, s.heads, 512});
  const SparseAttentionDesc desc{cache.layer(), rows, s.heads, s.topk, kServe};
  run_with(OpKind::kSparseAttention, "reference", kThreads, kReferenceScratch, [&](ExecutionContext& c) {
    run_sparse_attention(
        c, plan_sparse_attention(desc, kCpu),
        {&step.rows(), cache.pools(), q.view(), sink.view(), selected.view(), rope.view(), want.view()});
  });
  const StepRows device_rows = copy_rows(arena, step.rows());
  const CachePools pools = copy_pools(arena, cache);
  const SparseAttentionPlan plan = plan_sparse_attention(desc, device_info());
  SparseAttentionArgs args{&device_rows,
                           pools,
                           arena.copy_bf16(q.view()),
                           arena.copy(sink.view()),
                           arena.copy(selected.view()),
                           arena.copy(rope.view()),
                           {}};
  std::vector<float> mma;
  for (const std::string& variant : cuda_variants(OpKind::kSparseAttention)) {
    args.out = arena.poisoned(DType::kBF16, {rows, s.heads, 512});
    run_cuda(OpKind::kSparseAttention, variant, plan.workspace_bytes,
             [&](ExecutionContext& c) { run_sparse_attention(c, plan, args); });
    const std::vector<float> got = read_floats(args.out);
    expect_close(got, want.floats(), true, 4e-3,
                 label(OpKind::kSparseAttention, variant,
                       "ratio " + std::to_string(s.ratio) + ", " + std::to_string(rows) + " rows, " +
                           std::to_string(s.heads) + " heads, to " + std::to_string(step.positions().back() + 1)));
    // Each row alone, which splits it over more blocks, gives the same bits.
    for (const std::int64_t row : {std::int64_t{0}, rows / 2, rows - 1}) {
      if (variant == "naive" || variant == "simt") break;
      const StepRows one = one_row(device_rows, row);
      SparseAttentionArgs alone = args;
      alone.rows = &one;
      alone.q = args.q.rows(row, row + 1), alone.rope = args.rope.rows(row, row + 1);
      if (s.ratio == 4) alone.selected = args.selected.rows(row, row + 1);
      alone.out = arena.poisoned(DType::kBF16, {1, s.heads, 512});
      run_cuda(OpKind::kSparseAttention, variant, plan.workspace_bytes,
               [&](ExecutionContext& c) { run_sparse_attention(c, plan, alone); });
      EXPECT_EQ(read_floats(alone.out), read_floats(args.out.rows(row, row + 1))) << variant << " row " << row;
    }
    if (variant == "mma") mma = got;
    // Neither splitting nor who folds changes a bit, nor the kind of tensor core instruction.
    if (!mma.empty()) {
      std::int64_t differ = 0;
      for (std::size_t i = 0; i < got.size(); ++i) differ += got[i] == mma[i] ? 0 : 1;
      EXPECT_EQ(differ, 0) << variant << " of " << got.size();
    }
  }
}

TEST(Gpu, sparse_attention) {
  FATHOM_NEEDS_GPU();
  Random random;
  const std::vector<AttentionCase> cases = {
      {0, 8, 0, 640, {{0, 0, 1}}},
      {0, 64, 0, 640, {{0, 126, 5}, {1, 0, 3}, {2, 511, 2}}},
      {0, 16, 0, 640, {{0, 200, 5}}, true},
      {0, 64, 0, 640, {{0, 200, 10}}, true},  // a window of 138 keys, rows enough for by_rows to choose
      {4, 8, 64, 1024, {{0, 0, 3}, {1, 255, 3}, {2, 1000, 1}}},
      {4, 64, 512, 4224, {{0, 4099, 1}}},
      {4, 64, 512, 4224, {{0, 2047, 4}, {1, 4100, 1}, {2, 127, 3}, {3, 511, 2}}},
      {4, 128, 1024, 4608, {{0, 4480, 2}}},
      {4, 32, 512, 2304, {{0, 2100, 70}, {1, 1000, 59}}},
      {4, 64, 512, 2304, {{0, 2040, 70}, {1, 600, 63}}},  // more rows than multiprocessors
      {128, 64, 0, 2304, {{0, 0, 1}, {1, 127, 2}, {2, 2046, 6}}},
      {128, 64, 0, 131328, {{0, 131300, 1}}},  // more groups than slots
      {128, 64, 0, 9088, {{0, 8960, 128}}},
      {128, 8, 0, 2304, {{0, 2200, 3}}},
      {128, 16, 0, 131328, {{0, 131300, 2}}},  // more groups than splits
      {128, 4, 0, 2304, {{0, 130, 129}}},
      {4, 64, 512, 1152, {{0, 1000, 3}}},  // three groups
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    // The sanitizers slow kernels down by two orders: a few cases that reach every kernel.
    if (reduced() && i != 0 && i != 4 && i != 10 && i != 16) continue;
    check_attention(random, cases[i]);
  }
}

TEST(Gpu, index_scores_and_select_topk) {
  FATHOM_NEEDS_GPU();
  Random random;
  struct Case {
    std::int32_t heads, topk, max_tokens;
    std::vector<StepPart> parts;
  };
  for (const Case& s : {Case{8, 64, 1024, {{0, 254, 4}, {1, 1000, 1}, {2, 3, 2}}},
                        {64, 512, 4352, {{0, 2047, 5}, {1, 4100, 1}, {2, 2050, 3}}},
                        {16, 16, 640, {{0, 60, 8}, {1, 511, 3}, {2, 600, 1}}},
                        {64, 512, 16384, {{0, 16383, 1}}}}) {
    if (reduced() && s.max_tokens > 1024) continue;
    Arena arena;
    PagedCache cache(random, 4, true, 3, s.max_tokens);
    cache.fill_records(random, s.max_tokens);
    const TestStep step = cache.make_step(s.parts);
    const std::int64_t rows = step.rows().num_tokens, stride = s.max_tokens / 4;
    const Tensor q = random_bf16_valued(random, {rows, s.heads, 128}), w = random_bf16_valued(random, {rows, s.heads});
    Tensor want(DType::kF32, {rows, stride});
    std::fill(want.floats().begin(), want.floats().end(), 0.0f);
    const IndexScoresDesc desc{cache.layer(), s.heads, s.topk, 0.0110485435f};
    const IndexScoresArgs cpu_args{&step.rows(), cache.pools(), 0, q.view(), w.view(), want.view()};
    run_with(OpKind::kIndexScores, "reference", kThreads, kReferenceScratch,
             [&](ExecutionContext& c) { run_index_scores(c, plan_index_scores(desc, kCpu), cpu_args); });
    const StepRows device_rows = copy_rows(arena, step.rows());
    const CachePools pools = copy_pools(arena, cache);
    const View gpu_q = arena.copy_bf16(q.view()), gpu_w = arena.copy_bf16(w.view());
    const IndexScoresPlan plan = plan_index_scores(desc, device_info());
    const std::string shape = std::to_string(rows) + " rows, " + std::to_string(s.heads) + " heads, to " +
                              std::to_string(step.positions().back() + 1);
    View last_scores;
    for (const std::string& variant : cuda_variants(OpKind::kIndexScores)) {
      const View got = arena.poisoned(DType::kF32, {rows, stride});
      run_cuda(OpKind::kIndexScores, variant, plan.workspace_bytes,
               [&](ExecutionContext& c) { run_index_scores(c, plan, {&device_rows, pools, 0, gpu_q, gpu_w, got}); });
      std::vector<float> scores = read_floats(got), expected = want.to_vector();
      for (std::int64_t t = 0; t < rows; ++t) {
        const std::int32_t visible = (step.positions()[static_cast<std::size_t>(t)] + 1) / 4;
        for (std::int64_t j = 0; j < stride; ++j) {
          const auto at = static_cast<std::size_t>(t * stride + j);
          if (j < visible && visible > s.topk) continue;
          // Beyond the visible entries nothing may be written, except by `full`, which marks them.
          if (variant != "full") {
            EXPECT_TRUE(std::isnan(scores[at])) << variant << " wrote row " << t << " entry " << j;
          }
          scores[at] = expected[at] = 0.0f;
        }
      }
      expect_close(scores, expected, false, 1e-5, label(OpKind::kIndexScores, variant, shape));
      last_scores = got;
    }
    // Selection from one set of scores on both sides, with planted ties at the cut.
    std::vector<float> scores = read_floats(last_scores);
    for (float& score : scores) score = std::isnan(score) ? 0.0f : std::round(score * 200.0f) / 200.0f;
    const Tensor score_tensor = testing::make_f32({rows, stride}, scores);
    const Tensor want_selected = poisoned(DType::kI32, {rows, s.topk});
    const SelectTopkDesc topk_desc{s.topk, 4};
    run_with(OpKind::kSelectTopk, "reference", kThreads, plan_select_topk(topk_desc, kCpu).workspace_bytes,
             [&](ExecutionContext& c) {
               run_select_topk(c, plan_select_topk(topk_desc, kCpu),
                               {&step.rows(), 0, score_tensor.view(), want_selected.view()});
             });
    for (const std::string& variant : cuda_variants(OpKind::kSelectTopk)) {
      const View got = arena.poisoned(DType::kI32, {rows, s.topk});
      run_cuda(OpKind::kSelectTopk, variant, 0, [&](ExecutionContext& c) {
        run_select_topk(c, plan_select_topk(topk_desc, device_info()),
                        {&device_rows, 0, arena.copy(score_tensor.view()), got});
      });
      const std::vector<std::int32_t> expected(want_selected.ints().begin(), want_selected.ints().end());
      const bool same = read_ints(got) == expected;
      report("  " + label(OpKind::kSelectTopk, variant, shape) + (same ? " exact" : " FAILED"));
      EXPECT_TRUE(same) << variant << ' ' << shape;
    }
  }
}

}  // namespace
}  // namespace fathom::gpu
