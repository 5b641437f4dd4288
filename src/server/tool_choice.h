// The tools of a chat request, and what makes the answer call one of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/request_fields.h"
#include "text/tokenizer.h"

namespace fathom {

struct OfferedTool {
  std::string name;
  std::string parameters;  // its schema as JSON; empty: any object
  bool strict = false;     // arguments must fit the schema
};

// More than any client offers; reading them, and looking for one among them, stays cheap.
inline constexpr std::size_t kMostTools = 4096;
// Of `list`, which may be null: whether there are at most so many, or `fields` says that there are not.
bool are_few(RequestFields& fields, const JsonValue* list, const std::string& where);

struct ToolFields {
  enum class Choice { kNone, kAuto, kRequired, kNamed };
  std::vector<OfferedTool> offered;
  Choice choice = Choice::kAuto;
  std::string named;                 // kNamed
  bool is_narrowed = false;          // some tools may not be called: the model sees them, `offered` lacks them
  bool parallel = true;              // more than one call may come
  const JsonValue* tools = nullptr;  // for the prompt; null where the model is not to see any
};

// tools, tool_choice, parallel_tool_calls. With choice none the tools stay out of the prompt. `strict` of a tool is
// refused unless `strict_is_offered`: without masks nothing can promise it. `places`: where each tool stood in a body
// of another API, whose tools have no member "function", for errors.
ToolFields read_tools(RequestFields& fields, bool strict_is_offered, const std::vector<std::string>& places = {});

// Required and named calls where there are no grammars: the answer (after the reasoning) must begin with the markup of
// a call of one of `names`, up to and with the name; from there the model writes freely.
std::function<std::unique_ptr<TokenConstraint>()> make_call_constraint(const Tokenizer& tokenizer,
                                                                       const std::vector<std::string>& names);

}  // namespace fathom
