// `tools` and `tool_choice` of /v1/responses.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/request_fields.h"
#include "text/json_value.h"

namespace fathom {

// The one parameter of a custom tool, as the model sees it.
inline constexpr std::string_view kCustomParameter = "input";
// The client's search for tools, as the model sees it, and the type of its tool.
inline constexpr std::string_view kSearchTool = "tool_search";

enum class ToolKind {
  kFunction,
  kCustom,  // called with one text
  kSearch,  // the client's search for more tools
};

// What a call by the model's name is to the client.
struct CallTarget {
  std::string name;
  std::string name_space;  // empty: none
  ToolKind kind = ToolKind::kFunction;
};

struct ResponsesTools {
  JsonValue body;                             // tools, tool_choice, parallel_tool_calls in the form of chat
  std::vector<std::string> places;            // of the tools of `body`, for errors
  std::vector<std::string> ignored;           // the types of tools that only other servers have, each once
  std::map<std::string, CallTarget> targets;  // by the model's names
  std::set<std::string> deferred;             // names of tools that come up among the items only
  std::vector<std::string> unenforced;        // of those, whose grammar the model is shown and not held to
};

// The name of a namespace's tool as the model sees it.
std::string name_for_model(const std::string& name_space, const std::string& name);

// The names that the model knows the tools of an array by.
std::vector<std::string> names_for_model(const JsonValue& tools);

// Tools that only OpenAI's servers have (web_search, ...) are left out: agents send them with every request; who
// demands one by tool_choice is refused. A namespace holds tools that the client runs (agents send those of an MCP
// server so): each is offered under a name with the namespace's. A custom tool's input is held to its grammar where
// that is a regex, and shown its grammar where it is Lark's. A tool_search that the client executes is a function; what
// it found stands in `input` (tool_search_output, and additional_tools) and may be called too. A failure is in
// `fields`.
ResponsesTools translate_responses_tools(RequestFields& fields, bool strict_is_offered);

}  // namespace fathom
