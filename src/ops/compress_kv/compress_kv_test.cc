#include "ops/compress_kv/compress_kv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "ops/dequantise.h"
#include "ops/rope_rows/rope_rows.h"
#include "ops/testing/paged_cache.h"
#include "ops/testing/run.h"

namespace fathom::testing {
namespace {

constexpr std::int32_t kSequences = 2;
constexpr std::int32_t kMaxTokens = 400;

// One kind of compressor on one cache, with the u and g rows of every position of every sequence.
struct Case {
  Case(Random& random, std::int32_t ratio, CompressorKind kind, const Numerics& numerics, std::int32_t head_dim = 512,
       std::int32_t rope_dim = 64)
      : cache(random, ratio, numerics.packs_cache(), kSequences, kMaxTokens, head_dim, rope_dim),
        desc{kind, cache.layer(), 1e-6f, numerics} {
    const std::int32_t width = desc.row_width();
    u = random_f32(random, {kSequences * kMaxTokens, width});
    g = random_f32(random, {kSequences * kMaxTokens, width}, 2.0f);
    ape = random_f32(random, {ratio, width}, 2.0f);
    norm = random_bf16(random, {desc.width()}, 0.3f, 1.0f, 1);
    table = make_rope_frequencies(160000, rope_dim, {16.0f, 32.0f, 1.0f, 65536});
    frequencies = make_f32({rope_dim / 2}, table);
  }

  void run(const std::string& variant, int threads, std::span<const StepPart> parts, int repeats = 1) const {
    std::vector<std::int32_t> chosen;
    for (const StepPart& part : parts) {
      for (std::int32_t i = 0; i < part.num_tokens; ++i) chosen.push_back(part.sequence * kMaxTokens + part.start + i);
    }
    const TestStep step = cache.make_step(parts);
    const Tensor u_raw = gather_rows(u, chosen);
    const Tensor g_raw = gather_rows(g, chosen);
    const CompressKvPlan plan = plan_compress_kv(desc, {BackendKind::kCpu, std::max(threads, 1)});
    const CompressKvArgs args{&step.rows(), cache.pools(), u_raw.view(),      g_raw.view(),
                              ape.view(),   norm.view(),   frequencies.view()};
    run_with(OpKind::kCompressKv, variant, threads, plan.workspace_bytes, [&](ExecutionContext& context) {
      context.repeats.fill(repeats);
      run_compress_kv(context, plan, args);
    });
  }
  void run_chunks(const std::string& variant, int threads, std::int32_t sequence, std::int32_t begin, std::int32_t end,
                  std::int32_t chunk) const {
    for (std::int32_t start = begin; start < end; start += chunk) {
      const StepPart part[] = {{sequence, start, std::min(chunk, end - start)}};
      run(variant, threads, part);
    }
  }
  std::vector<float> entries(std::int32_t sequence, std::int32_t tokens) const {
    const std::int32_t count = tokens / cache.layer().ratio;
    return desc.kind == CompressorKind::kMain ? cache.read_entries(sequence, count)
                                              : cache.read_index_keys(sequence, count);
  }

  PagedCache cache;
  CompressKvDesc desc;
  Tensor u, g, ape, norm, frequencies;
  std::vector<float> table;
};

// Entry j of the spec, from all rows at once, in double (no quantiser, no rounding).
std::vector<double> exact_entry(const Case& c, std::int32_t sequence, std::int32_t j) {
  const std::int32_t ratio = c.cache.layer().ratio;
  const auto d = static_cast<std::size_t>(c.desc.width());
  const auto width = static_cast<std::size_t>(c.desc.row_width());
  std::vector<double> y(d);
  for (std::size_t ch = 0; ch < d; ++ch) {
    double numerator = 0;
    double denominator = 0;
    // Overlap: tokens of the group before with their first half, this group's with their second.
    for (std::int32_t p = ratio == 4 ? 4 * j - 4 : 128 * j; p < ratio * (j + 1); ++p) {
      if (p < 0) continue;
      const std::size_t column = ratio == 4 && p >= 4 * j ? d + ch : ch;
      const std::size_t row = static_cast<std::size_t>(sequence * kMaxTokens + p) * width + column;
      const double gate =
          double{c.g.floats()[row]} + double{c.ape.floats()[static_cast<std::size_t>(p % ratio) * width + column]};
      numerator += std::exp(gate) * double{c.u.floats()[row]};
      denominator += std::exp(gate);
    }
    y[ch] = numerator / denominator;
  }
  double squares = 0;
  for (double value : y) squares += value * value;
  for (std::size_t ch = 0; ch < d; ++ch) {
    y[ch] *= double{load_float(c.norm.view(), static_cast<std::int64_t>(ch))} /
             std::sqrt(squares / static_cast<double>(d) + 1e-6);
  }
  const std::size_t rope = 2 * c.table.size();
  for (std::size_t i = 0; i < c.table.size(); ++i) {
    const auto angle = static_cast<double>(static_cast<float>(j * ratio) * c.table[i]);  // the group's first token
    double* pair = &y[d - rope + 2 * i];
    const double x0 = pair[0];
    pair[0] = x0 * std::cos(angle) - pair[1] * std::sin(angle);
    pair[1] = x0 * std::sin(angle) + pair[1] * std::cos(angle);
  }
  if (c.desc.kind == CompressorKind::kMain) return y;
  std::vector<double> transformed(d);
  for (unsigned i = 0; i < d; ++i) {
    for (unsigned k = 0; k < d; ++k) transformed[i] += std::popcount(i & k) % 2 == 0 ? y[k] : -y[k];
    transformed[i] /= std::sqrt(static_cast<double>(d));
  }
  return transformed;
}

struct Kind {
  std::int32_t ratio;
  CompressorKind kind;
};
constexpr Kind kKinds[] = {{4, CompressorKind::kMain}, {4, CompressorKind::kIndex}, {128, CompressorKind::kMain}};

TEST(CompressKv, PlainEntriesAreTheFormula) {
  Random random;
  for (const auto& [ratio, kind] : kKinds) {
    SCOPED_TRACE(ratio);
    Case c(random, ratio, kind, Numerics::plain());
    for (const std::string& variant : cpu_variants(OpKind::kCompressKv)) {
      const StepPart whole[] = {{1, 0, 263}};
      c.run(variant, 1, whole);
      std::vector<float> expected;
      for (std::int32_t j = 0; j < 263 / ratio; ++j) {
        for (double value : exact_entry(c, 1, j)) expected.push_back(static_cast<float>(value));
      }
      EXPECT_TRUE(within(c.entries(1, 263), expected, 2e-6)) << variant;
    }
  }
}

// A case small enough for the hand, d = 2: only the own half of the first group exists, and each row's gate carries the
// ape row of its own position.
TEST(CompressKv, FirstGroupByHand) {
  Random random;
  Case c(random, 4, CompressorKind::kMain, Numerics::plain(), 2, 2);
  const std::span<float> u = c.u.floats();
  const std::span<float> g = c.g.floats();
  std::fill(u.begin(), u.end(), 1e6f);  // carry halves of group 0 must not be read for group 0
  std::fill(g.begin(), g.end(), 0.0f);
  std::fill(c.ape.floats().begin(), c.ape.floats().end(), 0.0f);
  for (std::size_t p = 0; p < 4; ++p) {
    u[p * 4 + 2] = static_cast<float>(p + 1);   // own half, channel 0: 1 2 3 4
    u[p * 4 + 3] = static_cast<float>(10 * p);  // channel 1: 0 10 20 30
  }
  c.ape.floats()[3 * 4 + 2] = std::log(3.0f);  // token 3 weighs three times as much in channel 0
  const std::vector<float> ones(2, 1.0f);
  c.norm = make_bf16({2}, ones);
  // y = ((1 + 2 + 3 + 3 * 4) / 6, 60 / 4) = (3, 15); rms = sqrt((9 + 225) / 2); position 0: no rotation.
  const double rms = std::sqrt(117.0);
  for (const std::string& variant : cpu_variants(OpKind::kCompressKv)) {
    const StepPart whole[] = {{0, 0, 4}};
    c.run(variant, 1, whole);
    const std::vector<float> entry = c.entries(0, 4);
    EXPECT_NEAR(entry[0], 3.0 / rms, 1e-6) << variant;
    EXPECT_NEAR(entry[1], 15.0 / rms, 1e-6) << variant;
  }
}

// Gates that are all very low, or -inf except one, still pool to finite values.
TEST(CompressKv, LowGatesPoolToFiniteValues) {
  Random random;
  for (const auto& [ratio, kind] : kKinds) {
    Case c(random, ratio, kind, Numerics::plain());
    for (float& value : c.g.floats()) value = -1e30f;
    const std::span<float> g = c.g.floats();
    // The last token of each group has the only finite gate of the second sequence.
    const auto width = static_cast<std::size_t>(c.desc.row_width());
    for (std::int32_t p = 0; p < kMaxTokens; ++p) {
      const std::size_t begin = static_cast<std::size_t>(kMaxTokens + p) * width;
      std::fill_n(g.begin() + static_cast<std::ptrdiff_t>(begin), width, p % ratio == ratio - 1 ? 0.0f : -INFINITY);
    }
    for (const std::string& variant : cpu_variants(OpKind::kCompressKv)) {
      SCOPED_TRACE(variant);
      const StepPart parts[] = {{0, 0, 260}, {1, 0, 260}};
      c.run(variant, 1, parts);
      for (std::int32_t sequence : {0, 1}) {
        for (float value : c.entries(sequence, 260)) EXPECT_TRUE(std::isfinite(value));
      }
    }
  }
}

// Entries are the same bits whatever the chunks: rows pooled from the step or from the slab.
TEST(CompressKv, ChunksThreadsAndNeighboursChangeNothing) {
  Random random;
  for (const auto& [ratio, kind] : kKinds) {
    for (const Numerics& numerics : kAllNumerics) {
      Case c(random, ratio, kind, numerics, 64, 16);
      for (const std::string& variant : cpu_variants(OpKind::kCompressKv)) {
        SCOPED_TRACE(variant + " ratio " + std::to_string(ratio) + " " + std::string(numerics_name(numerics.mode)));
        constexpr std::int32_t kTokens = 391;
        c.cache.poison();
        c.run_chunks(variant, 1, 0, 0, kTokens, kTokens);
        const std::vector<float> whole = c.entries(0, kTokens);
        const std::vector<std::byte> bytes = c.cache.snapshot();
        for (std::int32_t chunk : {1, 2, 3, 4, 5, 7, 8, 9, 31, 64, 127, 128, 130, 255, 300}) {
          c.cache.poison();
          c.run_chunks(variant, 1 + chunk % 3, 0, 0, kTokens, chunk);
          EXPECT_TRUE(same_bits(c.entries(0, kTokens), whole)) << "chunks of " << chunk;
          EXPECT_TRUE(c.cache.snapshot() == bytes) << "state rows after chunks of " << chunk;
        }
        c.cache.poison();
        c.run_chunks(variant, 1, 0, 0, 130, 130);
        c.run_chunks(variant, 1, 1, 0, 57, 57);
        for (std::int32_t start = 130; start < kTokens; start += 9) {
          const std::int32_t n = std::min(9, kTokens - start);
          const StepPart parts[] = {{1, 57 + (start - 130), 3}, {0, start, n}};
          c.run(variant, 3, parts, 2);  // steps of up to kMaxDraft + 1 rows may run twice
        }
        EXPECT_TRUE(same_bits(c.entries(0, kTokens), whole)) << "beside another sequence";
      }
    }
  }
}

// A draft of 8 that is rejected after its first token leaves nothing behind that later steps see.
TEST(CompressKv, RejectedDraftsLeaveNoTrace) {
  Random random;
  for (const auto& [ratio, kind] : kKinds) {
    Case c(random, ratio, kind, Numerics::serve(), 64, 16);
    for (const std::string& variant : cpu_variants(OpKind::kCompressKv)) {
      SCOPED_TRACE(variant + " ratio " + std::to_string(ratio));
      c.cache.poison();
      c.run_chunks(variant, 1, 0, 0, 300, 1);
      const std::vector<float> expected = c.entries(0, 300);
      c.cache.poison();
      c.run_chunks(variant, 1, 0, 0, 120, 120);
      for (std::int32_t p = 120; p < 300; ++p) {
        const StepPart draft[] = {{0, p, std::min(1 + kMaxDraft, kMaxTokens - p)}};
        // The drafted rows differ from the ones that come to stand there.
        std::vector<float> kept(c.u.floats().begin(), c.u.floats().end());
        const auto width = static_cast<std::size_t>(c.desc.row_width());
        for (std::size_t i = static_cast<std::size_t>(p + 1) * width; i < static_cast<std::size_t>(p + 9) * width;
             ++i) {
          c.u.floats()[i] = 1e6f;
        }
        c.run(variant, 1, draft);
        std::copy(kept.begin(), kept.end(), c.u.floats().begin());
      }
      EXPECT_TRUE(same_bits(c.entries(0, 300), expected));
    }
  }
}

TEST(CompressKv, VariantsAgree) {
  Random random;
  for (const auto& [ratio, kind] : kKinds) {
    for (const Numerics& numerics : kAllNumerics) {
      Case c(random, ratio, kind, numerics);
      const StepPart parts[] = {{0, 0, 259}, {1, 0, 130}};
      c.run("reference", 1, parts);
      const std::vector<float> reference = c.entries(0, 259);
      for (const std::string& variant : fast_variants(OpKind::kCompressKv)) {
        SCOPED_TRACE(variant + " ratio " + std::to_string(ratio) + " " + std::string(numerics_name(numerics.mode)));
        c.cache.poison();
        c.run(variant, 2, parts);
        const std::vector<float> found = c.entries(0, 259);
        if (!numerics.quantise_kv) {
          EXPECT_TRUE(within(found, reference, 3e-6));
        } else if (kind == CompressorKind::kMain) {
          EXPECT_TRUE(within_rounding(found, reference, {.step = 0.125, .max_share = 0.004, .floor = 0.05}));
        } else {
          EXPECT_TRUE(within_rounding(found, reference, {.step = 0.5, .max_share = 0.004, .floor = 0.5}));
        }
      }
    }
  }
}

}  // namespace
}  // namespace fathom::testing
