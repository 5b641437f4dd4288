// What is asked of the engine and what comes back (contract: README.md in this folder).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "ops/sample/sample.h"

namespace fathom {

using RequestId = Id<struct RequestTag, std::int64_t>;  // never reused in a process

// Bounds an answer's tokens: a grammar. One object per choice, used by one thread at a time. Where the
// request has a reasoning part, the constraint begins after it.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Clears the bits of ids that may not come next; `mask` [ceil(vocab / 32)] is all ones at entry. False: all may
  // come, the mask is not looked at. An end-of-sequence id is allowed where the answer may end.
  virtual bool next_mask(std::span<std::uint32_t> mask) = 0;
  // The token came. A failure ends the choice with an error: the constraint fails closed.
  virtual Status accept(TokenId token) = 0;
  // The last num_tokens accepted tokens did not come after all.
  virtual void rollback(std::int32_t num_tokens) = 0;
};

struct SamplingOptions {
  float temperature = 1.0f;                           // >= 0; 0: the most likely token
  float top_p = 1.0f;                                 // (0, 1]
  std::int32_t top_k = 0;                             // 0 and -1: off
  float min_p = 0.0f;                                 // [0, 1]
  float repetition_penalty = 1.0f;                    // > 0
  float frequency_penalty = 0.0f;                     // [-2, 2]
  float presence_penalty = 0.0f;                      // [-2, 2]
  std::vector<std::pair<TokenId, float>> logit_bias;  // [-100, 100] each; ids the model lacks are ignored
  std::optional<std::uint64_t> seed;                  // none: one is drawn and reported in Usage
};

struct Request {
  std::vector<TokenId> prompt;  // 1 token at least, shorter than the context; ids below the vocabulary's size
  SamplingOptions sampling;
  std::int32_t num_choices = 1;           // n
  std::int64_t max_tokens = -1;           // a choice; -1: as many as the context holds; 0: none (prompt logprobs only)
  std::int64_t min_tokens = 0;            // before these, neither EOS nor stop ids come and stop strings do not count
  std::vector<std::string> stop_strings;  // UTF-8, not empty; looked for in the answer, not in reasoning and calls
  bool include_stop_string = false;       // the text ends behind the match instead of before it
  std::vector<TokenId> stop_token_ids;    // end the choice; ids the model lacks are ignored
  bool ignore_eos = false;                // EOS is a token like any other
  bool skip_special_tokens = true;        // tokens marked special give no text
  std::int32_t num_logprobs = -1;         // of output tokens: -1 none, 0 the token's own, k and the k best
  std::int32_t num_prompt_logprobs = -1;  // of prompt tokens, likewise; switches prefix hits off for the request
  std::optional<TokenId> reasoning_end;   // set: the output begins inside reasoning, which this token ends
  std::optional<TokenId> calls_begin;     // set: behind the reasoning, this token begins calls; what stands before it
                                          // of "\n\n<" is their separator, no text of the answer
  std::function<std::unique_ptr<TokenConstraint>()> make_constraint;  // called once a choice; empty: none

  std::int32_t priority = 0;  // higher first; beyond [-8, 8] taken as the bound, so that waiting has an end
  std::string key;            // whose request: shares are fair between keys
  std::string cache_salt;     // prefixes are found among requests of the same salt only
  bool use_prefix_cache = true;
  std::int64_t timeout_us = 0;  // after submit; 0: none

  // Called by the engine thread when a delta came into an empty stream. Must be quick and must not touch the engine
  // or the stream. Never called after ~Stream.
  std::function<void()> on_ready;
};

enum class FinishReason : std::uint8_t {
  kEos,
  kStopToken,
  kStopString,
  kLength,     // max_tokens, or the context or the cache is full
  kCancelled,  // by the client
  kTimeout,    // timeout_us
  kError,      // `error` says why: device fault, constraint that failed
  kShutdown,
};
std::string_view finish_reason_name(FinishReason reason);  // "eos", "stop_token", ...

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;      // of the prompt, found in the prefix cache
  std::int64_t completion_tokens = 0;  // of this choice: all drawn tokens, EOS and stop ids included
  std::int64_t reasoning_tokens = 0;   // of those, up to and with reasoning_end
  std::int64_t drafted_tokens = 0;
  std::int64_t accepted_tokens = 0;
  std::int32_t num_preemptions = 0;
  std::uint64_t seed = 0;
};

// On the engine's clock. first_token_us and admitted_us are 0 where it did not come to that.
struct RequestTimes {
  std::int64_t submitted_us = 0;
  std::int64_t admitted_us = 0;
  std::int64_t first_token_us = 0;
  std::int64_t finished_us = 0;
  // Of its decode steps' time, the share that rows of other requests' prefills took, and whose took the most.
  std::int64_t prefill_stall_us = 0;
  RequestId stalled_by;
};

struct Finish {
  FinishReason reason = FinishReason::kEos;
  std::int32_t stop_string = -1;  // kStopString: index into Request::stop_strings
  TokenId stop_token = -1;        // kStopToken
  Status error;                   // kError, kShutdown
  Usage usage;
  RequestTimes times;
};

struct OutputToken {
  SampledToken sampled;
  bool in_reasoning = false;
};

// A piece of one choice, in order. Tokens come with the text they complete: a token may come before its text (an
// unfinished code point), and neither comes before it is certain that no stop string cuts it off.
struct Delta {
  std::int32_t choice = 0;
  std::int64_t cached_tokens = 0;   // of the prompt, found in the prefix cache: known from the first delta on
  std::vector<OutputToken> tokens;  // the EOS or stop id that ended the choice is the last; it has no text
  std::string text;                 // valid UTF-8; reasoning and markup included, as the detokenizer writes them
  // First delta of choice 0 where asked for: entry i is of prompt token i + 1 (the first token has none).
  std::vector<SampledToken> prompt_logprobs;
  std::optional<Finish> finish;  // last delta of its choice
};

}  // namespace fathom
