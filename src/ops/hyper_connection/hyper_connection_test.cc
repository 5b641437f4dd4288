#include "ops/hyper_connection/hyper_connection.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/dequantise.h"
#include "ops/testing/run.h"
#include "ops/testing/tensors.h"

namespace fathom::testing {
namespace {

struct Inputs {
  Tensor streams, sublayer_out, post, comb;
  Tensor fn, base, scale, norm;
};

struct Outputs {
  std::vector<float> streams, post, comb, normed;
};

Inputs random_inputs(Random& random, std::int64_t tokens, std::int64_t hc, std::int64_t hidden) {
  Inputs in;
  in.streams = random_bf16_valued(random, {tokens, hc, hidden}, 2.0f);
  in.sublayer_out = random_bf16_valued(random, {tokens, hidden});
  in.post = random_f32(random, {tokens, hc}, 0.5f, 1.0f);
  in.comb = random_f32(random, {tokens, hc, hc}, 0.2f, 0.25f);
  const auto width = static_cast<float>(hc * hidden);
  in.fn = random_f32(random, {(2 + hc) * hc, hc * hidden}, 1.0f / std::sqrt(width));
  in.base = random_f32(random, {(2 + hc) * hc});
  in.scale = random_f32(random, {3}, 0.3f, 1.0f);
  in.norm = random_bf16(random, {hidden}, 0.2f, 1.0f, 1);
  return in;
}

Outputs run(const std::string& variant, int threads, const HyperConnectionDesc& desc, const Inputs& in,
            bool with_post = true, bool with_pre = true) {
  const std::int64_t tokens = in.streams.view().shape[0];
  const std::int64_t hc = desc.hc_mult;
  const Tensor streams = poisoned(DType::kF32, in.streams.view().shape);
  const Tensor post = poisoned(DType::kF32, {tokens, hc});
  const Tensor comb = poisoned(DType::kF32, {tokens, hc, hc});
  const Tensor normed = poisoned(DType::kF32, {tokens, desc.hidden});
  HyperConnectionArgs args;
  args.streams = in.streams.view();
  if (with_post) {
    args.sublayer_out = in.sublayer_out.view();
    args.post = in.post.view();
    args.comb = in.comb.view();
    args.next_streams = streams.view();
  }
  if (with_pre) {
    args.next = {in.fn.view(), in.base.view(), in.scale.view()};
    args.norm_weight = in.norm.view();
    args.next_post = post.view();
    args.next_comb = comb.view();
    args.normed = normed.view();
  }
  const HyperConnectionPlan plan = plan_hyper_connection(desc, {});
  run_with(OpKind::kHyperConnection, variant, threads, plan.workspace_bytes,
           [&](ExecutionContext& context) { run_hyper_connection(context, plan, args); });
  return {streams.to_vector(), post.to_vector(), comb.to_vector(), normed.to_vector()};
}

// Spec section 12: m_i = 0.1 i - 1.2, base_i = 0.05 ((7 i) mod 24) - 0.6, scale = (0.5, 0.8, 1.5). A stream of
// ones has r = 1 and m = the row sums of fn; it collapses to the sum of pre, which the norm then hides, so pre is
// read from a second token whose streams differ.
Inputs golden_inputs(float rms_scale) {
  constexpr std::int64_t kHidden = 32;
  Inputs in;
  std::vector<float> fn(24 * 4 * kHidden, 0.0f);
  std::vector<float> base(24);
  for (int i = 0; i < 24; ++i) {
    fn[static_cast<std::size_t>(i * 4 * kHidden)] = (0.1f * static_cast<float>(i) - 1.2f) / rms_scale;
    base[static_cast<std::size_t>(i)] = 0.05f * static_cast<float>(7 * i % 24) - 0.6f;
  }
  const std::vector<float> scale = {0.5f, 0.8f, 1.5f};
  const std::vector<float> ones(kHidden, 1.0f);
  in.fn = make_f32({24, 4 * kHidden}, fn);
  in.base = make_f32({24}, base);
  in.scale = make_f32({3}, scale);
  in.norm = make_bf16({kHidden}, ones);
  return in;
}

TEST(HyperConnection, SinkhornGolden) {
  Inputs in = golden_inputs(1.0f);
  const std::vector<float> ones(4 * 32, 1.0f);
  in.streams = make_f32({1, 4, 32}, ones);
  constexpr float kPost[] = {0.5223000f, 0.7041184f, 0.9102422f, 0.5577696f};
  constexpr float kComb[] = {0.1771720f, 0.2287841f, 0.4168710f, 0.1771719f, 0.2499998f, 0.3228276f,
                             0.1771720f, 0.2499998f, 0.2499998f, 0.3228276f, 0.1771720f, 0.2499997f,
                             0.3228275f, 0.1255598f, 0.2287841f, 0.3228276f};
  for (const std::string& variant : cpu_variants(OpKind::kHyperConnection)) {
    SCOPED_TRACE(variant);
    const Outputs out = run(variant, 1, {32, 4, 20, 1e-6f, 1e-6f, Numerics::plain()}, in, false);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(out.post[i], kPost[i], 1e-6);
    for (std::size_t i = 0; i < 16; ++i) EXPECT_NEAR(out.comb[i], kComb[i], 1e-6);
  }
}

// normed = x / rms(x): channel c carries stream c alone, so ratios of channels are ratios of pre; eps on pre
// shows where sigmoid is tiny.
TEST(HyperConnection, PreGoldenAndItsEps) {
  for (const std::string& variant : cpu_variants(OpKind::kHyperConnection)) {
    SCOPED_TRACE(variant);
    // Streams: stream j is 1 at channel j of 32 (and stream 0 carries the statistic at its channel 0).
    std::vector<float> streams(4 * 32, 0.0f);
    for (std::size_t j = 0; j < 4; ++j) streams[j * 32 + j] = 1.0f;
    const double rms = std::sqrt(4.0 / 128.0 + 1e-6);
    Inputs in = golden_inputs(static_cast<float>(1.0 / rms));
    in.streams = make_f32({1, 4, 32}, streams);
    const HyperConnectionDesc desc{32, 4, 20, 1e-6f, 1e-6f, Numerics::plain()};
    constexpr double kPre[] = {0.2314762, 0.3100265, 0.4013134, 0.5000010};
    const Outputs out = run(variant, 1, desc, in, false);
    double squares = 0;
    for (double pre : kPre) squares += pre * pre;
    const double norm = std::sqrt(squares / 32 + 1e-6);
    for (std::size_t j = 0; j < 4; ++j) EXPECT_NEAR(out.normed[j], kPre[j] / norm, 3e-6);

    // base -30: sigmoid is 1e-13, pre is eps; post, without eps, is 2e-13.
    std::vector<float> base(24, 0.0f);
    for (std::size_t i = 0; i < 8; ++i) base[i] = -30.0f;
    in.base = make_f32({24}, base);
    std::vector<float> flat(24 * 128, 0.0f);
    in.fn = make_f32({24, 128}, flat);
    std::vector<float> large(4 * 32, 0.0f);
    large[0] = 1e6f;
    in.streams = make_f32({1, 4, 32}, large);
    const Outputs tiny = run(variant, 1, desc, in, false);
    // x = 1e6 * (1e-6 + 1e-13) = 1 in channel 0; normed = 1 / sqrt(1/32 + 1e-6). Without eps: x = 1e-7, normed 1e-4.
    EXPECT_NEAR(tiny.normed[0], 1.0 / std::sqrt(1.0 / 32 + 1e-6), 1e-4);
    for (std::size_t j = 0; j < 4; ++j) EXPECT_LT(tiny.post[j], 1e-12f);
  }
}

// comb is not symmetric: the sum runs over its row index.
TEST(HyperConnection, PostSumsOverRows) {
  constexpr std::int64_t kHidden = 3;
  Inputs in;
  std::vector<float> streams(4 * kHidden);
  for (std::size_t i = 0; i < streams.size(); ++i) streams[i] = static_cast<float>(i + 1);
  std::vector<float> comb(16, 0.0f);
  comb[0 * 4 + 2] = 10.0f;  // row 0, column 2: stream 0 goes to stream 2
  const std::vector<float> post = {1.0f, 2.0f, 3.0f, 4.0f};
  const std::vector<float> y = {100.0f, 200.0f, 300.0f};
  in.streams = make_f32({1, 4, kHidden}, streams);
  in.sublayer_out = make_f32({1, kHidden}, y);
  in.post = make_f32({1, 4}, post);
  in.comb = make_f32({1, 4, 4}, comb);
  for (const std::string& variant : cpu_variants(OpKind::kHyperConnection)) {
    const Outputs out = run(variant, 1, {kHidden, 4, 20, 1e-6f, 1e-6f, Numerics::plain()}, in, true, false);
    const std::vector<float> expected = {100, 200, 300, 200, 400, 600, 310, 620, 930, 400, 800, 1200};
    EXPECT_TRUE(same_bits(out.streams, expected)) << variant;
  }
}

// Against the formulas in another arrangement, on random values, with the post half in front.
TEST(HyperConnection, IsTheFormula) {
  Random random;
  constexpr std::int64_t kHidden = 17;
  Inputs in = random_inputs(random, 3, 4, kHidden);
  // Peaked rows converge slowly: that 20 iterations are run, and not 19, shows.
  for (std::size_t i = 8; i < 24; ++i) in.base.floats()[i] = i % 5 == 0 ? 9.0f : -0.7f * static_cast<float>(i % 7);
  const Outputs out = run("reference", 0, {kHidden, 4, 20, 1e-6f, 1e-6f, Numerics::plain()}, in);
  const Outputs fewer = run("reference", 0, {kHidden, 4, 19, 1e-6f, 1e-6f, Numerics::plain()}, in);
  EXPECT_GT(relative_l2(fewer.comb, out.comb), 1e-4);
  for (std::size_t t = 0; t < 3; ++t) {
    std::vector<double> h(4 * kHidden);
    double squares = 0;
    for (std::size_t k = 0; k < 4; ++k) {
      for (std::size_t i = 0; i < kHidden; ++i) {
        double value = double{in.post.floats()[t * 4 + k]} * in.sublayer_out.floats()[t * kHidden + i];
        for (std::size_t j = 0; j < 4; ++j) {
          value += double{in.comb.floats()[t * 16 + j * 4 + k]} * in.streams.floats()[(t * 4 + j) * kHidden + i];
        }
        EXPECT_NEAR(out.streams[(t * 4 + k) * kHidden + i], value, 1e-5);
        h[k * kHidden + i] = value;
        squares += value * value;
      }
    }
    const double r = 1 / std::sqrt(squares / (4 * kHidden) + 1e-6);
    std::vector<double> m(24);
    for (std::size_t i = 0; i < 24; ++i) {
      for (std::size_t c = 0; c < h.size(); ++c) m[i] += double{in.fn.floats()[i * h.size() + c]} * h[c];
      const std::size_t part = i < 4 ? 0 : i < 8 ? 1 : 2;
      m[i] = m[i] * r * double{in.scale.floats()[part]} + double{in.base.floats()[i]};
    }
    // Sinkhorn as diagonal scalings of exp(m): rows then columns, with the eps of each step.
    double c[4][4];
    for (std::size_t j = 0; j < 4; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < 4; ++k) sum += std::exp(m[8 + 4 * j + k]);
      for (std::size_t k = 0; k < 4; ++k) c[j][k] = std::exp(m[8 + 4 * j + k]) / sum + 1e-6;
    }
    for (int step = 1; step < 40; ++step) {
      for (std::size_t a = 0; a < 4; ++a) {
        double sum = 1e-6;
        for (std::size_t b = 0; b < 4; ++b) sum += step % 2 == 1 ? c[b][a] : c[a][b];
        for (std::size_t b = 0; b < 4; ++b) (step % 2 == 1 ? c[b][a] : c[a][b]) /= sum;
      }
    }
    for (std::size_t i = 0; i < 16; ++i) EXPECT_NEAR(out.comb[t * 16 + i], c[i / 4][i % 4], 1e-6);
    for (std::size_t j = 0; j < 4; ++j) EXPECT_NEAR(out.post[t * 4 + j], 2 / (1 + std::exp(-m[4 + j])), 1e-6);
    std::vector<double> x(kHidden);
    double x_squares = 0;
    for (std::size_t i = 0; i < kHidden; ++i) {
      for (std::size_t j = 0; j < 4; ++j) x[i] += (1 / (1 + std::exp(-m[j])) + 1e-6) * h[j * kHidden + i];
      x_squares += x[i] * x[i];
    }
    for (std::size_t i = 0; i < kHidden; ++i) {
      const double weight = double{load_float(in.norm.view(), static_cast<std::int64_t>(i))};
      EXPECT_NEAR(out.normed[t * kHidden + i], weight * x[i] / std::sqrt(x_squares / kHidden + 1e-6), 1e-5);
    }
  }
}

std::vector<float> row_of_everything(const Outputs& out, std::size_t tokens) {
  std::vector<float> all;
  for (std::size_t t = 0; t < tokens; ++t) {
    for (const std::vector<float>* part : {&out.streams, &out.post, &out.comb, &out.normed}) {
      const auto width = static_cast<std::ptrdiff_t>(part->size() / tokens);
      const auto begin = part->begin() + static_cast<std::ptrdiff_t>(t) * width;
      all.insert(all.end(), begin, begin + width);
    }
  }
  return all;
}

Inputs gather_inputs(const Inputs& in, std::span<const std::int32_t> chosen) {
  Inputs some;
  some.streams = gather_rows(in.streams, chosen);
  some.sublayer_out = gather_rows(in.sublayer_out, chosen);
  some.post = gather_rows(in.post, chosen);
  some.comb = gather_rows(in.comb, chosen);
  for (auto part : {&Inputs::fn, &Inputs::base, &Inputs::scale, &Inputs::norm}) {
    some.*part = Tensor((in.*part).view().dtype, (in.*part).view().shape);
    std::copy_n((in.*part).view().data, (in.*part).view().num_bytes(), (some.*part).view().data);
  }
  return some;
}

// `serve` rounds h', then x, then normed. Each rounding is judged from its own input: h' against the reference's, one
// rounding; what HCpre makes of it against the reference's HCpre of the same h', so that a flipped h', which moves x by
// up to its whole ulp however small x is, is no part of the comparison. x and normed are two roundings in a row: an ulp
// (2^-7) of x scales into normed, which adds its own, so 2^-6; coefficients are fp32 and see no rounding at all.
void expect_serve_matches(const HyperConnectionDesc& desc, const Inputs& in, bool with_post, bool with_pre) {
  for (const std::string& variant : fast_variants(OpKind::kHyperConnection)) {
    for (const std::int32_t rows : {1, 2, 3, 5, 7, 8, 31}) {
      SCOPED_TRACE(variant + ", " + std::to_string(rows) + " rows");
      Inputs some = gather_inputs(in, iota_rows(0, rows));
      const Outputs found = run(variant, 2, desc, some, with_post, with_pre);
      if (with_post) {
        const Outputs expected = run("reference", 2, desc, some, true, false);
        EXPECT_TRUE(within_rounding(found.streams, expected.streams));
        some.streams = make_f32(some.streams.view().shape, found.streams);
      }
      if (!with_pre) continue;
      const Outputs expected = run("reference", 2, desc, some, false, true);
      EXPECT_TRUE(within(found.post, expected.post, 5e-6));
      EXPECT_TRUE(within(found.comb, expected.comb, 5e-6));
      EXPECT_TRUE(within_rounding(found.normed, expected.normed, {.step = 0x1p-6}));
    }
  }
}

TEST(HyperConnection, VariantsAgreeAndAreRowInvariant) {
  Random random;
  for (const Numerics& numerics : kAllNumerics) {
    SCOPED_TRACE(numerics_name(numerics.mode));
    for (const auto& [hidden, with_post, with_pre] :
         {std::tuple{7, true, true}, std::tuple{256, true, true}, std::tuple{100, false, true},
          std::tuple{33, true, false}, std::tuple{1000, true, true}}) {
      const HyperConnectionDesc desc{hidden, 4, 20, 1e-6f, 1e-6f, numerics};
      const Inputs in = random_inputs(random, 31, 4, hidden);
      const RowRunner rows = [&](const std::string& variant, int threads, std::span<const std::int32_t> chosen) {
        const Inputs some = gather_inputs(in, chosen);
        return row_of_everything(run(variant, threads, desc, some, with_post, with_pre), chosen.size());
      };
      if (numerics.rounds_to_bf16()) {
        expect_serve_matches(desc, in, with_post, with_pre);
      } else {
        expect_matches_reference(OpKind::kHyperConnection, 31, rows, sum_order(numerics, 5e-6));
      }
      expect_row_invariance(OpKind::kHyperConnection, 7, rows);
    }
  }
}

}  // namespace
}  // namespace fathom::testing
