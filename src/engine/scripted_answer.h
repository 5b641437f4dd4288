// For tests: requests against a scripted executor and the answers they must get, computed token by token without an
// engine.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/scripted_executor.h"

namespace fathom {

// What the executor's model answers to `prompt`, EOS included where it ends the answer.
inline std::vector<TokenId> scripted_answer(const ScriptedOptions& options, const std::vector<TokenId>& prompt,
                                            const SamplingOptions& sampling, std::int64_t max_tokens,
                                            std::uint32_t choice = 0) {
  ScriptedOptions small = options;
  small.limits.num_context_blocks = small.limits.num_window_blocks = small.limits.num_state_slots =
      small.limits.num_resume_slots = 0;
  const ScriptedExecutor model(small);
  std::vector<TokenId> context = prompt;
  std::vector<float> logits;
  SampleWorkspace workspace;
  SampleSpec spec;
  spec.temperature = sampling.temperature;
  spec.top_p = sampling.top_p;
  spec.top_k = std::max(0, sampling.top_k);
  spec.min_p = sampling.min_p;
  spec.repetition_penalty = sampling.repetition_penalty;
  spec.frequency_penalty = sampling.frequency_penalty;
  spec.presence_penalty = sampling.presence_penalty;
  spec.logit_bias = sampling.logit_bias;
  spec.seed = sampling.seed.value_or(0);
  spec.choice = choice;
  for (std::int64_t i = 0; i < max_tokens; ++i) {
    model.logits_after(context, logits);
    spec.prompt_ids = prompt;
    const std::vector<TokenId> output(context.begin() + static_cast<std::ptrdiff_t>(prompt.size()), context.end());
    spec.output_ids = output;
    context.push_back(sample_token(logits, static_cast<std::int64_t>(context.size()), spec, workspace).token);
    if (context.back() == options.eos_id) break;
  }
  return {context.begin() + static_cast<std::ptrdiff_t>(prompt.size()), context.end()};
}

// One choice as its deltas add up.
struct CollectedChoice {
  std::vector<TokenId> tokens;
  std::vector<OutputToken> details;
  std::string text;
  std::vector<SampledToken> prompt_logprobs;
  std::optional<Finish> finish;
  std::vector<std::int64_t> cached_tokens;  // as each delta tells them
  int num_deltas = 0;
};

inline void collect(std::vector<Delta> deltas, std::map<std::int32_t, CollectedChoice>& choices) {
  for (Delta& delta : deltas) {
    CollectedChoice& choice = choices[delta.choice];
    for (OutputToken& token : delta.tokens) {
      choice.tokens.push_back(token.sampled.token);
      choice.details.push_back(std::move(token));
    }
    choice.text += delta.text;
    choice.cached_tokens.push_back(delta.cached_tokens);
    if (!delta.prompt_logprobs.empty()) choice.prompt_logprobs = std::move(delta.prompt_logprobs);
    if (delta.finish) choice.finish = std::move(delta.finish);
    ++choice.num_deltas;
  }
}

// Reads until the end; gives up after `limit`, then a choice has no finish.
inline std::map<std::int32_t, CollectedChoice> read_all(Stream& stream,
                                                        std::chrono::seconds limit = std::chrono::seconds(300)) {
  std::map<std::int32_t, CollectedChoice> choices;
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!stream.finished() && std::chrono::steady_clock::now() < end) {
    collect(stream.wait(std::chrono::milliseconds(200)), choices);
  }
  return choices;
}

// `length` ids that depend on `seed`; two prompts of different seeds share the first `shared` ids.
inline std::vector<TokenId> scripted_prompt(std::uint64_t seed, std::int64_t length, std::int64_t shared = 0,
                                            TokenId vocab_size = 512) {
  std::vector<TokenId> prompt;
  std::uint64_t state = 0x1234;
  for (std::int64_t i = 0; i < length; ++i) {
    if (i == shared) state ^= seed * 0x9E3779B97F4A7C15;
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    prompt.push_back(2 + static_cast<TokenId>((state >> 33) % static_cast<std::uint64_t>(vocab_size - 2)));
  }
  return prompt;
}

}  // namespace fathom
