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
  // While choices run: tokens as they come.
  void add_tokens(std::int64_t num_tokens, std::int64_t num_reasoning) {
    completion_tokens_ += num_tokens;
    reasoning_tokens_ += num_reasoning;
  }
  void add_finish(std::size_t prompt, const Finish& finish);

  std::int64_t prompt_tokens() const;
  std::int64_t cached_tokens() const;
  std::int64_t completion_tokens() const { return completion_tokens_; }
  std::int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  struct Prompt {
    std::int64_t num_tokens = 0;
    std::int64_t cached_tokens = 0;
  };
  std::vector<Prompt> prompts_;
  std::int64_t completion_tokens_ = 0, reasoning_tokens_ = 0;
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
