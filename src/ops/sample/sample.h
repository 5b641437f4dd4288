// sample: one token from one row of logits (architecture: Pinned 5; spec section 9).
//
//   token = argmax( processed logits / T + Gumbel ),  Gumbel = -log(-log(u)),
//   u from Philox4x32-10(key = seed, counter = (choice, position, vocabulary id))
//   T = 0: plain argmax, ties to the lowest id
//
// "Processed", in this order: mask (grammar, min_tokens), logit_bias, repetition / frequency / presence
// penalties, / T, top_k, top_p, min_p. Noise depends on the request's own seed and place only, so the same
// seed gives the same text in any batch, at any speculation depth.
//
//   repetition  l > 0: l / r, else l * r      frequency  l - f * count      presence  l - p
//   top_k       the k highest, ties to the lowest id
//   top_p       over softmax of what top_k left, highest first, ties to the lowest id: the shortest run whose
//               sum reaches top_p; the token that crosses is in, so at least one is. Weights are integers
//               (nucleus_weight.h): sums know no order
//   min_p       of that, tokens with at least min_p times the highest probability
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
  std::span<const TokenId> prompt_ids;  // for repetition_penalty
  // One spec serves all logits rows of a sequence; row_spec() narrows it to one of them.
  std::span<const std::uint32_t> allowed;  // [rows, ceil(vocab / 32)] a bit per id; empty: all allowed
  std::span<const TokenId> output_ids;     // for penalties; ends with the drafts, row i sees those before it
  std::span<const TokenId> forced;         // [rows] or empty; an id >= 0 is not drawn, but given, for its logprob
};

struct TokenLogprob {
  TokenId token = -1;
  float logprob = 0.0f;
};
struct SampledToken {
  TokenId token = -1;             // -1: no id is allowed, or the logits hold no number
  float logprob = 0.0f;           // log softmax of the logits before temperature and cuts
  std::vector<TokenLogprob> top;  // descending, ties to the lowest id
};

// Scratch reused between calls, so that sampling allocates nothing after warm-up (`top` of the result apart,
// which is the caller's).
struct SampleWorkspace {
  std::vector<float> values;         // [vocab] processed logits
  std::vector<std::int32_t> order;   // ids that cuts left
  std::vector<std::int32_t> counts;  // [vocab], zero between calls
};

// The spec of logits row `row` of `num_rows`.
SampleSpec row_spec(const SampleSpec& spec, std::int32_t row, std::int32_t num_rows, std::int64_t vocab_size);

// `position`: index of the token being drawn in the sequence (prompt included): the row's position + 1.
// `logits` [vocab] f32 is not changed. `spec` is of one row: a forced id, if any, is returned unseen.
void sample_token(std::span<const float> logits, std::int64_t position, const SampleSpec& spec,
                  SampleWorkspace& workspace, SampledToken& result);
SampledToken sample_token(std::span<const float> logits, std::int64_t position, const SampleSpec& spec,
                          SampleWorkspace& workspace);

}  // namespace fathom
