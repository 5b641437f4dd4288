// sample: one token from one row of logits (architecture: Pinned 5; spec section 9).
//
//   token = argmax( processed logits / T + Gumbel ),  Gumbel = -log(-log(u)),
//   u from Philox4x32-10(key = seed, counter = (choice, position, vocabulary id))
//   T = 0: plain argmax, ties to the lowest id
//
// "Processed", in this order: mask (grammar, min_tokens), logit_bias, repetition / frequency / presence
// penalties, / T, top_k, top_p, min_p. Noise depends on the request's own seed and place only, so the same
// seed gives the same text in any batch, at any speculation depth.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "ops/registry.h"

namespace fathom {

struct SampleSpec {
  float temperature = 1.0f;         // >= 0
  float top_p = 1.0f;               // (0, 1]; 1 = off
  std::int32_t top_k = 0;           // 0 = off
  float min_p = 0.0f;               // [0, 1]; 0 = off
  float repetition_penalty = 1.0f;  // 1 = off; over prompt and output, each id once
  float frequency_penalty = 0.0f;   // times the id's count in the output
  float presence_penalty = 0.0f;    // once if the id is in the output
  std::uint64_t seed = 0;
  std::uint32_t choice = 0;        // index among n
  std::int32_t num_logprobs = -1;  // -1: none; 0: the sampled token's only; k: and the k best
  std::span<const std::pair<TokenId, float>> logit_bias;
  std::span<const std::uint32_t> allowed;  // bit per id; empty: all allowed
  std::span<const TokenId> prompt_ids;     // for repetition_penalty
  std::span<const TokenId> output_ids;     // for penalties
};

struct TokenLogprob {
  TokenId token = -1;
  float logprob = 0.0f;
};
struct SampledToken {
  TokenId token = -1;
  float logprob = 0.0f;           // log softmax of the logits before temperature and cuts
  std::vector<TokenLogprob> top;  // descending, ties to the lowest id
};

// Scratch reused between calls, so that sampling allocates nothing after warm-up.
struct SampleWorkspace {
  std::vector<float> values;
  std::vector<std::int32_t> order;
};

// `position`: index of the token being drawn in the sequence (prompt included).
// `logits` [vocab] f32 is not changed.
SampledToken sample_token(std::span<const float> logits, std::int64_t position, const SampleSpec& spec,
                          SampleWorkspace& workspace);

}  // namespace fathom
