#include "ops/sample/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <new>
#include <set>

#include "ops/sample/philox.h"

namespace {
std::atomic<std::int64_t> num_allocations{0};
}  // namespace

// Counts what the test program allocates: sampling must not. Not inlined: g++ then takes new and free for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++num_allocations;
  if (void* memory = std::malloc(size)) return memory;
  std::abort();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace fathom {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Philox, Random123Vectors) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}), (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32_10({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, EveryPartOfThePlaceCounts) {
  const std::uint32_t base = sampling_noise(1, 0, 5, 7);
  EXPECT_NE(base, sampling_noise(1ull << 32 | 1, 0, 5, 7));
  EXPECT_NE(base, sampling_noise(1, 1, 5, 7));
  EXPECT_NE(base, sampling_noise(1, 0, 5 + (1ll << 32), 7));
  EXPECT_NE(base, sampling_noise(1, 0, 5, 8));
}

// Pearson's statistic of `counts` against `probabilities`; ids of probability 0 must not occur.
double chi_squared(const std::vector<std::int64_t>& counts, const std::vector<double>& probabilities, double draws) {
  double sum = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * draws;
    if (expected == 0) {
      if (counts[i] != 0) return std::numeric_limits<double>::infinity();
      continue;
    }
    sum += (static_cast<double>(counts[i]) - expected) * (static_cast<double>(counts[i]) - expected) / expected;
  }
  return sum;
}

const std::vector<float> kLogits = {0.3f, -1.2f, 2.0f, 0.9f, -0.5f, 1.4f, 0.0f, 1.0f, -2.0f, 0.7f, 0.2f, -0.1f};
constexpr std::int64_t kDraws = 100000;
// 11 degrees of freedom: P(statistic > 31.3) = 0.001. Seeds are fixed, so the test does not flicker.
constexpr double kLimit = 31.3;

std::vector<double> softmax(const std::vector<float>& logits, double temperature) {
  std::vector<double> p;
  double total = 0;
  for (float l : logits) total += p.emplace_back(std::exp(l / temperature));
  for (double& x : p) x /= total;
  return p;
}

std::vector<std::int64_t> histogram(const SampleSpec& spec, bool vary_position) {
  SampleWorkspace workspace;
  SampleSpec drawn = spec;
  std::vector<std::int64_t> counts(kLogits.size(), 0);
  for (std::int64_t i = 0; i < kDraws; ++i) {
    if (!vary_position) drawn.seed = spec.seed + static_cast<std::uint64_t>(i);
    ++counts[static_cast<std::size_t>(sample_token(kLogits, vary_position ? i : 17, drawn, workspace).token)];
  }
  return counts;
}

TEST(Sample, DrawsFollowTheDistribution) {
  for (float temperature : {0.5f, 1.0f, 1.7f}) {
    SampleSpec spec;
    spec.temperature = temperature;
    spec.seed = 2024;
    for (bool vary_position : {false, true}) {
      EXPECT_LT(chi_squared(histogram(spec, vary_position), softmax(kLogits, temperature), kDraws), kLimit)
          << "temperature " << temperature << " vary_position " << vary_position;
    }
  }
}

TEST(Sample, TheTestSeesAWrongRule) {
  // Noise one word wide but uniform instead of Gumbel, and the right rule at a temperature 3 % off.
  std::vector<std::int64_t> uniform(kLogits.size(), 0);
  for (std::int64_t i = 0; i < kDraws; ++i) {
    std::size_t best = 0;
    double best_score = -1e9;
    for (std::size_t id = 0; id < kLogits.size(); ++id) {
      const double score = kLogits[id] + 3 * sampling_noise(2024, 0, i, static_cast<std::uint32_t>(id)) * 0x1p-32;
      if (score > best_score) {
        best_score = score;
        best = id;
      }
    }
    ++uniform[best];
  }
  EXPECT_GT(chi_squared(uniform, softmax(kLogits, 1.0), kDraws), kLimit);
  SampleSpec spec;
  spec.seed = 2024;
  spec.temperature = 1.03f;
  EXPECT_GT(chi_squared(histogram(spec, true), softmax(kLogits, 1.0), kDraws), kLimit);
}

TEST(Sample, CutsKeepTheRestOfTheDistribution) {
  SampleSpec spec;
  spec.seed = 77;
  spec.top_k = 4;  // ids 2, 5, 7, 3
  std::vector<float> kept(kLogits.size(), -kInfinity);
  for (std::size_t id : {2, 5, 7, 3}) kept[id] = kLogits[id];
  EXPECT_LT(chi_squared(histogram(spec, true), softmax(kept, 1.0), kDraws), 16.3);  // 3 degrees
}

std::set<TokenId> support(std::span<const float> logits, SampleSpec spec) {
  SampleWorkspace workspace;
  std::set<TokenId> seen;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    spec.seed = seed;
    seen.insert(sample_token(logits, 3, spec, workspace).token);
  }
  return seen;
}

TEST(Sample, TopPEdges) {
  // Probabilities 1/2, 1/4, 1/8, 1/8.
  const std::vector<float> logits = {std::log(2.0f), std::log(4.0f), 0.0f, 0.0f};
  const auto with = [&](float top_p) {
    SampleSpec spec;
    spec.top_p = top_p;
    return support(logits, spec);
  };
  using Ids = std::set<TokenId>;
  EXPECT_EQ(with(1e-6f), (Ids{1}));
  EXPECT_EQ(with(0.49f), (Ids{1}));
  EXPECT_EQ(with(0.51f), (Ids{0, 1}));     // the token that crosses is in
  EXPECT_EQ(with(0.80f), (Ids{0, 1, 2}));  // of equals the lowest id
  EXPECT_EQ(with(0.999f), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(with(1.0f), (Ids{0, 1, 2, 3}));
  const std::vector<float> uniform(8, 1.0f);
  SampleSpec spec;
  spec.top_p = 0.5f;  // exactly four of eight reach it
  EXPECT_EQ(support(uniform, spec), (Ids{0, 1, 2, 3}));
}

TEST(Sample, NucleusOfALongTail) {
  // More than one sorting run of `nucleus`: 1000 equal tokens, 70 % of them.
  const std::vector<float> uniform(1000, 0.0f);
  SampleSpec spec;
  spec.top_p = 0.7f;
  SampleWorkspace workspace;
  TokenId highest = 0;
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    spec.seed = seed;
    highest = std::max(highest, sample_token(uniform, 0, spec, workspace).token);
  }
  EXPECT_EQ(highest, 699);
}

TEST(Sample, TopKAndMinP) {
  const std::vector<float> logits = {1.0f, 3.0f, 3.0f, 2.0f};
  SampleSpec spec;
  spec.top_k = 1;
  EXPECT_EQ(support(logits, spec), (std::set<TokenId>{1}));
  spec.top_k = 3;
  EXPECT_EQ(support(logits, spec), (std::set<TokenId>{1, 2, 3}));
  spec.top_k = 0;
  spec.min_p = 0.3f;  // e^-1 = 0.37 stays, e^-2 = 0.14 goes
  EXPECT_EQ(support(logits, spec), (std::set<TokenId>{1, 2, 3}));
  spec.min_p = 1.0f;
  EXPECT_EQ(support(logits, spec), (std::set<TokenId>{1, 2}));
}

TEST(Sample, TiesGoToTheLowestId) {
  const std::vector<float> logits = {0.0f, 5.0f, 5.0f, 1.0f};
  SampleSpec spec;
  spec.temperature = 0;
  spec.num_logprobs = 3;
  SampleWorkspace workspace;
  const SampledToken drawn = sample_token(logits, 0, spec, workspace);
  EXPECT_EQ(drawn.token, 1);
  ASSERT_EQ(drawn.top.size(), 3u);
  EXPECT_EQ(drawn.top[0].token, 1);
  EXPECT_EQ(drawn.top[1].token, 2);
  EXPECT_EQ(drawn.top[2].token, 3);
}

TEST(Sample, TemperatureZeroIgnoresSeedsAndCuts) {
  SampleWorkspace workspace;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SampleSpec spec;
    spec.temperature = 0;
    spec.seed = seed;
    spec.top_p = 0.01f;
    spec.top_k = 3;
    EXPECT_EQ(sample_token(kLogits, static_cast<std::int64_t>(seed), spec, workspace).token, 2);
  }
}

TEST(Sample, TinyTemperatureIsArgmax) {
  SampleSpec spec;
  spec.temperature = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(support(kLogits, spec), (std::set<TokenId>{2}));
}

TEST(Sample, SameSeedSamePlaceSameToken) {
  SampleWorkspace one, two;
  SampleSpec spec;
  spec.seed = 9;
  spec.top_p = 0.9f;
  // `two` carries another request's leftovers between the draws.
  SampleSpec other;
  other.repetition_penalty = 2.0f;
  const std::vector<TokenId> history = {1, 2, 2, 5};
  other.prompt_ids = history;
  other.output_ids = history;
  other.num_logprobs = 5;
  std::vector<float> shifted = kLogits;
  std::reverse(shifted.begin(), shifted.end());
  for (std::int64_t position = 0; position < 200; ++position) {
    sample_token(shifted, position, other, two);
    EXPECT_EQ(sample_token(kLogits, position, spec, one).token, sample_token(kLogits, position, spec, two).token);
  }
}

TEST(Sample, Penalties) {
  const std::vector<float> logits = {2.0f, 1.9f, -1.0f, -0.9f};
  const std::vector<TokenId> prompt = {0, 0, 2};
  const std::vector<TokenId> output = {1, 1, 3};
  SampleWorkspace workspace;
  SampleSpec spec;
  spec.temperature = 0;
  const auto token = [&] { return sample_token(logits, 0, spec, workspace).token; };
  spec.prompt_ids = prompt;
  EXPECT_EQ(token(), 0);
  spec.repetition_penalty = 1.2f;  // 2.0 / 1.2 = 1.67, once though the id stands twice
  EXPECT_EQ(token(), 1);
  spec.output_ids = output;  // 1.9 / 1.2 = 1.58
  EXPECT_EQ(token(), 0);
  spec.repetition_penalty = 1.0f;
  EXPECT_EQ(token(), 0);
  spec.frequency_penalty = -0.1f;  // 1.9 + 0.2
  EXPECT_EQ(token(), 1);
  spec.frequency_penalty = -0.04f;  // 1.9 + 0.08
  EXPECT_EQ(token(), 0);
  spec.frequency_penalty = 0;
  spec.presence_penalty = -0.2f;  // 1.9 + 0.2, the count does not matter
  EXPECT_EQ(token(), 1);
  // Negative logits are multiplied: the other two are barred by their bias.
  const std::vector<std::pair<TokenId, float>> bias = {{0, -100.0f}, {1, -100.0f}};
  spec = SampleSpec{};
  spec.temperature = 0;
  spec.logit_bias = bias;
  EXPECT_EQ(token(), 3);
  spec.output_ids = output;
  spec.repetition_penalty = 1.2f;  // -1.08
  EXPECT_EQ(token(), 2);
}

TEST(Sample, MaskBiasAndUnknownIds) {
  SampleWorkspace workspace;
  SampleSpec spec;
  const std::vector<std::uint32_t> mask = {0b100000010010};
  spec.allowed = mask;
  EXPECT_EQ(support(kLogits, spec), (std::set<TokenId>{1, 4, 11}));
  const std::vector<std::pair<TokenId, float>> bias = {{2, 100.0f}, {-1, 100.0f}, {151645, 100.0f}};
  spec.logit_bias = bias;  // a bias does not open the mask
  EXPECT_EQ(support(kLogits, spec), (std::set<TokenId>{1, 4, 11}));
  const std::vector<std::uint32_t> closed = {0};
  spec.allowed = closed;
  EXPECT_EQ(sample_token(kLogits, 0, spec, workspace).token, -1);
}

TEST(Sample, LogitsThatAreNoNumbers) {
  SampleWorkspace workspace;
  SampleSpec spec;
  spec.num_logprobs = 2;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> mixed = {nan, 1.0f, -kInfinity, nan};
  const SampledToken drawn = sample_token(mixed, 0, spec, workspace);
  EXPECT_EQ(drawn.token, 1);
  EXPECT_EQ(drawn.logprob, 0.0f);
  const std::vector<float> none = {nan, -kInfinity};
  EXPECT_EQ(sample_token(none, 0, spec, workspace).token, -1);
  const std::vector<float> infinite = {0.0f, kInfinity};
  EXPECT_EQ(sample_token(infinite, 0, spec, workspace).token, 1);
}

TEST(Sample, LogprobsAreOfTheRawLogits) {
  SampleWorkspace workspace;
  SampleSpec spec;
  spec.temperature = 0.3f;
  spec.top_k = 2;
  spec.num_logprobs = 20;  // more than the vocabulary has
  const std::vector<std::pair<TokenId, float>> bias = {{4, 50.0f}};
  spec.logit_bias = bias;
  const SampledToken drawn = sample_token(kLogits, 8, spec, workspace);
  const std::vector<double> p = softmax(kLogits, 1.0);
  EXPECT_EQ(drawn.token, 4);
  EXPECT_NEAR(drawn.logprob, std::log(p[4]), 1e-6);
  ASSERT_EQ(drawn.top.size(), kLogits.size());
  EXPECT_EQ(drawn.top[0].token, 2);
  EXPECT_NEAR(drawn.top[0].logprob, std::log(p[2]), 1e-6);
  EXPECT_TRUE(std::is_sorted(drawn.top.begin(), drawn.top.end(),
                             [](const auto& a, const auto& b) { return a.logprob > b.logprob; }));
}

TEST(Sample, ForcedIdsAreGivenNotDrawn) {
  SampleWorkspace workspace;
  SampleSpec spec;
  spec.num_logprobs = 0;
  const std::vector<TokenId> forced = {8};
  spec.forced = forced;
  const SampledToken given = sample_token(kLogits, 0, spec, workspace);
  EXPECT_EQ(given.token, 8);
  EXPECT_NEAR(given.logprob, std::log(softmax(kLogits, 1.0)[8]), 1e-6);
  EXPECT_TRUE(given.top.empty());
}

TEST(Sample, RowsOfOneSpec) {
  const std::vector<std::uint32_t> masks = {1, 2, 3};
  const std::vector<TokenId> output = {10, 11, 12, 13};  // two committed, two drafts
  const std::vector<TokenId> forced = {-1, 5, -1};
  SampleSpec spec;
  spec.allowed = masks;
  spec.output_ids = output;
  spec.forced = forced;
  for (std::int32_t row = 0; row < 3; ++row) {
    const SampleSpec narrow = row_spec(spec, row, 3, 12);
    ASSERT_EQ(narrow.allowed.size(), 1u);
    EXPECT_EQ(narrow.allowed[0], masks[static_cast<std::size_t>(row)]);
    EXPECT_EQ(narrow.output_ids.size(), static_cast<std::size_t>(2 + row));
    EXPECT_EQ(narrow.forced[0], forced[static_cast<std::size_t>(row)]);
  }
}

TEST(Sample, NothingIsAllocatedAfterWarmUp) {
  std::vector<float> logits(5000);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<float>(i));
  const std::vector<TokenId> history = {1, 2, 3, 3};
  SampleSpec spec;
  spec.top_k = 700;
  spec.top_p = 0.9f;
  spec.min_p = 0.01f;
  spec.repetition_penalty = 1.1f;
  spec.frequency_penalty = 0.2f;
  spec.num_logprobs = 20;
  spec.prompt_ids = history;
  spec.output_ids = history;
  SampleWorkspace workspace;
  SampledToken result;
  sample_token(logits, 0, spec, workspace, result);
  const std::int64_t before = num_allocations;
  for (std::int64_t position = 1; position < 20; ++position) sample_token(logits, position, spec, workspace, result);
  EXPECT_EQ(num_allocations, before);
  EXPECT_GT(num_allocations, 0);
}

}  // namespace
}  // namespace fathom
