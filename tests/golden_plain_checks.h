// What a prompt of a `plain` golden set must show, whatever the variants: logits, states, selections, greedy.
#pragma once

#include <algorithm>

#include "golden_support.h"

namespace fathom::testing {

inline constexpr double kReferenceTolerance = 2e-5;
inline constexpr double kCpuTolerance = 2e-3;

// Rows of `tap` at hpos (absent: all rows) against the golden's rows, one at a time.
inline void expect_rows_near(const Goldens& goldens, const std::string& prompt, const std::string& name,
                             const CollectingTaps::Tap& tap, double tolerance) {
  const std::vector<float> golden = goldens.floats(prompt + "." + name);
  const std::int64_t rows = static_cast<std::int64_t>(golden.size()) / tap.row_elements;
  std::vector<std::int32_t> positions;
  if (goldens.has(prompt + ".hpos")) positions = goldens.ints(prompt + ".hpos");
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t row = positions.empty() ? i : positions[static_cast<std::size_t>(i)];
    const auto expected = std::span(golden).subspan(static_cast<std::size_t>(i * tap.row_elements),
                                                    static_cast<std::size_t>(tap.row_elements));
    EXPECT_LE(relative_l2(tap.row(row), expected), tolerance) << prompt << "." << name << " at position " << row;
  }
}

// A row's selected entries, ascending; -1 is padding, which goldens and taps may place differently.
inline std::vector<std::int32_t> selection_of(std::vector<std::int32_t> row) {
  std::erase(row, -1);
  std::sort(row.begin(), row.end());
  return row;
}
inline std::vector<std::int32_t> selection_of(const std::vector<std::int32_t>& golden, std::size_t row,
                                              std::size_t num_rows) {
  const auto width = static_cast<std::ptrdiff_t>(golden.size() / num_rows);
  const auto begin = golden.begin() + static_cast<std::ptrdiff_t>(row) * width;
  return selection_of(std::vector<std::int32_t>(begin, begin + width));
}
inline std::vector<std::int32_t> selection_of(const CollectingTaps::Tap& tap, std::int64_t row) {
  const std::span<const float> values = tap.row(row);
  return selection_of(std::vector<std::int32_t>(values.begin(), values.end()));
}

// Selected entries of layer L at tpos, except rows whose golden margin is so small that rounding decides.
inline void expect_selections(const Goldens& goldens, const std::string& prompt, std::int32_t layer,
                              const CollectingTaps& taps, float smallest_margin) {
  const std::string suffix = std::to_string(layer);
  if (!goldens.has(prompt + ".topk" + suffix)) return;
  const std::vector<std::int32_t> positions = goldens.ints(prompt + ".tpos");
  const std::vector<std::int32_t> golden = goldens.ints(prompt + ".topk" + suffix);
  const std::vector<float> margins = goldens.floats(prompt + ".margin" + suffix);
  const CollectingTaps::Tap& tap = taps["topk" + suffix];
  std::size_t num_judged = 0;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (margins[i] < smallest_margin) continue;
    const std::vector<std::int32_t> expected = selection_of(golden, i, positions.size());
    const std::vector<std::int32_t> found = selection_of(tap, positions[i]);
    EXPECT_EQ(found, expected) << prompt << ".topk" << layer << " at position " << positions[i];
    ++num_judged;
  }
  EXPECT_GE(num_judged, 1u) << prompt << ".topk" << layer << ": every margin was too small to judge";
}

inline void expect_logits(const Goldens& goldens, const std::string& prompt, std::span<const float> logits,
                          std::int64_t first, std::int64_t vocab, double tolerance) {
  const auto row = [&](std::int64_t position) {
    return logits.subspan(static_cast<std::size_t>((position - first) * vocab), static_cast<std::size_t>(vocab));
  };
  const std::int64_t last = first + static_cast<std::int64_t>(logits.size()) / vocab - 1;
  const std::vector<float> golden = goldens.floats(prompt + ".last_logits");
  const double error = relative_l2(row(last), golden);
  EXPECT_LE(error, tolerance) << prompt << ".last_logits";
  ::testing::Test::RecordProperty(prompt + ".last_logits", std::to_string(error));
  if (first > 0 || !goldens.has(prompt + ".pos")) return;
  const std::vector<std::int32_t> positions = goldens.ints(prompt + ".pos");
  const std::vector<float> at_positions = goldens.floats(prompt + ".pos_logits");
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const auto expected =
        std::span(at_positions).subspan(i * static_cast<std::size_t>(vocab), static_cast<std::size_t>(vocab));
    EXPECT_LE(relative_l2(row(positions[i]), expected), tolerance) << prompt << ".pos_logits at " << positions[i];
  }
}

// Greedy tokens equal wherever the golden's top-1 and top-2 are clearly apart; the golden token is fed on.
inline void expect_greedy(const Goldens& goldens, const std::string& prompt, Runner& runner) {
  if (!goldens.has(prompt + ".greedy")) return;
  const std::vector<std::int32_t> ids = goldens.ints(prompt + ".ids");
  const std::vector<std::int32_t> greedy = goldens.ints(prompt + ".greedy");
  const std::vector<float> gaps = goldens.floats(prompt + ".greedy_gap");
  SampleSpec spec;
  spec.temperature = 0.0f;
  Result<SampledToken> token = runner.session().prefill(ids, spec);
  for (std::size_t i = 0; i < greedy.size(); ++i) {
    ASSERT_TRUE(token.ok()) << token.status().message();
    if (gaps[i] >= 0.05f) {
      EXPECT_EQ(token->token, greedy[i]) << prompt << " greedy step " << i;
    }
    if (i + 1 < greedy.size()) token = runner.session().decode(greedy[i], spec);
  }
}

// Everything a prompt has goldens for.
inline void check_plain_prompt(const Goldens& goldens, const std::string& prompt, Runner& runner, double tolerance) {
  SCOPED_TRACE(prompt);
  const std::vector<std::int32_t> ids = goldens.ints(prompt + ".ids");
  const bool everywhere = goldens.has(prompt + ".pos") || goldens.has(prompt + ".layer0");
  const std::int64_t first = everywhere ? 0 : static_cast<std::int64_t>(ids.size()) - 1;
  CollectingTaps taps;
  const bool tapped = goldens.has(prompt + ".layer0") || goldens.has(prompt + ".tpos");
  const std::vector<float> logits = runner.logits(ids, first, tapped ? &taps : nullptr);
  expect_logits(goldens, prompt, logits, first, runner.vocab_size(), tolerance);
  for (std::int32_t l = 0; l < runner.model().config().num_hidden_layers; ++l) {
    for (const char* point : {"attn", "mlp", "layer"}) {
      const std::string name = point + std::to_string(l);
      if (goldens.has(prompt + "." + name)) expect_rows_near(goldens, prompt, name, taps[name], tolerance);
    }
    expect_selections(goldens, prompt, l, taps, 1e-4f);
  }
  for (const char* name : {"hc_head", "norm"}) {
    if (goldens.has(prompt + "." + std::string(name))) expect_rows_near(goldens, prompt, name, taps[name], tolerance);
  }
  expect_greedy(goldens, prompt, runner);
}

}  // namespace fathom::testing
