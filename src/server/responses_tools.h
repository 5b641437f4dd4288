// `tools` and `tool_choice` of /v1/responses.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "server/request_fields.h"
#include "text/json_value.h"

namespace fathom {

// The one parameter of a custom tool, as the model sees it.
inline constexpr std::string_view kCustomParameter = "input";

struct ResponsesTools {
  JsonValue body;                       // tools, tool_choice, parallel_tool_calls in the form of chat
  std::vector<std::string> places;      // of the tools of `body`, for errors
  std::vector<std::string> ignored;     // the types of tools that only other servers have, each once
  std::set<std::string> custom;         // names of custom tools: functions of one text
  std::vector<std::string> unenforced;  // of those, whose grammar the model is shown and not held to
};

// Tools that only OpenAI's servers have (web_search, ...) are left out: agents send them with every request; who
// demands one by tool_choice is refused. A custom tool's input is held to its grammar where that is a regex, and shown
// its grammar where it is Lark's. A failure is in `fields`.
ResponsesTools translate_responses_tools(RequestFields& fields, bool strict_is_offered);

}  // namespace fathom
