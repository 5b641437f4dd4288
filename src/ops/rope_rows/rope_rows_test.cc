#include "ops/rope_rows/rope_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>

#include "ops/testing/run.h"
#include "ops/testing/tensors.h"

namespace fathom::testing {
namespace {

const YarnScaling kNone;
const YarnScaling kYarn{16.0f, 32.0f, 1.0f, 65536};

// Spec section 12, in its own digits.
constexpr const char* kPlainTable[] = {"1",
                                       "0.749894202",
                                       "0.562341332",
                                       "0.421696514",
                                       "0.316227764",
                                       "0.237137362",
                                       "0.177827939",
                                       "0.133352146",
                                       "0.100000001",
                                       "0.0749894157",
                                       "0.0562341288",
                                       "0.0421696492",
                                       "0.0316227786",
                                       "0.0237137359",
                                       "0.0177827943",
                                       "0.0133352149",
                                       "0.00999999978",
                                       "0.00749894232",
                                       "0.00562341325",
                                       "0.00421696482",
                                       "0.00316227786",
                                       "0.00237137382",
                                       "0.00177827943",
                                       "0.00133352145",
                                       "0.00100000005",
                                       "0.000749894185",
                                       "0.000562341302",
                                       "0.000421696488",
                                       "0.000316227786",
                                       "0.000237137385",
                                       "0.00017782794",
                                       "0.00013335215"};
constexpr const char* kYarnTable[] = {"1",
                                      "0.687656045",
                                      "0.472870797",
                                      "0.325172454",
                                      "0.223606795",
                                      "0.153764561",
                                      "0.10573712",
                                      "0.0727107748",
                                      "0.0500000007",
                                      "0.0343828015",
                                      "0.0236435402",
                                      "0.0162586235",
                                      "0.0111803403",
                                      "0.00768822804",
                                      "0.00528685655",
                                      "0.00363553851",
                                      "0.00226562493",
                                      "0.00139680132",
                                      "0.000849689706",
                                      "0.000508081983",
                                      "0.000296977785",
                                      "0.000168179977",
                                      "9.08678412e-05",
                                      "4.54442306e-05",
                                      "1.95312532e-05",
                                      "5.37231244e-06",
                                      "3.69430336e-06",
                                      "2.5404097e-06",
                                      "1.74692821e-06",
                                      "1.20128561e-06",
                                      "8.260713e-07",
                                      "5.6805294e-07"};

std::string digits(float value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", static_cast<double>(value));
  return text;
}

TEST(RopeFrequencies, AreTheSpecsSixtyFour) {
  const std::vector<float> plain = make_rope_frequencies(10000, 64, kNone);
  const std::vector<float> yarn = make_rope_frequencies(160000, 64, kYarn);
  ASSERT_EQ(plain.size(), 32u);
  ASSERT_EQ(yarn.size(), 32u);
  for (std::size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(digits(plain[i]), kPlainTable[i]) << i;
    EXPECT_EQ(digits(yarn[i]), kYarnTable[i]) << i;
  }
}

struct Rope {
  std::vector<float> window, compressed;
};

Rope run(const std::string& variant, int threads, std::span<const std::int32_t> positions) {
  const std::vector<float> plain = make_rope_frequencies(10000, 64, kNone);
  const std::vector<float> yarn = make_rope_frequencies(160000, 64, kYarn);
  const auto tokens = static_cast<std::int64_t>(positions.size());
  const Tensor position_rows = make_i32({tokens}, positions);
  const Tensor plain_table = make_f32({32}, plain);
  const Tensor yarn_table = make_f32({32}, yarn);
  const Tensor window = poisoned(DType::kF32, {tokens, 32, 2});
  const Tensor compressed = poisoned(DType::kF32, {tokens, 32, 2});
  const RopeRowsPlan plan = plan_rope_rows({64}, {});
  const RopeRowsArgs args{position_rows.view(), plain_table.view(), yarn_table.view(), window.view(),
                          compressed.view()};
  run_with(OpKind::kRopeRows, variant, threads, plan.workspace_bytes,
           [&](ExecutionContext& context) { run_rope_rows(context, plan, args); });
  return {window.to_vector(), compressed.to_vector()};
}

// The angle is rounded to fp32 before its cosine is taken: cos of the double angle at (5, 100000) is 0.069106.
TEST(RopeRows, GoldenAngles) {
  for (const std::string& variant : cpu_variants(OpKind::kRopeRows)) {
    SCOPED_TRACE(variant);
    const std::int32_t positions[] = {100000, 1000000, 5000};
    const Rope rope = run(variant, 1, positions);
    const auto compressed = [&](std::size_t row, std::size_t i) { return &rope.compressed[row * 64 + 2 * i]; };
    EXPECT_NEAR(compressed(0, 5)[0], 0.06913312, 1e-7);
    EXPECT_NEAR(compressed(0, 5)[1], 0.99760744, 1e-7);
    EXPECT_NEAR(compressed(0, 16)[0], 0.93311024, 1e-7);
    EXPECT_NEAR(compressed(1, 20)[0], -0.09712409, 1e-7);
    EXPECT_NEAR(compressed(1, 31)[0], 0.84295007, 1e-7);
    EXPECT_NEAR(rope.window[2 * 64 + 6], -0.88975169, 1e-7);
    EXPECT_NEAR(rope.window[2 * 64 + 7], -0.45644488, 1e-7);
  }
}

TEST(RopeRows, CosineAndSineAreAccurateOverTheWholeContext) {
  Random random;
  std::vector<std::int32_t> positions = {0, 1, 127, 65535, 65536, 1048575};
  for (int i = 0; i < 100; ++i) positions.push_back(static_cast<std::int32_t>(random.integer(0, 1 << 20)));
  const std::vector<float> yarn = make_rope_frequencies(160000, 64, kYarn);
  for (const std::string& variant : cpu_variants(OpKind::kRopeRows)) {
    const Rope rope = run(variant, 2, positions);
    for (std::size_t t = 0; t < positions.size(); ++t) {
      for (std::size_t i = 0; i < 32; ++i) {
        const long double angle = static_cast<float>(positions[t]) * yarn[i];
        EXPECT_NEAR(rope.compressed[t * 64 + 2 * i], static_cast<double>(cosl(angle)), 1.2e-7) << variant;
        EXPECT_NEAR(rope.compressed[t * 64 + 2 * i + 1], static_cast<double>(sinl(angle)), 1.2e-7) << variant;
      }
    }
  }
}

TEST(RopeRows, RowInvariant) {
  Random random;
  std::vector<std::int32_t> positions;
  for (int i = 0; i < 65; ++i) positions.push_back(static_cast<std::int32_t>(random.integer(0, 1 << 20)));
  const RowRunner rows = [&](const std::string& variant, int threads, std::span<const std::int32_t> chosen) {
    std::vector<std::int32_t> some;
    for (std::int32_t row : chosen) some.push_back(positions[static_cast<std::size_t>(row)]);
    const Rope rope = run(variant, threads, some);
    std::vector<float> both;  // a row's two tables together
    for (std::size_t t = 0; t < some.size(); ++t) {
      const auto at = static_cast<std::ptrdiff_t>(t * 64);
      both.insert(both.end(), rope.window.begin() + at, rope.window.begin() + at + 64);
      both.insert(both.end(), rope.compressed.begin() + at, rope.compressed.begin() + at + 64);
    }
    return both;
  };
  expect_row_invariance(OpKind::kRopeRows, 65, rows);
  expect_matches_reference(OpKind::kRopeRows, 65, rows,
                           [](std::span<const float> a, std::span<const float> b) { return within(a, b, 1e-7); });
}

}  // namespace
}  // namespace fathom::testing
