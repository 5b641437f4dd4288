#include "server/openai_json.h"

#include <cmath>

#include "text/utf8.h"

namespace fathom {

void UsageSum::add(std::size_t prompt, std::size_t choice, const Delta& delta) {
  if (choices_.size() <= choice) choices_.resize(choice + 1);
  Choice& c = choices_[choice];
  c.completion_tokens += static_cast<std::int64_t>(delta.tokens.size());
  for (const OutputToken& token : delta.tokens) c.reasoning_tokens += token.in_reasoning ? 1 : 0;
  Prompt& p = prompts_[prompt];
  // The first choice's: what the others find is what it has computed.
  if (delta.choice == 0) p.cached_tokens = delta.cached_tokens;
  if (!delta.finish) return;
  const Usage& usage = delta.finish->usage;
  c = {usage.completion_tokens, usage.reasoning_tokens};
  p.num_tokens = usage.prompt_tokens;
}

std::int64_t UsageSum::completion_tokens() const {
  std::int64_t sum = 0;
  for (const auto& choice : choices_) sum += choice.completion_tokens;
  return sum;
}

std::int64_t UsageSum::reasoning_tokens() const {
  std::int64_t sum = 0;
  for (const auto& choice : choices_) sum += choice.reasoning_tokens;
  return sum;
}

std::int64_t UsageSum::prompt_tokens() const {
  std::int64_t sum = 0;
  for (const auto& prompt : prompts_) sum += prompt.num_tokens;
  return sum;
}

std::int64_t UsageSum::cached_tokens() const {
  std::int64_t sum = 0;
  for (const auto& prompt : prompts_) sum += prompt.cached_tokens;
  return sum;
}

void write_usage(JsonWriter& json, const UsageSum& usage) {
  json.begin_object();
  json.member("prompt_tokens", usage.prompt_tokens());
  json.member("completion_tokens", usage.completion_tokens());
  json.member("total_tokens", usage.prompt_tokens() + usage.completion_tokens());
  json.key("prompt_tokens_details").begin_object().member("cached_tokens", usage.cached_tokens()).end_object();
  json.key("completion_tokens_details").begin_object();
  json.member("reasoning_tokens", usage.reasoning_tokens()).end_object();
  json.end_object();
}

std::string token_text(const Tokenizer& tokenizer, TokenId id) {
  return replace_invalid_utf8(tokenizer.token_bytes(id));
}

std::string token_key(const Tokenizer& tokenizer, TokenId id) {
  const std::string_view bytes = tokenizer.token_bytes(id);
  if (bytes.empty()) return "id:" + std::to_string(id);
  if (is_valid_utf8(bytes)) return std::string(bytes);
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out = "bytes:";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += "\\x";
    out += kHex[byte >> 4];
    out += kHex[byte & 15];
  }
  return out;
}

double finite_logprob(float logprob) { return std::isfinite(logprob) ? static_cast<double>(logprob) : -9999.0; }

namespace {

void write_token(JsonWriter& json, const Tokenizer& tokenizer, TokenId id, float logprob) {
  json.member("token", token_text(tokenizer, id));
  json.member("logprob", finite_logprob(logprob));
  json.key("bytes").begin_array();
  for (const char c : tokenizer.token_bytes(id)) json.value(static_cast<int>(static_cast<unsigned char>(c)));
  json.end_array();
}

}  // namespace

void append_chat_logprobs(const Tokenizer& tokenizer, std::span<const OutputToken> tokens, std::string& out) {
  for (const OutputToken& token : tokens) {
    if (!out.empty()) out += ',';
    std::string entry;
    JsonWriter json(entry);
    json.begin_object();
    write_token(json, tokenizer, token.sampled.token, token.sampled.logprob);
    json.key("top_logprobs").begin_array();
    for (const TokenLogprob& top : token.sampled.top) {
      json.begin_object();
      write_token(json, tokenizer, top.token, top.logprob);
      json.end_object();
    }
    json.end_array().end_object();
    out += entry;
  }
}

}  // namespace fathom
