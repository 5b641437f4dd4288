#include "ops/index_scores/index_scores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/simd/rows.h"
#include "ops/testing/paged_cache.h"
#include "ops/testing/run.h"

namespace fathom::testing {
namespace {

constexpr std::int32_t kMaxTokens = 800;

struct Inputs {
  Tensor q, weights;  // a row per position, of sequence 0 and of sequence 1
};

struct Scoring {
  IndexScoresDesc desc;
  std::int64_t stride = 210;
};

std::vector<float> run(const std::string& variant, int threads, const Scoring& scoring, const PagedCache& cache,
                       const Inputs& in, std::span<const StepPart> parts, std::int32_t first_row = 0,
                       std::int32_t num_rows = -1) {
  std::vector<std::int32_t> chosen;
  for (const StepPart& part : parts) {
    for (std::int32_t i = 0; i < part.num_tokens; ++i) chosen.push_back(part.sequence * kMaxTokens + part.start + i);
  }
  const TestStep step = cache.make_step(parts);
  if (num_rows < 0) num_rows = step.rows().num_tokens;
  const Tensor q = gather_rows(in.q, chosen);
  const Tensor weights = gather_rows(in.weights, chosen);
  const Tensor scores = poisoned(DType::kF32, {num_rows, scoring.stride});
  const IndexScoresPlan plan = plan_index_scores(scoring.desc, {BackendKind::kCpu, std::max(threads, 1)});
  const IndexScoresArgs args{&step.rows(), cache.pools(), first_row, q.view(), weights.view(), scores.view()};
  run_with(OpKind::kIndexScores, variant, threads, plan.workspace_bytes,
           [&](ExecutionContext& context) { run_index_scores(context, plan, args); });
  return scores.to_vector();
}

Scoring make_scoring(const PagedCache& cache, std::int32_t heads, std::int32_t topk) {
  return {{cache.layer(), heads, topk, static_cast<float>(1.0 / std::sqrt(128.0 * heads))}};
}

Inputs random_inputs(Random& random, std::int32_t heads) {
  return {random_bf16_valued(random, {2 * kMaxTokens, heads, 128}),
          random_bf16_valued(random, {2 * kMaxTokens, heads})};
}

// Every `every`-th row as index_query leaves it in `serve`: FQ values, with a block of zeros and block scales far
// apart.
void quantise_rows(Inputs& in, std::int64_t every) {
  const std::int64_t width = in.q.view().shape.row_elements();
  float* q = in.q.view().as<float>();
  for (std::int64_t row = 0; row < in.q.view().shape[0]; row += every) {
    float* at = q + row * width;
    for (std::int64_t i = 0; i < width; ++i) at[i] *= std::ldexp(1.0f, static_cast<int>(i / 32 % 7) - 3);
    std::fill_n(at + row / every % 4 * 32, 32, 0.0f);
    simd::fake_quantise_e2m1_row(at, width);
  }
}

// NaN where nothing is to be written: rows with at most topk entries, entries not visible yet.
std::vector<float> exact_scores(const Scoring& scoring, const PagedCache& cache, const Inputs& in,
                                std::int32_t sequence, std::int32_t start, std::int32_t tokens) {
  const auto heads = static_cast<std::size_t>(scoring.desc.num_heads);
  const std::vector<float> keys = cache.read_index_keys(sequence, kMaxTokens / 4);
  std::vector<float> scores(static_cast<std::size_t>(tokens * scoring.stride), NAN);
  for (std::int32_t t = 0; t < tokens; ++t) {
    const auto row = static_cast<std::size_t>(sequence * kMaxTokens + start + t);
    const std::int32_t visible = (start + t + 1) / 4;
    for (std::int32_t j = 0; j < visible && visible > scoring.desc.topk; ++j) {
      double score = 0;
      for (std::size_t h = 0; h < heads; ++h) {
        double product = 0;
        for (std::size_t i = 0; i < 128; ++i) {
          product +=
              double{in.q.floats()[(row * heads + h) * 128 + i]} * double{keys[static_cast<std::size_t>(j) * 128 + i]};
        }
        if (product > 0) {
          score +=
              product * double{in.weights.floats()[row * heads + h]} / std::sqrt(128.0 * static_cast<double>(heads));
        }
      }
      scores[static_cast<std::size_t>(t * scoring.stride + j)] = static_cast<float>(score);
    }
  }
  return scores;
}

// NaN in the same places, and the rest within the bound.
::testing::AssertionResult agree(std::span<const float> a, std::span<const float> b, double bound) {
  std::vector<float> x(a.begin(), a.end());
  std::vector<float> y(b.begin(), b.end());
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i]) != std::isnan(y[i])) {
      return ::testing::AssertionFailure()
             << "element " << i << " is " << (std::isnan(x[i]) ? "not " : "") << "written";
    }
    if (std::isnan(x[i])) x[i] = y[i] = 0.0f;
  }
  return within(x, y, bound);
}

TEST(IndexScores, AreTheFormulaWhereTheyAreNeeded) {
  Random random;
  for (const bool packed : {false, true}) {
    PagedCache cache(random, 4, packed, 2, kMaxTokens);
    cache.fill_records(random, kMaxTokens);
    for (std::int32_t heads : {1, 5, 16}) {
      const Scoring scoring = make_scoring(cache, heads, 16);
      const Inputs in = random_inputs(random, heads);
      // 4 topk + 2 = 66 is the last row that selects everything.
      for (std::int32_t start : {0, 62, 127, 500}) {
        const StepPart parts[] = {{1, start, 9}};
        const std::vector<float> expected = exact_scores(scoring, cache, in, 1, start, 9);
        for (const std::string& variant : cpu_variants(OpKind::kIndexScores)) {
          EXPECT_TRUE(agree(run(variant, 2, scoring, cache, in, parts), expected, 2e-6))
              << variant << " heads " << heads << " start " << start;
        }
      }
    }
  }
}

// Queries on the e2m1 grid take integer products, others floats; rows of both kinds stand side by side.
TEST(IndexScores, AreTheFormulaForQuantisedQueries) {
  Random random;
  for (const bool packed : {false, true}) {
    PagedCache cache(random, 4, packed, 2, kMaxTokens);
    cache.fill_records(random, kMaxTokens);
    for (std::int32_t heads : {1, 2, 7, 8, 20}) {
      const Scoring scoring = make_scoring(cache, heads, 16);
      Inputs in = random_inputs(random, heads);
      for (std::int64_t every : {2, 1}) {
        quantise_rows(in, every);
        for (std::int32_t start : {62, 500}) {
          const StepPart parts[] = {{1, start, 21}};
          const std::vector<float> expected = exact_scores(scoring, cache, in, 1, start, 21);
          for (const std::string& variant : cpu_variants(OpKind::kIndexScores)) {
            EXPECT_TRUE(agree(run(variant, 2, scoring, cache, in, parts), expected, 2e-6))
                << variant << " heads " << heads << " start " << start << " every " << every;
          }
        }
      }
    }
  }
}

// An infinite or a NaN query is no e2m1 value: its row says so, and its neighbours are as they were.
TEST(IndexScores, QueriesThatAreNotNumbersStayInTheirRow) {
  Random random;
  PagedCache cache(random, 4, true, 2, kMaxTokens);
  cache.fill_records(random, kMaxTokens);
  const Scoring scoring = make_scoring(cache, 8, 16);
  Inputs in = random_inputs(random, 8);
  quantise_rows(in, 1);
  const StepPart parts[] = {{0, 600, 3}};
  for (const std::string& variant : fast_variants(OpKind::kIndexScores)) {
    const std::vector<float> expected = run(variant, 2, scoring, cache, in, parts);
    for (const float bad : {INFINITY, NAN}) {
      std::vector<float> values = in.q.to_vector();
      values[std::size_t{601} * 8 * 128 + 77] = bad;
      const Inputs broken{make_f32(in.q.view().shape, values),
                          make_f32(in.weights.view().shape, in.weights.to_vector())};
      const std::vector<float> found = run(variant, 2, scoring, cache, broken, parts);
      const auto stride = static_cast<std::size_t>(scoring.stride);
      EXPECT_EQ(std::memcmp(found.data(), expected.data(), stride * 4), 0);
      EXPECT_EQ(std::memcmp(found.data() + 2 * stride, expected.data() + 2 * stride, stride * 4), 0);
      EXPECT_NE(std::memcmp(found.data() + stride, expected.data() + stride, stride * 4), 0);
    }
  }
}

TEST(IndexScores, RowsThreadsNeighboursAndBlocksChangeNothing) {
  Random random;
  for (const int kind : {0, 1, 2, 3}) {
    const bool packed = kind > 0;
    PagedCache cache(random, 4, packed, 2, kMaxTokens);
    cache.fill_records(random, kMaxTokens);
    const Scoring scoring = make_scoring(cache, 8, 16);
    Inputs in = random_inputs(random, 8);
    if (kind > 1) quantise_rows(in, kind == 2 ? 1 : 3);  // 3: rows of both kinds in one block
    for (const std::string& variant : cpu_variants(OpKind::kIndexScores)) {
      SCOPED_TRACE(variant);
      const StepPart whole[] = {{0, 600, 31}};
      const std::vector<float> expected = run(variant, 1, scoring, cache, in, whole);
      const auto rows = [&](std::int32_t begin, std::int32_t end) {
        return std::span(expected).subspan(static_cast<std::size_t>(begin * scoring.stride),
                                           static_cast<std::size_t>((end - begin) * scoring.stride));
      };
      const auto same = [&](std::span<const float> a, std::span<const float> b) {
        return std::memcmp(a.data(), b.data(), b.size_bytes()) == 0;
      };
      for (int threads : {0, 2, 3}) EXPECT_TRUE(same(run(variant, threads, scoring, cache, in, whole), expected));
      for (std::int32_t row : {0, 13, 30}) {
        const StepPart alone[] = {{0, 600 + row, 1}};
        EXPECT_TRUE(same(run(variant, 2, scoring, cache, in, alone), rows(row, row + 1))) << row;
      }
      EXPECT_TRUE(same(run(variant, 2, scoring, cache, in, whole, 7, 11), rows(7, 18)));
      const StepPart beside[] = {{1, 700, 5}, {0, 600, 31}};
      EXPECT_TRUE(same(run(variant, 3, scoring, cache, in, beside, 5, 31), expected));
    }
  }
}

TEST(IndexScores, VariantsAgree) {
  Random random;
  PagedCache cache(random, 4, true, 2, kMaxTokens);
  cache.fill_records(random, kMaxTokens);
  for (std::int32_t heads : {3, 32}) {
    const Scoring scoring = make_scoring(cache, heads, 16);
    const Inputs in = random_inputs(random, heads);
    for (std::int32_t tokens : {1, 2, 31}) {
      const StepPart parts[] = {{0, 400, tokens}, {1, 90, 3}};
      const std::vector<float> reference = run("reference", 2, scoring, cache, in, parts);
      for (const std::string& variant : fast_variants(OpKind::kIndexScores)) {
        EXPECT_TRUE(agree(run(variant, 2, scoring, cache, in, parts), reference, 2e-6)) << variant;
      }
    }
  }
}

}  // namespace
}  // namespace fathom::testing
