#include "engine/request.h"

#include <cmath>
#include <string>

#include "engine/engine_thread.h"

namespace fathom {

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEos: return "eos";
    case FinishReason::kStopToken: return "stop_token";
    case FinishReason::kStopString: return "stop_string";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kTimeout: return "timeout";
    case FinishReason::kError: return "error";
    case FinishReason::kShutdown: return "shutdown";
  }
  return "unknown";
}

namespace engine_detail {
namespace {

constexpr std::size_t kMaxStopStrings = 64;
constexpr std::size_t kMaxStopBytes = 4096;

Status wrong(const std::string& field, const std::string& message) { return invalid_argument(field + ": " + message); }

Status check_range(const std::string& field, float value, float low, float high, bool low_open = false) {
  // Written so that NaN fails.
  if ((low_open ? value > low : value >= low) && value <= high) return {};
  return wrong(field, "found " + std::to_string(value) + ", expected " + (low_open ? "above " : "at least ") +
                          std::to_string(low) + " and at most " + std::to_string(high));
}

Status check_sampling(const SamplingOptions& sampling) {
  FATHOM_RETURN_IF_ERROR(check_range("temperature", sampling.temperature, 0.0f, 100.0f));
  FATHOM_RETURN_IF_ERROR(check_range("top_p", sampling.top_p, 0.0f, 1.0f, true));
  FATHOM_RETURN_IF_ERROR(check_range("min_p", sampling.min_p, 0.0f, 1.0f));
  FATHOM_RETURN_IF_ERROR(check_range("repetition_penalty", sampling.repetition_penalty, 0.0f, 100.0f, true));
  FATHOM_RETURN_IF_ERROR(check_range("frequency_penalty", sampling.frequency_penalty, -2.0f, 2.0f));
  FATHOM_RETURN_IF_ERROR(check_range("presence_penalty", sampling.presence_penalty, -2.0f, 2.0f));
  if (sampling.top_k < -1) return wrong("top_k", "found " + std::to_string(sampling.top_k) + ", expected -1 or more");
  for (const auto& [id, bias] : sampling.logit_bias) {
    FATHOM_RETURN_IF_ERROR(check_range("logit_bias", bias, -100.0f, 100.0f));
  }
  return {};
}

Status check_logprobs(const std::string& field, std::int32_t num, std::int32_t most) {
  if (num >= -1 && num <= most) return {};
  return wrong(field, "found " + std::to_string(num) + ", expected at most " + std::to_string(most));
}

}  // namespace

Status check_request(const Request& request, const EngineOptions& options, const ExecutorLimits& limits,
                     std::int64_t max_sequence_tokens, bool has_tokenizer) {
  const auto num_prompt = static_cast<std::int64_t>(request.prompt.size());
  if (num_prompt == 0) return wrong("prompt", "found no tokens, expected one at least");
  if (num_prompt >= limits.max_length_tokens) {
    return wrong("prompt", "found " + std::to_string(num_prompt) + " tokens, expected fewer than the context's " +
                               std::to_string(limits.max_length_tokens));
  }
  if (num_prompt >= max_sequence_tokens) {
    return resource_exhausted("the prompt has " + std::to_string(num_prompt) + " tokens, the cache holds fewer than " +
                              std::to_string(max_sequence_tokens) + " of one sequence; give the cache more memory");
  }
  for (TokenId id : request.prompt) {
    if (id < 0 || id >= limits.vocab_size) {
      return wrong("prompt",
                   "found token id " + std::to_string(id) + ", expected 0 to " + std::to_string(limits.vocab_size - 1));
    }
  }
  FATHOM_RETURN_IF_ERROR(check_sampling(request.sampling));
  if (request.num_choices < 1 || request.num_choices > options.max_choices) {
    return wrong(
        "n", "found " + std::to_string(request.num_choices) + ", expected 1 to " + std::to_string(options.max_choices));
  }
  if (request.max_tokens < -1) return wrong("max_tokens", "found " + std::to_string(request.max_tokens));
  if (request.min_tokens < 0 || (request.max_tokens >= 0 && request.min_tokens > request.max_tokens)) {
    return wrong("min_tokens", "found " + std::to_string(request.min_tokens) + ", expected 0 to max_tokens");
  }
  FATHOM_RETURN_IF_ERROR(check_logprobs("logprobs", request.num_logprobs, options.max_logprobs));
  FATHOM_RETURN_IF_ERROR(check_logprobs("prompt_logprobs", request.num_prompt_logprobs, options.max_logprobs));
  if (request.stop_strings.size() > kMaxStopStrings) {
    return wrong("stop", "found " + std::to_string(request.stop_strings.size()) + " strings, expected at most " +
                             std::to_string(kMaxStopStrings));
  }
  if (!has_tokenizer && !request.stop_strings.empty()) return wrong("stop", "there is no tokenizer to find text with");
  for (const std::string& stop : request.stop_strings) {
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      return wrong("stop", "found a string of " + std::to_string(stop.size()) + " bytes, expected 1 to " +
                               std::to_string(kMaxStopBytes));
    }
  }
  if (request.timeout_us < 0) return wrong("timeout", "found a negative time");
  return {};
}

}  // namespace engine_detail
}  // namespace fathom
