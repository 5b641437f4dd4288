#include "ops/sample/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/units.h"
#include "ops/sample/nucleus_weight.h"
#include "ops/sample/philox.h"

namespace fathom {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

// u lies in the middle of 2^32 equal cells, so neither logarithm meets 0 and 1.
double gumbel(std::uint32_t word) {
  const double u = (static_cast<double>(word) + 0.5) * 0x1p-32;
  return -std::log(-std::log(u));
}
// Above gumbel(2^32 - 1) = 33 ln 2 = 22.874: what noise can add at most.
constexpr double kGumbelBound = 22.9;

// What is no number counts as impossible; what overflowed as the largest.
float readable(float logit) {
  if (std::isnan(logit)) return kNone;
  return std::min(logit, std::numeric_limits<float>::max());
}

// The order of top_k, top_p and top logprobs.
struct HigherFirst {
  const float* values;
  bool operator()(std::int32_t a, std::int32_t b) const {
    return values[a] != values[b] ? values[a] > values[b] : a < b;
  }
};

void apply_penalties(const SampleSpec& spec, SampleWorkspace& workspace) {
  const bool repetition = spec.repetition_penalty != 1.0f;
  if (!repetition && spec.frequency_penalty == 0.0f && spec.presence_penalty == 0.0f) return;
  std::vector<float>& values = workspace.values;
  const auto vocab = static_cast<TokenId>(values.size());
  workspace.counts.resize(values.size(), 0);
  constexpr std::int32_t kInPrompt = 1 << 30;
  const auto known = [vocab](TokenId id) { return id >= 0 && id < vocab; };
  if (repetition) {
    for (TokenId id : spec.prompt_ids) {
      if (known(id)) workspace.counts[static_cast<std::size_t>(id)] = kInPrompt;
    }
  }
  for (TokenId id : spec.output_ids) {
    if (known(id)) ++workspace.counts[static_cast<std::size_t>(id)];
  }
  // Each id is treated at its first appearance and its count cleared, so the next call finds zeros.
  const auto apply = [&](TokenId id) {
    if (!known(id) || workspace.counts[static_cast<std::size_t>(id)] == 0) return;
    const std::int32_t count = workspace.counts[static_cast<std::size_t>(id)] & (kInPrompt - 1);
    workspace.counts[static_cast<std::size_t>(id)] = 0;
    float& value = values[static_cast<std::size_t>(id)];
    if (repetition) value = value > 0 ? value / spec.repetition_penalty : value * spec.repetition_penalty;
    if (count > 0) value -= spec.frequency_penalty * static_cast<float>(count) + spec.presence_penalty;
    value = readable(value);
  };
  if (repetition) std::for_each(spec.prompt_ids.begin(), spec.prompt_ids.end(), apply);
  std::for_each(spec.output_ids.begin(), spec.output_ids.end(), apply);
}

void process_logits(std::span<const float> logits, const SampleSpec& spec, SampleWorkspace& workspace) {
  std::vector<float>& values = workspace.values;
  values.resize(logits.size());
  std::transform(logits.begin(), logits.end(), values.begin(), readable);
  if (!spec.allowed.empty()) {
    FATHOM_CHECK(spec.allowed.size() * 32 >= values.size(), "the mask covers the vocabulary");
    for (std::size_t id = 0; id < values.size(); ++id) {
      if ((spec.allowed[id / 32] >> (id % 32) & 1) == 0) values[id] = kNone;
    }
  }
  for (const auto& [id, bias] : spec.logit_bias) {
    if (id >= 0 && static_cast<std::size_t>(id) < values.size()) values[static_cast<std::size_t>(id)] += bias;
  }
  apply_penalties(spec, workspace);
}

// Moves the shortest run of highest ids whose weights reach `share` of the sum of all weights to the front;
// returns its length. Sorts only as far as it must.
std::size_t nucleus(std::vector<std::int32_t>& order, const std::vector<float>& scaled, float share) {
  std::uint64_t total = 0;
  for (std::int32_t id : order) total += nucleus_weight(scaled[static_cast<std::size_t>(id)]);
  const HigherFirst higher{scaled.data()};
  std::uint64_t sum = 0;
  std::size_t sorted = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == sorted) {
      sorted = std::min(order.size(), std::max<std::size_t>(64, 4 * sorted));
      const auto begin = order.begin() + static_cast<std::ptrdiff_t>(i);
      const auto middle = order.begin() + static_cast<std::ptrdiff_t>(sorted);
      if (middle != order.end()) std::nth_element(begin, middle, order.end(), higher);
      std::sort(begin, middle, higher);
    }
    sum += nucleus_weight(scaled[static_cast<std::size_t>(order[i])]);
    if (nucleus_reached(sum, total, share)) return i + 1;
  }
  return order.size();
}

// `order` := ids that the cuts leave, of `scaled` = (processed - highest) / T.
void cut(const SampleSpec& spec, const std::vector<float>& scaled, std::vector<std::int32_t>& order) {
  order.clear();
  for (std::size_t id = 0; id < scaled.size(); ++id) {
    if (scaled[id] != kNone) order.push_back(static_cast<std::int32_t>(id));
  }
  if (spec.top_k > 0 && static_cast<std::size_t>(spec.top_k) < order.size()) {
    const auto middle = order.begin() + spec.top_k;
    std::nth_element(order.begin(), middle, order.end(), HigherFirst{scaled.data()});
    order.erase(middle, order.end());
  }
  if (spec.top_p < 1.0f) order.resize(nucleus(order, scaled, spec.top_p));
  if (spec.min_p > 0.0f) {
    std::erase_if(order, [&](std::int32_t id) {
      return std::exp(static_cast<double>(scaled[static_cast<std::size_t>(id)])) < static_cast<double>(spec.min_p);
    });
  }
}

TokenId draw(std::int64_t position, const SampleSpec& spec, SampleWorkspace& workspace) {
  std::vector<float>& values = workspace.values;
  const auto highest = std::max_element(values.begin(), values.end());  // the first of equals
  if (highest == values.end() || *highest == kNone) return -1;
  const auto best_id = static_cast<TokenId>(highest - values.begin());
  if (spec.temperature == 0.0f) return best_id;

  const float maximum = *highest;
  for (float& value : values) value = value == kNone ? kNone : (value - maximum) / spec.temperature;
  const auto noise = [&](TokenId id) {
    return gumbel(sampling_noise(spec.seed, spec.choice, position, static_cast<std::uint32_t>(id)));
  };
  TokenId winner = best_id;
  double best = noise(best_id);
  const auto consider = [&](TokenId id) {
    const double value = values[static_cast<std::size_t>(id)];
    if (value + kGumbelBound < best || id == best_id) return;
    const double score = value + noise(id);
    if (score > best || (score == best && id < winner)) {
      best = score;
      winner = id;
    }
  };
  if (spec.top_k > 0 || spec.top_p < 1.0f || spec.min_p > 0.0f) {
    cut(spec, values, workspace.order);
    for (std::int32_t id : workspace.order) consider(id);
  } else {
    for (std::size_t id = 0; id < values.size(); ++id) consider(static_cast<TokenId>(id));
  }
  return winner;
}

// log softmax of the raw logits, for the token and the best.
void describe(std::span<const float> logits, std::int32_t num_top, SampleWorkspace& workspace, SampledToken& result) {
  std::vector<float>& values = workspace.values;
  values.resize(logits.size());
  std::transform(logits.begin(), logits.end(), values.begin(), readable);
  const float maximum = *std::max_element(values.begin(), values.end());
  double total = 0;
  for (float value : values) total += std::exp(static_cast<double>(value) - maximum);
  const double log_total = maximum + std::log(total);
  const auto logprob = [&](TokenId id) {
    const float value = values[static_cast<std::size_t>(id)];
    return value == kNone ? kNone : static_cast<float>(value - log_total);
  };
  if (result.token >= 0) result.logprob = logprob(result.token);
  const std::size_t num = std::min(static_cast<std::size_t>(std::max(num_top, 0)), values.size());
  if (num == 0) return;
  std::vector<std::int32_t>& order = workspace.order;
  order.resize(values.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(num), order.end(),
                    HigherFirst{values.data()});
  for (std::size_t i = 0; i < num; ++i) result.top.push_back({order[i], logprob(order[i])});
}

}  // namespace

SampleSpec row_spec(const SampleSpec& spec, std::int32_t row, std::int32_t num_rows, std::int64_t vocab_size) {
  SampleSpec narrow = spec;
  const auto at = static_cast<std::size_t>(row);
  const auto later = static_cast<std::size_t>(num_rows - 1 - row);
  if (!spec.allowed.empty()) {
    const auto words = static_cast<std::size_t>(ceil_div(vocab_size, 32));
    FATHOM_CHECK(spec.allowed.size() == words * static_cast<std::size_t>(num_rows), "one mask for each logits row");
    narrow.allowed = spec.allowed.subspan(at * words, words);
  }
  if (!spec.forced.empty()) {
    FATHOM_CHECK(spec.forced.size() == static_cast<std::size_t>(num_rows), "one forced id for each logits row");
    narrow.forced = spec.forced.subspan(at, 1);
  }
  narrow.output_ids = spec.output_ids.first(spec.output_ids.size() - std::min(spec.output_ids.size(), later));
  return narrow;
}

void sample_token(std::span<const float> logits, std::int64_t position, const SampleSpec& spec,
                  SampleWorkspace& workspace, SampledToken& result) {
  FATHOM_CHECK(!logits.empty(), "a row of logits");
  FATHOM_CHECK(spec.forced.size() <= 1 && spec.temperature >= 0.0f, "the spec of one row");
  result.logprob = 0.0f;
  result.top.clear();
  if (!spec.forced.empty() && spec.forced[0] >= 0) {
    FATHOM_CHECK(static_cast<std::size_t>(spec.forced[0]) < logits.size(), "a forced id inside the vocabulary");
    result.token = spec.forced[0];
  } else {
    process_logits(logits, spec, workspace);
    result.token = draw(position, spec, workspace);
  }
  if (spec.num_logprobs >= 0) describe(logits, spec.num_logprobs, workspace, result);
}

SampledToken sample_token(std::span<const float> logits, std::int64_t position, const SampleSpec& spec,
                          SampleWorkspace& workspace) {
  SampledToken result;
  sample_token(logits, position, spec, workspace, result);
  return result;
}

}  // namespace fathom
