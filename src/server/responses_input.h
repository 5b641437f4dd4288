// `input` of /v1/responses: items, as the messages of a chat.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/deferred_tools.h"
#include "server/request_fields.h"
#include "text/json_value.h"

namespace fathom {

struct ResponsesInput {
  JsonValue messages;
  std::vector<std::string> ignored;  // the types of items that say nothing here, each once
};

// `instructions` come first, as a system message. A failure is in `fields`.
//
// Calls of tools that the client runs (functions, custom tools, shell, patches, a computer) and their outputs are calls
// and results, whatever their tool. What another server's own tools did (mcp, code interpreter, file search) is a call
// and its result, where the item holds the result; else it says nothing. Reasoning that another server encrypted
// neither. What stands on a server (item_reference, compaction) is refused.
// Tools that come up among the items are told of there.
ResponsesInput read_responses_input(RequestFields& fields, const std::optional<std::string>& instructions,
                                    DeferredTools& tools, const JsonValue& input);

}  // namespace fathom
