#include "ops/kv_write/kv_write.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "ops/dequantise.h"
#include "ops/testing/paged_cache.h"
#include "ops/testing/run.h"

namespace fathom::testing {
namespace {

struct Inputs {
  Tensor kv_raw;  // [all positions of all sequences, head_dim], row = sequence * kMaxTokens + position
  Tensor norm;
  Tensor rope;  // likewise
};
constexpr std::int32_t kSequences = 3;
constexpr std::int32_t kMaxTokens = 400;

Inputs random_inputs(Random& random, std::int32_t head_dim, std::int32_t rope_dim) {
  Inputs in;
  in.kv_raw = random_bf16_valued(random, {kSequences * kMaxTokens, head_dim}, 2.0f);
  in.norm = random_bf16(random, {head_dim}, 0.3f, 1.0f, 1);
  in.rope = Tensor(DType::kF32, {kSequences * kMaxTokens, rope_dim / 2, 2});
  for (std::size_t i = 0; i < in.rope.floats().size(); i += 2) {
    const double angle = 10.0 * static_cast<double>(random.normal());
    in.rope.floats()[i] = static_cast<float>(std::cos(angle));
    in.rope.floats()[i + 1] = static_cast<float>(std::sin(angle));
  }
  return in;
}

void run(const std::string& variant, int threads, const Numerics& numerics, const PagedCache& cache, const Inputs& in,
         std::span<const StepPart> parts, int repeats = 1) {
  std::vector<std::int32_t> chosen;
  for (const StepPart& part : parts) {
    for (std::int32_t i = 0; i < part.num_tokens; ++i) chosen.push_back(part.sequence * kMaxTokens + part.start + i);
  }
  const TestStep step = cache.make_step(parts);
  const Tensor kv_raw = gather_rows(in.kv_raw, chosen);
  const Tensor rope = gather_rows(in.rope, chosen);
  const KvWritePlan plan = plan_kv_write({cache.layer(), 1e-6f, numerics}, {BackendKind::kCpu, std::max(threads, 1)});
  const KvWriteArgs args{&step.rows(), cache.pools(), kv_raw.view(), in.norm.view(), rope.view()};
  run_with(OpKind::kKvWrite, variant, threads, plan.workspace_bytes, [&](ExecutionContext& context) {
    context.repeats.fill(repeats);
    run_kv_write(context, plan, args);
  });
}

TEST(KvWrite, PlainRecordIsTheNormedRotatedRow) {
  Random random;
  PagedCache cache(random, 0, false, kSequences, kMaxTokens, 24, 8);
  const Inputs in = random_inputs(random, 24, 8);
  const StepPart parts[] = {{1, 125, 6}};
  run("reference", 0, Numerics::plain(), cache, in, parts);
  const std::vector<float> stored = cache.read_window(1, 125, 131);
  for (std::size_t t = 0; t < 6; ++t) {
    const float* x = &in.kv_raw.floats()[(kMaxTokens + 125 + t) * 24];
    const float* turn = &in.rope.floats()[(kMaxTokens + 125 + t) * 8];
    double squares = 0;
    for (int i = 0; i < 24; ++i) squares += double{x[i]} * x[i];
    std::vector<double> y(24);
    for (std::size_t i = 0; i < 24; ++i) {
      y[i] = double{x[i]} * double{load_float(in.norm.view(), static_cast<std::int64_t>(i))} /
             std::sqrt(squares / 24 + 1e-6);
    }
    for (std::size_t i = 0; i < 8; i += 2) {
      const double x0 = y[16 + i];
      const double x1 = y[17 + i];
      y[16 + i] = x0 * double{turn[i]} - x1 * double{turn[i + 1]};
      y[17 + i] = x0 * double{turn[i + 1]} + x1 * double{turn[i]};
    }
    for (std::size_t i = 0; i < 24; ++i) EXPECT_NEAR(stored[t * 24 + i], y[i], 2e-6);
  }
}

// Also the DSpark drafter's context keys (spec 2.10): kv_norm of a projected row, turned at its own position, in the
// record of that position. 24 channels of which 8 turn; the squares sum to 24, so the norm divides by 1.
TEST(KvWrite, KeyByHand) {
  Random random;
  PagedCache cache(random, 0, false, kSequences, kMaxTokens, 24, 8);
  Inputs in = random_inputs(random, 24, 8);
  const std::size_t row = 131;
  float* x = &in.kv_raw.floats()[row * 24];
  std::fill(x, x + 24, 0.0f);
  x[0] = 2;
  x[16] = 4;
  x[17] = 2;
  std::vector<float> norm(24, 1.0f);
  norm[0] = 0.5f;
  norm[17] = 2;
  in.norm = make_bf16({24}, norm);
  in.rope.floats()[row * 8] = 0;  // a quarter turn of the pair (4, 4)
  in.rope.floats()[row * 8 + 1] = 1;
  const StepPart parts[] = {{0, 131, 1}};
  for (const std::string& variant : cpu_variants(OpKind::kKvWrite)) {
    cache.poison();
    run(variant, 1, Numerics::plain(), cache, in, parts);
    std::vector<float> expected(24, 0.0f);
    expected[0] = 1;
    expected[16] = -4;
    expected[17] = 4;
    const std::vector<float> stored = cache.read_window(0, 131, 132);
    for (std::size_t i = 0; i < 24; ++i) EXPECT_NEAR(stored[i], expected[i], 1e-5) << variant << " channel " << i;
  }
}

// A row whose norm is trivial: channel 0 large, channel 32 (same block of 64) tiny, channel 64 (the next) tiny.
TEST(KvWrite, QuantiserBlockIs64AndTheRopePartIsNotQuantised) {
  Random random;
  for (const bool packed : {false, true}) {
    PagedCache cache(random, 0, packed, kSequences, kMaxTokens);
    Inputs in = random_inputs(random, 512, 64);
    std::fill(in.kv_raw.floats().begin(), in.kv_raw.floats().end(), 0.0f);
    // x[0] dominates: after the norm it is sqrt(512) = 22.6, and its block's scale 2^-4.
    in.kv_raw.floats()[0] = 448.0f;
    in.kv_raw.floats()[32] = 0.001f;   // 5e-5 after the norm: below half of 2^-9 * 2^-4, gone
    in.kv_raw.floats()[64] = 0.001f;   // its own block: kept (blocks of 128 would lose it)
    in.kv_raw.floats()[448] = 0.001f;  // not quantised
    const std::vector<float> ones(512, 1.0f);
    in.norm = make_bf16({512}, ones);
    for (std::size_t i = 0; i < 64; ++i) in.rope.floats()[i] = i % 2 == 0 ? 1.0f : 0.0f;
    const StepPart parts[] = {{0, 0, 1}};
    for (const std::string& variant : cpu_variants(OpKind::kKvWrite)) {
      SCOPED_TRACE(variant + (packed ? " packed" : " float"));
      cache.poison();
      run(variant, 1, packed ? Numerics::serve() : Numerics::vendor(), cache, in, parts);
      const std::vector<float> kv = cache.read_window(0, 0, 1);
      const double tiny = 0.001 * std::sqrt(512.0) / 448.0;
      EXPECT_EQ(kv[0], 22.0f);  // 22.627 to four significant bits
      EXPECT_EQ(kv[32], 0.0f);
      EXPECT_NEAR(kv[64], tiny, tiny / 16);
      EXPECT_NEAR(kv[448], tiny, tiny / 256);
      EXPECT_NE(kv[448], kv[64]);
    }
  }
}

// Packed records hold exactly what fp32 records hold under the same rounding points.
TEST(KvWrite, PackedIsLossless) {
  Random random;
  Numerics serve_values = Numerics::serve();
  const Inputs in = random_inputs(random, 512, 64);
  PagedCache packed(random, 0, true, kSequences, kMaxTokens);
  PagedCache floats(random, 0, false, kSequences, kMaxTokens);
  const StepPart parts[] = {{2, 120, 31}, {0, 0, 5}};
  for (const std::string& variant : cpu_variants(OpKind::kKvWrite)) {
    run(variant, 1, serve_values, packed, in, parts);
    run(variant, 1, serve_values, floats, in, parts);
    EXPECT_TRUE(same_bits(packed.read_window(2, 120, 151), floats.read_window(2, 120, 151))) << variant;
  }
}

struct Shape {
  std::int32_t head_dim, rope_dim;
};

TEST(KvWrite, VariantsAgree) {
  Random random;
  for (const Numerics& numerics : kAllNumerics) {
    for (const auto& [head_dim, rope_dim] : {Shape{512, 64}, Shape{176, 64}, Shape{72, 8}}) {
      SCOPED_TRACE(std::string(numerics_name(numerics.mode)) + " head_dim " + std::to_string(head_dim));
      const Inputs in = random_inputs(random, head_dim, rope_dim);
      PagedCache cache(random, 0, numerics.packs_cache(), kSequences, kMaxTokens, head_dim, rope_dim);
      const StepPart parts[] = {{1, 100, 65}, {0, 3, 1}, {2, 255, 7}};
      run("reference", 1, numerics, cache, in, parts);
      const std::vector<float> reference = cache.read_window(1, 100, 165);
      for (const std::string& variant : fast_variants(OpKind::kKvWrite)) {
        cache.poison();
        run(variant, 2, numerics, cache, in, parts);
        const std::vector<float> found = cache.read_window(1, 100, 165);
        // e4m3 codes: the neighbouring code is 1/8 away; near a block's zero its subnormal step.
        const bool quantised = numerics.quantise_kv;
        EXPECT_TRUE(quantised ? within_rounding(found, reference, {.step = 0.125, .max_share = 0.002, .floor = 0.05})
                              : within(found, reference, 2e-6))
            << variant;
      }
    }
  }
}

// The bytes of the pools are the same however rows are grouped into steps, and nothing else is written.
TEST(KvWrite, BytesDoNotDependOnStepsThreadsOrRepeats) {
  Random random;
  for (const Numerics& numerics : {Numerics::plain(), Numerics::serve()}) {
    const Inputs in = random_inputs(random, 512, 64);
    PagedCache cache(random, 0, numerics.packs_cache(), kSequences, kMaxTokens);
    for (const std::string& variant : cpu_variants(OpKind::kKvWrite)) {
      SCOPED_TRACE(variant);
      cache.poison();
      const std::vector<std::byte> untouched = cache.snapshot();
      const StepPart whole[] = {{1, 0, 300}};
      run(variant, 1, numerics, cache, in, whole);
      const std::vector<std::byte> expected = cache.snapshot();
      const auto changed = static_cast<std::int64_t>(
          std::inner_product(expected.begin(), expected.end(), untouched.begin(), std::size_t{0}, std::plus<>(),
                             [](std::byte a, std::byte b) { return std::size_t{a != b}; }));
      const KvRecordLayout& layout = cache.layer().kv;
      EXPECT_LE(changed, 300 * (layout.data_bytes() + layout.scale_bytes()));
      EXPECT_GE(changed, 300 * (layout.data_bytes() + layout.scale_bytes()) * 98 / 100);
      for (std::int32_t chunk : {1, 7, 64, 129}) {
        cache.poison();
        for (std::int32_t start = 0; start < 300; start += chunk) {
          const StepPart part[] = {{1, start, std::min(chunk, 300 - start)}};
          run(variant, 1 + start % 3, numerics, cache, in, part, 1 + start % 2);
        }
        EXPECT_TRUE(cache.snapshot() == expected) << "chunks of " << chunk;
      }
      cache.poison();
      const StepPart beside[] = {{2, 17, 3}, {1, 0, 300}, {0, 200, 1}};
      run(variant, 3, numerics, cache, in, beside);
      const std::vector<float> found = cache.read_window(1, 0, 300);
      cache.poison();
      run(variant, 1, numerics, cache, in, whole);
      EXPECT_TRUE(same_bits(found, cache.read_window(1, 0, 300)));
    }
  }
}

}  // namespace
}  // namespace fathom::testing
