// From the messages of a chat, of whichever API, to the engine's prompt.
#pragma once

#include <optional>
#include <string>

#include "server/request_fields.h"
#include "server/server_options.h"
#include "server/tool_choice.h"
#include "text/chat_encoding.h"
#include "text/chat_messages.h"
#include "text/json_value.h"
#include "text/output_parser.h"

namespace fathom {

struct ThinkingFields {
  bool thinking = true;
  ReasoningEffort effort = ReasoningEffort::kDefault;
  bool drop_thinking = true;  // of earlier turns
  bool show_reasoning = true;
};

// thinking {type}, reasoning_effort, chat_template_kwargs {thinking, enable_thinking, reasoning_effort, drop_thinking},
// include_reasoning; else the server's default. Effort none is no thinking; minimal, low, medium are low.
ThinkingFields read_thinking(RequestFields& fields, const ServerOptions& options);
// An effort's name by the same rule. False: unknown.
bool apply_effort(std::string_view name, ThinkingFields& thinking);

// read_chat of what a client sent. OpenAI's clients say developer for system; the encoder's developer is another thing,
// a turn of the user's that later turns drop. System messages that an answer follows are the user's, but for the first.
Result<ChatConversation> read_client_chat(const JsonValue& messages, const JsonValue* tools);

// Calls in an answer are calls where the model was shown tools; elsewhere nobody waits for them, and they are text.
CallMarkup call_markup(const ChatConversation& conversation);

// Renders and tokenises into request.prompt, sets reasoning_end where the answer begins inside reasoning, forbids or
// demands calls as `tools` says, and holds the prompt against the context. A conversation that ends with an assistant
// message is continued there. `param` names the messages in errors.
std::optional<ApiError> build_chat_prompt(const ServedModel& model, const ChatConversation& conversation,
                                          const ThinkingFields& thinking, const ToolFields& tools,
                                          std::string_view param, Request& request);

}  // namespace fathom
