// Steps whose rows ask for everything sampling knows, and what the host's rule draws for them: what a DeviceSampler is
// held against, on any backend.
#pragma once

#include <deque>
#include <limits>
#include <random>
#include <vector>

#include "base/units.h"
#include "engine/step.h"

namespace fathom {

class SamplingCases {
 public:
  // One step of `num_sequences` sequences with 1 to 4 logits rows each.
  SamplingCases(std::uint64_t seed, std::int32_t vocab, int num_sequences) : random_(seed), vocab_(vocab) {
    for (int i = 0; i < num_sequences; ++i) add_sequence(i);
    logits_.resize(static_cast<std::size_t>(num_rows_) * static_cast<std::size_t>(vocab));
    std::normal_distribution<float> normal(0.0f, 3.0f);
    for (float& value : logits_) value = normal(random_);
    for (std::int32_t row = 0; row < num_rows_; ++row) make_odd(row);
  }

  const StepPlan& plan() const { return plan_; }
  std::int32_t num_rows() const { return num_rows_; }
  std::vector<float>& logits() { return logits_; }  // [rows, vocab]

  std::vector<SampledToken> expected() const {
    std::vector<SampledToken> all;
    SampleWorkspace workspace;
    std::size_t next = 0, row = 0;
    for (const SequenceStep& step : plan_.sequences) {
      const SampleSpec& spec = plan_.samples[next++];
      for (std::int32_t i = 0; i < step.num_logits; ++i) {
        const std::int64_t position = step.start + step.num_tokens - step.num_logits + i + 1;
        const auto width = static_cast<std::size_t>(vocab_);
        all.push_back(sample_token(std::span(logits_).subspan(row++ * width, width), position,
                                   row_spec(spec, i, step.num_logits, vocab_), workspace));
      }
    }
    return all;
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }
  float share() { return static_cast<float>(below(1000) + 1) / 1000.0f; }
  template <typename T>
  std::span<T> keep(std::deque<std::vector<T>>& store, std::vector<T> values) {
    store.push_back(std::move(values));
    return store.back();
  }

  void add_sequence(int index) {
    SequenceStep step;
    step.id = SequenceId(index + 1);
    step.num_logits = 1 + below(4);
    step.num_drafts = step.num_logits - 1;
    step.num_tokens = step.num_logits;
    step.start = below(1'000'000);
    SampleSpec spec;
    spec.temperature = below(4) == 0 ? 0.0f : 0.1f + 2.0f * share();
    if (below(2) == 0) spec.top_p = share();
    if (below(2) == 0) spec.top_k = 1 + below(below(2) == 0 ? 50 : vocab_);
    if (below(3) == 0) spec.min_p = 0.3f * share();
    spec.seed = random_(), spec.choice = static_cast<std::uint32_t>(below(3));
    if (below(2) == 0) spec.num_logprobs = below(21);
    if (below(3) == 0) {
      std::vector<std::pair<TokenId, float>> biases;
      for (int i = below(40); i >= 0; --i) biases.emplace_back(below(vocab_ / 4), 20.0f * share() - 10.0f);
      spec.logit_bias = keep(biases_, std::move(biases));
    }
    if (below(2) == 0) {
      spec.repetition_penalty = below(2) == 0 ? 1.0f : 0.5f + share();
      spec.frequency_penalty = share() - 0.5f, spec.presence_penalty = share() - 0.5f;
      std::vector<TokenId> prompt, output;
      for (int i = below(300); i >= 0; --i) prompt.push_back(below(vocab_));
      for (int i = below(300) + step.num_drafts; i >= 0; --i) output.push_back(below(vocab_ / 8));
      spec.prompt_ids = keep(ids_, std::move(prompt));
      spec.output_ids = keep(ids_, std::move(output));
    }
    const std::int64_t words = ceil_div(vocab_, 32);
    if (below(3) == 0) {
      const bool few = below(2) == 0;
      std::vector<std::uint32_t> mask(static_cast<std::size_t>(words * step.num_logits));
      for (std::uint32_t& word : mask) {
        word = few ? (below(64) == 0 ? 1u << below(32) : 0u) : static_cast<std::uint32_t>(random_());
      }
      spec.allowed = keep(masks_, std::move(mask));
    }
    if (below(6) == 0) {
      std::vector<TokenId> forced;
      for (int i = 0; i < step.num_logits; ++i) forced.push_back(below(2) == 0 ? below(vocab_) : -1);
      spec.forced = keep(ids_, std::move(forced));
    }
    plan_.sequences.push_back(step);
    plan_.samples.push_back(spec);
    num_rows_ += step.num_logits;
  }

  // Ties, values that are no numbers, rows of one value, peaks.
  void make_odd(std::int32_t row) {
    float* values = logits_.data() + std::int64_t{row} * vocab_;
    switch (below(6)) {
      case 0:
        for (std::int32_t id = 0; id < vocab_; ++id) values[id] = static_cast<float>(below(5));
        break;
      case 1:
        values[below(vocab_)] = std::numeric_limits<float>::quiet_NaN();
        values[below(vocab_)] = std::numeric_limits<float>::infinity();
        values[below(vocab_)] = -std::numeric_limits<float>::infinity();
        break;
      case 2:
        for (std::int32_t id = 0; id < vocab_; ++id) values[id] *= 10.0f;
        break;
      default: break;
    }
  }

  std::mt19937_64 random_;
  std::int32_t vocab_;
  StepPlan plan_;
  std::int32_t num_rows_ = 0;
  std::vector<float> logits_;
  std::deque<std::vector<std::pair<TokenId, float>>> biases_;
  std::deque<std::vector<TokenId>> ids_;
  std::deque<std::vector<std::uint32_t>> masks_;
};

}  // namespace fathom
