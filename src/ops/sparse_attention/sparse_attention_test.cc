#include "ops/sparse_attention/sparse_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <functional>

#include "ops/cache_records.h"
#include "ops/testing/paged_cache.h"
#include "ops/testing/run.h"

namespace fathom::testing {
namespace {

constexpr std::int32_t kSequences = 2;

// Inputs of every position of every sequence (queries and angles repeat after kInputRows), and a way to run any
// rows of them.
constexpr std::int32_t kInputRows = 37;
constexpr std::int32_t input_row(std::int32_t sequence, std::int32_t position) {
  return (position + 11 * sequence) % kInputRows;
}

struct Case {
  Case(Random& random, std::int32_t ratio, std::int32_t heads, std::int32_t topk, const Numerics& numerics,
       std::int32_t max_positions, std::int32_t head_dim = 512, std::int32_t rope_dim = 64)
      : cache(random, ratio, numerics.packs_cache(), kSequences, max_positions, head_dim, rope_dim),
        desc{cache.layer(), 0, heads, topk, numerics},
        max_tokens(max_positions) {
    cache.fill_records(random, max_positions);
    const std::int64_t rows = kSequences * max_positions;
    q = random_bf16_valued(random, {kInputRows, heads, head_dim});
    sink = random_f32(random, {heads});
    rope = Tensor(DType::kF32, {kInputRows, rope_dim / 2, 2});
    for (std::size_t i = 0; i < rope.floats().size(); i += 2) {
      const double angle = 10.0 * static_cast<double>(random.normal());
      rope.floats()[i] = static_cast<float>(std::cos(angle));
      rope.floats()[i + 1] = static_cast<float>(std::sin(angle));
    }
    selected = Tensor(DType::kI32, {rows, std::max(topk, 1)});
    std::fill(selected.ints().begin(), selected.ints().end(), -1);
    for (std::int64_t row = 0; ratio == 4 && row < rows; ++row) {
      const auto visible = static_cast<std::int32_t>((row % max_positions + 1) / 4);
      std::vector<std::int32_t> entries;
      for (std::int32_t j = 0; j < visible; ++j) entries.push_back(j);
      std::shuffle(entries.begin(), entries.end(), random.engine());
      entries.resize(static_cast<std::size_t>(std::min(visible, topk)));
      std::sort(entries.begin(), entries.end());
      std::copy(entries.begin(), entries.end(), selected.ints().begin() + row * topk);
    }
  }

  std::vector<float> run(
      const std::string& variant, int threads, std::span<const StepPart> parts,
      const std::function<void(TestStep&)>& adjust = [](TestStep&) {}) const {
    std::vector<std::int32_t> chosen;
    std::vector<std::int32_t> inputs;
    for (const StepPart& part : parts) {
      for (std::int32_t i = 0; i < part.num_tokens; ++i) {
        chosen.push_back(part.sequence * max_tokens + part.start + i);
        inputs.push_back(input_row(part.sequence, part.start + i));
      }
    }
    TestStep step = cache.make_step(parts);
    adjust(step);
    SparseAttentionDesc sized = desc;
    sized.max_tokens = step.rows().num_tokens;
    const Tensor q_rows = gather_rows(q, inputs);
    const Tensor rope_rows = gather_rows(rope, inputs);
    const Tensor selected_rows = gather_rows(selected, chosen);
    const Tensor out = poisoned(DType::kF32, q_rows.view().shape);
    const SparseAttentionPlan plan = plan_sparse_attention(sized, {BackendKind::kCpu, std::max(threads, 1)});
    SparseAttentionArgs args{&step.rows(), cache.pools(), q_rows.view(), sink.view(), {}, rope_rows.view(), out.view()};
    if (desc.cache.ratio == 4) args.selected = selected_rows.view();
    run_with(OpKind::kSparseAttention, variant, threads, plan.workspace_bytes,
             [&](ExecutionContext& context) { run_sparse_attention(context, plan, args); });
    return out.to_vector();
  }

  PagedCache cache;
  SparseAttentionDesc desc;
  std::int32_t max_tokens;
  Tensor q, sink, rope, selected;
};

// The row at a position of a sequence, in double, from the records read back: keys as (sequence, is_entry, index).
std::vector<float> exact_row(const Case& c, std::int32_t sequence, std::int32_t p, std::int32_t window_begin,
                             std::int32_t window_end) {
  const auto d = static_cast<std::size_t>(c.desc.cache.kv.head_dim);
  const auto rope_dim = static_cast<std::size_t>(c.desc.cache.kv.rope_dim);
  std::vector<float> keys = c.cache.read_window(sequence, window_begin, window_end);
  if (c.desc.cache.ratio != 0) {
    const std::int32_t visible = (p + 1) / c.desc.cache.ratio;
    const std::vector<float> entries = c.cache.read_entries(sequence, visible);
    const std::int32_t* selected =
        &c.selected.ints()[static_cast<std::size_t>((sequence * c.max_tokens + p) * std::max(c.desc.topk, 1))];
    for (std::int32_t j = 0; j < visible; ++j) {
      if (c.desc.cache.ratio == 4 && std::find(selected, selected + c.desc.topk, j) == selected + c.desc.topk) continue;
      const auto begin = entries.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(j) * d);
      keys.insert(keys.end(), begin, begin + static_cast<std::ptrdiff_t>(d));
    }
  }
  const auto row = static_cast<std::size_t>(input_row(sequence, p));
  std::vector<float> out;
  for (std::size_t h = 0; h < static_cast<std::size_t>(c.desc.num_heads); ++h) {
    const float* q = &c.q.floats()[(row * static_cast<std::size_t>(c.desc.num_heads) + h) * d];
    // Without a maximum: logits here are small.
    double denominator = std::exp(double{c.sink.floats()[h]});
    std::vector<double> o(d);
    for (std::size_t i = 0; i < keys.size() / d; ++i) {
      double logit = 0;
      for (std::size_t ch = 0; ch < d; ++ch) logit += double{q[ch]} * double{keys[i * d + ch]};
      const double weight = std::exp(logit / std::sqrt(static_cast<double>(d)));
      denominator += weight;
      for (std::size_t ch = 0; ch < d; ++ch) o[ch] += weight * double{keys[i * d + ch]};
    }
    for (double& value : o) value /= denominator;
    for (std::size_t i = 0; i < rope_dim / 2; ++i) {
      const float* turn = &c.rope.floats()[row * rope_dim + 2 * i];
      double* pair = &o[d - rope_dim + 2 * i];
      // Back by the query's angle: times the conjugate.
      const std::complex<double> z =
          std::complex<double>(pair[0], pair[1]) * std::conj(std::complex<double>(turn[0], turn[1]));
      pair[0] = z.real();
      pair[1] = z.imag();
    }
    for (double value : o) out.push_back(static_cast<float>(value));
  }
  return out;
}

TEST(SparseAttention, PlainIsTheFormula) {
  Random random;
  for (std::int32_t ratio : {0, 4, 128}) {
    SCOPED_TRACE(ratio);
    const Case c(random, ratio, 3, 16, Numerics::plain(), 420, 64, 16);
    for (const std::string& variant : cpu_variants(OpKind::kSparseAttention)) {
      for (std::int32_t start : {0, 62, 125, 254, 410}) {
        const StepPart parts[] = {{1, start, 5}};
        const std::vector<float> found = c.run(variant, 2, parts);
        std::vector<float> expected;
        for (std::int32_t p = start; p < start + 5; ++p) {
          const std::vector<float> row = exact_row(c, 1, p, std::max(0, p - 127), p + 1);
          expected.insert(expected.end(), row.begin(), row.end());
        }
        EXPECT_TRUE(within(found, expected, 3e-6)) << variant << " from position " << start;
      }
    }
  }
}

// A step's window is given by its rows: a draft block's rows all see the whole block (spec 2.10).
TEST(SparseAttention, DraftBlocksSeeTheWholeBlock) {
  Random random;
  const Case c(random, 0, 2, 0, Numerics::plain(), 200, 64, 16);
  const StepPart parts[] = {{0, 150, 5}};
  for (const std::string& variant : cpu_variants(OpKind::kSparseAttention)) {
    const std::vector<float> found = c.run(variant, 1, parts, [](TestStep& step) {
      for (std::int32_t row = 0; row < 5; ++row) step.set_window(row, 22, 155);  // 128 before the block, and it
    });
    std::vector<float> expected;
    for (std::int32_t p = 150; p < 155; ++p) {
      const std::vector<float> row = exact_row(c, 0, p, 22, 155);
      expected.insert(expected.end(), row.begin(), row.end());
    }
    EXPECT_TRUE(within(found, expected, 3e-6)) << variant;
  }
}

// Keys are one-hot, the query is the same everywhere: every visible key weighs 1 / n, and is seen in its channel.
TEST(SparseAttention, WindowHolds128PositionsWithSelf) {
  Random random;
  Case c(random, 0, 1, 0, Numerics::plain(), 300, 352, 32);
  std::fill(c.q.floats().begin(), c.q.floats().end(), 0.0f);
  c.sink.floats()[0] = -INFINITY;  // takes nothing
  const StepPart all[] = {{0, 0, 300}};
  const TestStep step = c.cache.make_step(all);
  for (std::int32_t p = 0; p < 300; ++p) {
    std::vector<float> key(352, 0.0f);
    key[static_cast<std::size_t>(p)] = 1.0f;
    write_kv_record(c.desc.cache.kv, window_record(step.rows(), c.cache.pools(), c.desc.cache, 0, p), key);
  }
  for (const std::string& variant : cpu_variants(OpKind::kSparseAttention)) {
    for (std::int32_t p : {0, 5, 126, 127, 128, 299}) {
      const StepPart alone[] = {{0, p, 1}};
      const std::vector<float> out = c.run(variant, 1, alone);
      const std::int32_t first = std::max(0, p - 127);
      for (std::int32_t i = 0; i < 300; ++i) {
        const double expected = i >= first && i <= p ? 1.0 / (p - first + 1) : 0.0;
        EXPECT_NEAR(out[static_cast<std::size_t>(i)], expected, 1e-8) << variant << " p " << p << " key " << i;
      }
    }
  }
}

// exp(sink - M) overflows: the output is 0, not NaN. A sink of -inf takes nothing.
TEST(SparseAttention, SinkMayBeInfinitelyLarge) {
  Random random;
  for (std::int32_t ratio : {0, 4, 128}) {
    Case c(random, ratio, 4, 16, Numerics::plain(), 300, 64, 16);
    const float sinks[] = {1e4f, 200.0f, INFINITY, -INFINITY};
    std::copy(std::begin(sinks), std::end(sinks), c.sink.floats().begin());
    for (const std::string& variant : cpu_variants(OpKind::kSparseAttention)) {
      const StepPart parts[] = {{0, 290, 3}};
      const std::vector<float> out = c.run(variant, 1, parts);
      for (std::size_t i = 0; i < out.size(); ++i) {
        if (i / 64 % 4 < 3) {
          EXPECT_NEAR(out[i], 0.0f, 1e-37f) << variant;
        } else {
          EXPECT_TRUE(std::isfinite(out[i])) << variant;
        }
      }
      c.sink.floats()[3] = -1e30f;
      EXPECT_TRUE(within(c.run(variant, 1, parts), out, 1e-9));
      c.sink.floats()[3] = -INFINITY;
    }
  }
}

// Logits in the thousands: only the largest is left.
TEST(SparseAttention, LargeLogitsDoNotOverflow) {
  Random random;
  for (std::int32_t ratio : {0, 4, 128}) {
    Case c(random, ratio, 2, 16, Numerics::plain(), 300, 64, 16);
    for (float& value : c.q.floats()) value *= 1000.0f;
    for (const std::string& variant : cpu_variants(OpKind::kSparseAttention)) {
      const StepPart parts[] = {{0, 280, 3}};
      for (float value : c.run(variant, 1, parts)) EXPECT_TRUE(std::isfinite(value)) << variant;
    }
  }
}

TEST(SparseAttention, RowsThreadsNeighboursChangeNothing) {
  Random random;
  for (const Numerics& numerics : kAllNumerics) {
    for (std::int32_t ratio : {0, 4, 128}) {
      const Case c(random, ratio, 3, 160, numerics, 800, 128, 64);
      for (const std::string& variant : cpu_variants(OpKind::kSparseAttention)) {
        SCOPED_TRACE(variant + " ratio " + std::to_string(ratio) + " " + std::string(numerics_name(numerics.mode)));
        const StepPart whole[] = {{0, 760, 31}};
        const std::vector<float> expected = c.run(variant, 1, whole);
        const std::size_t width = 3 * 128;
        const auto rows = [&](std::size_t begin, std::size_t count) {
          return std::span(expected).subspan(begin * width, count * width);
        };
        for (int threads : {0, 2, 3}) EXPECT_TRUE(same_bits(c.run(variant, threads, whole), expected));
        for (std::int32_t row : {0, 15, 30}) {
          const StepPart alone[] = {{0, 760 + row, 1}};
          EXPECT_TRUE(same_bits(c.run(variant, 2, alone), rows(static_cast<std::size_t>(row), 1)));
        }
        const StepPart beside[] = {{1, 3, 9}, {0, 767, 7}};
        EXPECT_TRUE(same_bits(std::span<const float>(c.run(variant, 3, beside)).subspan(9 * width), rows(7, 7)));
      }
    }
  }
}

TEST(SparseAttention, VariantsAgree) {
  Random random;
  for (const Numerics& numerics : kAllNumerics) {
    for (std::int32_t ratio : {0, 4, 128}) {
      for (std::int32_t heads : {1, 11}) {
        const Case c(random, ratio, heads, 64, numerics, 530);
        for (std::int32_t tokens : {1, 3, 9}) {
          const StepPart parts[] = {{0, 480, tokens}, {1, 120, std::min(tokens, 9)}};
          const std::vector<float> reference = c.run("reference", 2, parts);
          for (const std::string& variant : fast_variants(OpKind::kSparseAttention)) {
            SCOPED_TRACE(variant + " ratio " + std::to_string(ratio) + " heads " + std::to_string(heads) + " rows " +
                         std::to_string(tokens) + " " + std::string(numerics_name(numerics.mode)));
            const std::vector<float> found = c.run(variant, 2, parts);
            // serve: o and its rotation are stored in turn, a flipped rounding moves a pair by up to two ulps.
            EXPECT_TRUE(numerics.rounds_to_bf16()
                            ? within_rounding(found, reference,
                                              {.step = 0x1p-6, .max_share = 0.01, .floor = 1e-3, .pairs = true})
                            : within(found, reference, 3e-6));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace fathom::testing
