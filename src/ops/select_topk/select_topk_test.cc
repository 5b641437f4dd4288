#include "ops/select_topk/select_topk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/testing/paged_cache.h"
#include "ops/testing/run.h"

namespace fathom::testing {
namespace {

// Rows [first_row, first_row + scores rows) of the step; the others stay poisoned.
std::vector<std::int32_t> run(const std::string& variant, int threads, std::int32_t topk, const TestStep& step,
                              const View& scores, std::int32_t first_row = 0) {
  const SelectTopkPlan plan = plan_select_topk({topk, 4}, {BackendKind::kCpu, std::max(threads, 1)});
  const Tensor selected = poisoned(DType::kI32, {step.rows().num_tokens, topk});
  const SelectTopkArgs args{&step.rows(), first_row, scores, selected.view()};
  run_with(OpKind::kSelectTopk, variant, threads, plan.workspace_bytes,
           [&](ExecutionContext& context) { run_select_topk(context, plan, args); });
  return {selected.ints().begin(), selected.ints().end()};
}

// By counting: entry j is selected iff fewer than topk entries beat it (a larger score, or an equal one before).
std::vector<std::int32_t> counted(std::span<const float> scores, std::int32_t visible, std::int32_t topk) {
  std::vector<std::int32_t> selected;
  for (std::int32_t j = 0; j < visible; ++j) {
    std::int32_t better = 0;
    for (std::int32_t i = 0; i < visible && visible > topk; ++i) {
      const float a = scores[static_cast<std::size_t>(i)];
      const float b = scores[static_cast<std::size_t>(j)];
      better += a > b || (a == b && i < j) ? 1 : 0;
    }
    if (better < topk) selected.push_back(j);
  }
  selected.resize(static_cast<std::size_t>(topk), -1);
  return selected;
}

TEST(SelectTopk, BestVisibleEntriesAscendingTiesToTheLowest) {
  Random random;
  PagedCache cache(random, 4, false, 2, 2048);
  for (std::int32_t topk : {1, 7, 16, 64}) {
    // Starts around the point where scoring begins, p = 4 topk + 2.
    for (std::int32_t start : {0, 4 * topk - 3, 4 * topk + 1, 700, 1900}) {
      const StepPart parts[] = {{0, start, 7}, {1, 900, 2}};
      const TestStep step = cache.make_step(parts);
      constexpr std::int32_t kStride = 520;
      const Tensor scores = poisoned(DType::kF32, {9, kStride});
      std::vector<std::int32_t> expected;
      for (std::size_t t = 0; t < 9; ++t) {
        const std::int32_t visible = (step.positions()[t] + 1) / 4;
        const std::span<float> row = scores.floats().subspan(t * kStride, kStride);
        // Few distinct values: many ties. Entries beyond the visible ones, and rows that need no scores, stay NaN.
        if (visible > topk) {
          for (std::int32_t j = 0; j < visible; ++j) {
            row[static_cast<std::size_t>(j)] = static_cast<float>(random.integer(-3, 4));
          }
        }
        const std::vector<std::int32_t> best = counted(row, visible, topk);
        expected.insert(expected.end(), best.begin(), best.end());
      }
      for (const std::string& variant : cpu_variants(OpKind::kSelectTopk)) {
        for (int threads : {0, 1, 3}) {
          EXPECT_EQ(run(variant, threads, topk, step, scores.view()), expected)
              << variant << " topk " << topk << " start " << start;
        }
      }
    }
  }
}

// Long rows: scores that all differ, a few values with thousands of ties, one value, falling and rising scores.
TEST(SelectTopk, LongRows) {
  Random random;
  PagedCache cache(random, 4, false, 1, 17000);
  const auto score_of = [&](int kind, std::int32_t j) {
    switch (kind) {
      case 0: return random.normal();
      case 1: return static_cast<float>(random.integer(-1, 2));
      case 2: return -2.5f;
      case 3: return static_cast<float>(-j);
      default: return static_cast<float>(j);
    }
  };
  for (std::int32_t visible : {1000, 4200}) {
    const StepPart parts[] = {{0, 4 * visible - 1, 1}};
    const TestStep step = cache.make_step(parts);
    for (int kind : {0, 1, 2, 3, 4}) {
      const Tensor scores = poisoned(DType::kF32, {1, 4208});
      for (std::int32_t j = 0; j < visible; ++j) scores.floats()[static_cast<std::size_t>(j)] = score_of(kind, j);
      for (std::int32_t topk : {1, 64, 511, 999}) {
        const std::vector<std::int32_t> expected = counted(scores.floats(), visible, topk);
        for (const std::string& variant : cpu_variants(OpKind::kSelectTopk)) {
          EXPECT_EQ(run(variant, 1, topk, step, scores.view()), expected)
              << variant << " visible " << visible << " kind " << kind << " topk " << topk;
        }
      }
    }
  }
}

TEST(SelectTopk, ChunksOfRowsWriteOnlyTheirRows) {
  Random random;
  PagedCache cache(random, 4, false, 1, 1024);
  const StepPart parts[] = {{0, 500, 31}};
  const TestStep step = cache.make_step(parts);
  const Tensor scores = random_f32(random, {31, 140});
  for (const std::string& variant : cpu_variants(OpKind::kSelectTopk)) {
    SCOPED_TRACE(variant);
    const std::vector<std::int32_t> whole = run(variant, 2, 16, step, scores.view());
    const std::vector<std::int32_t> part = run(variant, 2, 16, step, scores.view().rows(5, 12), 5);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const bool inside = i / 16 >= 5 && i / 16 < 12;
      EXPECT_EQ(part[i], inside ? whole[i] : static_cast<std::int32_t>(0xcbcbcbcb)) << i;
    }
  }
}

// Distances of one bit in the score decide, and infinities and signed zeros order as numbers do.
TEST(SelectTopk, ComparesScoresExactly) {
  Random random;
  PagedCache cache(random, 4, false, 1, 1024);
  const StepPart parts[] = {{0, 31, 1}};  // 8 visible
  const TestStep step = cache.make_step(parts);
  const std::vector<float> values = {1.0f, std::nextafter(1.0f, 2.0f), -INFINITY, 0.0f, -0.0f, -1e-38f, 1.0f, INFINITY};
  const Tensor scores = make_f32({1, 8}, values);
  for (const std::string& variant : cpu_variants(OpKind::kSelectTopk)) {
    EXPECT_EQ(run(variant, 1, 2, step, scores.view()), (std::vector<std::int32_t>{1, 7})) << variant;
    EXPECT_EQ(run(variant, 1, 3, step, scores.view()), (std::vector<std::int32_t>{0, 1, 7})) << variant;
    EXPECT_EQ(run(variant, 1, 5, step, scores.view()), (std::vector<std::int32_t>{0, 1, 3, 6, 7})) << variant;
    EXPECT_EQ(run(variant, 1, 7, step, scores.view()), (std::vector<std::int32_t>{0, 1, 3, 4, 5, 6, 7})) << variant;
  }
}

}  // namespace
}  // namespace fathom::testing
