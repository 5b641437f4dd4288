// Chat messages as clients send them (OpenAI's form plus the vendor's extra keys), read into types.
//
// Rules where clients differ:
// - content may be a string, null or missing (both are empty), or an array of parts. Text parts ({"type": "text",
// "text": ...}
//   or bare strings) are joined by a blank line, as the encoder joins blocks. Other parts are an error that names
//   them, except in tool results, where the encoder's own rule holds: "[Unsupported TYPE]".
// - Tool-call arguments may be a string or an object; an object becomes the JSON text that Python would print.
// - A lone surrogate ("\ud83d") is an error: it is no text.
// - `reasoning` is read as reasoning_content when that is absent. `prefix: true` means wo_eos. Unknown keys are
// ignored.
//
// Every message of a failure starts with the field, then a colon: "messages[2].content: found a number, expected ...".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/json_value.h"

namespace fathom {

enum class Role { kSystem, kUser, kAssistant, kTool, kLatestReminder, kDeveloper };

// Quick tasks of the vendor's search pipeline; rendered as one token after the message (spec 8.3).
enum class Task { kAction, kQuery, kAuthority, kDomain, kTitle, kReadUrl };

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text, or what a client sent in its place
  bool complete = true;   // false: the answer ended inside the call (output_parser.h)
  bool operator==(const ToolCall&) const = default;
};

struct ChatMessage {
  Role role = Role::kUser;
  std::string content;
  std::string reasoning_content;             // assistant
  std::vector<ToolCall> tool_calls;          // assistant
  std::string tool_call_id;                  // tool
  std::vector<JsonValue> tools;              // system, developer: the `function` objects
  std::optional<JsonValue> response_format;  // system, developer
  std::optional<Task> task;
  bool wo_eos = false;  // assistant: the answer goes on from here
};

struct ChatConversation {
  std::vector<ChatMessage> messages;  // not empty
  int num_inserted = 0;               // messages in front that the client did not send (an empty system message)
};

// {"messages": [...], "tools": [...]} or the bare array of messages.
Result<ChatConversation> parse_chat(std::string_view json);
// The same from parsed values. `tools` may be null, absent or empty; it is attached to a leading system or developer
// message; where there is none an empty system message is put in front (spec 8.3).
Result<ChatConversation> read_chat(const JsonValue& messages, const JsonValue* tools);

std::string_view role_name(Role role);

}  // namespace fathom
