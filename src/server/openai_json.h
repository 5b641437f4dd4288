// Pieces of JSON that OpenAI's routes share: usage and log probabilities.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/json_writer.h"
#include "text/tokenizer.h"

namespace fathom {

// Usage of a whole HTTP request: prompts counted once each, completions of all choices together.
class UsageSum {
 public:
  explicit UsageSum(std::size_t num_prompts) : prompts_(num_prompts) {}

  void set_prompt(std::size_t prompt, std::int64_t num_tokens) { prompts_[prompt].num_tokens = num_tokens; }
  // A delta of the choice with this index over all prompts. The engine's own count, which comes with the finish, takes
  // the place of what was counted before: it includes tokens that a stop string cut off. Cached tokens are known from
  // the first delta on.
  void add(std::size_t prompt, std::size_t choice, const Delta& delta);

  std::int64_t prompt_tokens() const;
  std::int64_t cached_tokens() const;
  std::int64_t completion_tokens() const;
  std::int64_t reasoning_tokens() const;

 private:
  struct Prompt {
    std::int64_t num_tokens = 0;
    std::int64_t cached_tokens = 0;
  };
  struct Choice {
    std::int64_t completion_tokens = 0;
    std::int64_t reasoning_tokens = 0;
  };
  std::vector<Prompt> prompts_;
  std::vector<Choice> choices_;
};

// {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details"}
void write_usage(JsonWriter& json, const UsageSum& usage);

// What a token reads as: its bytes where they are UTF-8 by themselves, with U+FFFD else.
std::string token_text(const Tokenizer& tokenizer, TokenId id);
// As a key among others, so ids stay apart: bytes that are no UTF-8 are spelled "bytes:\xE4\xBD".
std::string token_key(const Tokenizer& tokenizer, TokenId id);
// Log probabilities of zero probability have no number in JSON.
double finite_logprob(float logprob);

// The entries of chat's logprobs.content (and of refusal), one per token, comma-separated, without brackets.
void append_chat_logprobs(const Tokenizer& tokenizer, std::span<const OutputToken> tokens, std::string& out);

}  // namespace fathom
