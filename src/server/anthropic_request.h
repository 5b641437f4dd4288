// A body of Anthropic's Messages API, as the chat that the encoder knows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/chat_prompt.h"
#include "server/request_fields.h"
#include "server/server_options.h"

namespace fathom {

struct AnthropicRequest {
  bool stream = false;
  ThinkingFields thinking;
  ToolFields tools;
  CallMarkup markup = CallMarkup::kText;
  Request request;
};

// Reads, renders and tokenises. `for_counting`: /v1/messages/count_tokens, where max_tokens may be missing.
//
// - system: a string or text blocks, at the head or among the messages (chat_prompt.h says what it is there), where
//   clear_at is heeded, tools that are added by definition are offered, and nothing is withdrawn. Content: a string, or
//   blocks text, thinking, redacted_thinking (dropped),
// tool_use,
//   tool_result. Images and documents are refused; inside tool results they become "[Unsupported TYPE]", as the encoder
//   has it.
// - thinking: enabled, adaptive, disabled, between_tools (off too); display omitted leaves the
//   text to the block's signature; where a request says
// nothing the API's own default holds: no thinking.
//   budget_tokens, which enabled must have, means an effort: up to 4,096 low, up to 16,384 high, above max.
// - stop_sequences, top_k, top_p, temperature (0 to 1 there, up to 2 here), tool_choice auto, any, tool, none,
//   disable_parallel_tool_use. Server-side tools (web_search, ...) are refused.
// - output_config.format (or output_format) with a JSON schema, strict tools: by grammar.
std::optional<AnthropicRequest> read_anthropic(const JsonValue& body, const ServerOptions& options,
                                               const ServedModel& model, bool for_counting, ApiError& error);

}  // namespace fathom
