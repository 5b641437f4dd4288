#include "server/responses_input.h"

#include <algorithm>
#include <array>
#include <utility>

#include "server/json_build.h"
#include "server/responses_tools.h"

namespace fathom {
namespace {

using Kind = JsonValue::Kind;

// A built-in tool that the client runs: the model's call of it, as a call of `tool` with what the item's `member` (or
// `list`) says. Its output is another item.
struct ClientCall {
  const char* type;
  const char* tool;
  const char* member;
  const char* list;
};
constexpr std::array kClientCalls{ClientCall{"local_shell_call", "local_shell", "action", nullptr},
                                  ClientCall{"shell_call", "shell", "action", nullptr},
                                  ClientCall{"apply_patch_call", "apply_patch", "operation", nullptr},
                                  ClientCall{"computer_call", "computer", "action", "actions"}};

// A tool that a server ran: call and result in one item. tool null: the item's name.
struct HostedCall {
  const char* type;
  const char* tool;
  const char* argument;
  const char* result;
};
constexpr std::array kHostedCalls{HostedCall{"mcp_call", nullptr, "arguments", "output"},
                                  HostedCall{"code_interpreter_call", "code_interpreter", "code", "outputs"},
                                  HostedCall{"file_search_call", "file_search", "queries", "results"}};

// What these found or made is not in them, or not as text.
constexpr std::array<std::string_view, 5> kSaysNothing{"web_search_call", "image_generation_call", "mcp_list_tools",
                                                       "mcp_approval_request", "mcp_approval_response"};

template <typename Table>
auto find_type(const Table& table, std::string_view type) -> const typename Table::value_type* {
  const auto found = std::find_if(table.begin(), table.end(), [&](const auto& entry) { return entry.type == type; });
  return found != table.end() ? &*found : nullptr;
}

bool is_client_output(std::string_view type) {
  constexpr std::string_view kOutput = "_output";
  return type.ends_with(kOutput) && find_type(kClientCalls, type.substr(0, type.size() - kOutput.size())) != nullptr;
}

// Items of `input`, as the messages of a chat. Reasoning and calls belong to the assistant message that they stand
// beside; one is put together from neighbours.
class InputReader {
 public:
  InputReader(RequestFields& fields, DeferredTools& tools) : fields_(fields), tools_(tools) {}

  ResponsesInput read(const JsonValue& input) {
    if (input.is(Kind::kString)) {
      add("user", json_string(input.text));
    } else if (input.is(Kind::kArray)) {
      for (std::size_t i = 0; i < input.items.size() && !fields_.failed(); ++i) {
        read_item(input.items[i], "input[" + std::to_string(i) + "]");
      }
      flush_assistant();
    } else {
      fields_.fail("input", found_expected(input, "a string or an array of items"));
    }
    if (!fields_.failed() && messages_.items.empty()) fields_.fail("input", "found no item");
    return {std::move(messages_), std::move(ignored_)};
  }
  void add(const std::string& role, JsonValue content) {
    flush_assistant();
    JsonValue message = json_object();
    json_set(message, "role", json_string(role));
    json_set(message, "content", std::move(content));
    messages_.items.push_back(std::move(message));
  }

 private:
  void read_item(const JsonValue& item, const std::string& where) {
    if (!item.is(Kind::kObject)) return fields_.fail(where, found_expected(item, "an object"));
    std::string type = json_text_of(item.find("type"));
    if (type.empty() && item.find("role") != nullptr) type = "message";
    if (type == "message") {
      read_message(item, where);
    } else if (type == "reasoning") {
      read_reasoning(item);
    } else if (type == "function_call") {
      read_call(item, where, "arguments");
    } else if (type == "custom_tool_call") {
      read_call(item, where, kCustomParameter);
    } else if (type == "function_call_output" || type == "custom_tool_call_output") {
      read_output(item, where);
    } else if (const ClientCall* made = find_type(kClientCalls, type)) {
      read_client_call(item, where, *made);
    } else if (is_client_output(type)) {
      read_client_output(item, where);
    } else if (const HostedCall* done = find_type(kHostedCalls, type)) {
      read_hosted(item, where, *done);
    } else if (type == "tool_search_call" || type == "tool_search_output") {
      read_search(item, type, where);
    } else if (type == "additional_tools") {
      const std::string told = tools_.text_of(names_for_model(*item.find("tools")));
      if (!told.empty()) add("system", json_string(told));
    } else if (std::find(kSaysNothing.begin(), kSaysNothing.end(), type) != kSaysNothing.end()) {
      ignore(type);
    } else {
      refuse_type(item, type, where);
    }
  }

  void refuse_type(const JsonValue& item, const std::string& type, const std::string& where) {
    std::string reason = "found \"" + type + "\", expected message, reasoning, function_call, custom_tool_call, the " +
                         "output of one, or a call of a built-in tool";
    if (type == "item_reference" || (type.empty() && item.find("id") != nullptr)) {
      reason = "items are not stored here: send the item itself instead of a reference to it";
    } else if (type == "compaction" || type == "compaction_summary" || type == "context_compaction") {
      reason = "what another server has compacted cannot be read here: send the items themselves";
    }
    fields_.fail(where + ".type", std::move(reason));
  }

  void ignore(const std::string& type) {
    if (std::find(ignored_.begin(), ignored_.end(), type) == ignored_.end()) ignored_.push_back(type);
  }

  void read_message(const JsonValue& item, const std::string& where) {
    std::string role = json_text_of(item.find("role"));
    if (role == "developer") role = "system";  // OpenAI's name for it; the encoder's developer is another thing
    if (role != "user" && role != "assistant" && role != "system") {
      return fields_.fail(where + ".role", "found \"" + role + "\", expected user, assistant, system or developer");
    }
    JsonValue parts = json_array();
    const JsonValue* content = item.find("content");
    if (content != nullptr && content->is(Kind::kString)) {
      parts.items.push_back(json_text_part(content->text));
    } else if (content != nullptr && content->is(Kind::kArray)) {
      for (std::size_t i = 0; i < content->items.size(); ++i) {
        const JsonValue& part = content->items[i];
        const std::string at = where + ".content[" + std::to_string(i) + "].";
        const std::string type = json_text_of(part.find("type"));
        if (type != "input_text" && type != "output_text" && type != "text" && type != "refusal") {
          return fields_.fail(at + "type", "found \"" + type + "\", expected input_text or output_text");
        }
        const std::string key = type == "refusal" ? "refusal" : "text";
        const JsonValue* text = part.find(key);
        if (text == nullptr || !text->is(Kind::kString)) return fields_.fail(at + key, "expected a string");
        parts.items.push_back(json_text_part(text->text));
      }
    } else if (content != nullptr && !content->is(Kind::kNull)) {
      return fields_.fail(where + ".content", found_expected(*content, "a string or an array of parts"));
    }
    if (role != "assistant") return add(role, std::move(parts));
    // Text after calls is another turn.
    if (!calls_.items.empty() || has_text_) flush_assistant();
    open_ = has_text_ = true;
    text_ = std::move(parts);
  }

  void read_reasoning(const JsonValue& item) {
    if (has_text_ || !calls_.items.empty()) flush_assistant();
    for (const char* key : {"content", "summary"}) {
      const JsonValue* parts = item.find(key);
      if (parts == nullptr || !parts->is(Kind::kArray) || parts->items.empty()) continue;
      open_ = true;
      for (const JsonValue& part : parts->items) reasoning_ += json_text_of(part.find("text"));
      return;
    }
    if (!json_text_of(item.find("encrypted_content")).empty()) ignore("reasoning");
  }

  void add_call(const std::string& name, const std::string& call_id, JsonValue arguments) {
    JsonValue function = json_object();
    json_set(function, "name", json_string(name));
    json_set(function, "arguments", std::move(arguments));
    JsonValue call = json_object();
    json_set(call, "id", json_string(call_id));
    json_set(call, "type", json_string("function"));
    json_set(call, "function", std::move(function));
    open_ = true;
    calls_.items.push_back(std::move(call));
  }

  void add_result(const std::string& call_id, JsonValue content) {
    add("tool", std::move(content));
    json_set(messages_.items.back(), "tool_call_id", json_string(call_id));
  }

  // `key`: "arguments", JSON of an object; or a custom tool's "input", any text.
  void read_call(const JsonValue& item, const std::string& where, std::string_view key) {
    RequestFields sent(item, where + ".");
    const auto name = sent.string("name");
    const auto name_space = sent.string("namespace");
    const auto call_id = sent.string("call_id");
    if (!sent.failed() && (!name || name->empty())) sent.fail("name", "expected a name");
    JsonValue arguments = json_object();
    if (key == kCustomParameter) {
      const auto input = sent.string(key);
      if (!sent.failed() && !input) sent.fail(key, "found none, expected a string");
      json_set(arguments, std::string(key), json_string(input.value_or("")));
    } else if (const JsonValue* found = sent.find(key)) {
      if (!is_arguments(*found)) sent.fail(key, found_expected(*found, "the JSON text of an object"));
      arguments = *found;
    }
    fields_.absorb(sent);
    if (fields_.failed()) return;
    add_call(name_for_model(name_space.value_or(""), *name), call_id.value_or(""), std::move(arguments));
  }

  // An object, or text that the model may have left unfinished; not the JSON text of something else.
  static bool is_arguments(const JsonValue& arguments) {
    if (!arguments.is(Kind::kString)) return arguments.is(Kind::kObject);
    const auto parsed = parse_json(arguments.text);
    return !parsed.ok() || parsed->is(Kind::kObject);
  }

  void read_output(const JsonValue& item, const std::string& where) {
    RequestFields sent(item, where + ".");
    const auto call_id = sent.string("call_id");
    fields_.absorb(sent);
    const JsonValue* output = sent.find("output");
    if (output == nullptr || !(output->is(Kind::kString) || output->is(Kind::kArray))) {
      return fields_.fail(where + ".output", "expected a string or an array of parts");
    }
    for (std::size_t i = 0; i < output->items.size(); ++i) {
      const JsonValue* type = output->items[i].find("type");
      const JsonValue* text = output->items[i].find("text");
      const bool is_text =
          json_text_of(type) == "input_text" || json_text_of(type) == "output_text" || json_text_of(type) == "text";
      if (json_text_of(type).empty() || (is_text && (text == nullptr || !text->is(Kind::kString)))) {
        return fields_.fail(where + ".output[" + std::to_string(i) + "]", "expected a part, with text where it is one");
      }
    }
    add_result(call_id.value_or(""), *output);
  }

  void read_client_call(const JsonValue& item, const std::string& where, const ClientCall& made) {
    RequestFields sent(item, where + ".");
    const auto call_id = sent.string("call_id");
    const JsonValue* does = sent.object(made.member);
    const bool is_list = does == nullptr && made.list != nullptr && sent.array(made.list) != nullptr;
    if (!sent.failed() && does == nullptr && !is_list) sent.fail(made.member, "found none, expected an object");
    fields_.absorb(sent);
    if (fields_.failed()) return;
    JsonValue arguments = json_object();
    json_set(arguments, is_list ? made.list : made.member, is_list ? *sent.find(made.list) : *does);
    add_call(made.tool, call_id.value_or(""), std::move(arguments));
  }

  // Text as it stands, a picture as a part that cannot be shown, else the JSON of what came out.
  void read_client_output(const JsonValue& item, const std::string& where) {
    RequestFields sent(item, where + ".");
    const auto call_id = sent.string("call_id");
    const auto id = sent.string("id");  // shell's first form has the call's id here
    const auto status = sent.string("status");
    const JsonValue* output = sent.find("output");
    const bool is_known =
        output == nullptr || output->is(Kind::kString) || output->is(Kind::kArray) || output->is(Kind::kObject);
    if (!is_known) sent.fail("output", found_expected(*output, "a string, an array or an object"));
    if (!sent.failed() && output == nullptr && !status) sent.fail("output", "found none");
    fields_.absorb(sent);
    if (fields_.failed()) return;
    JsonValue content = output != nullptr ? *output : json_string(*status);
    if (content.is(Kind::kObject) && !json_text_of(content.find("type")).empty()) {
      JsonValue parts = json_array();
      parts.items.push_back(std::move(content));
      content = std::move(parts);
    } else if (!content.is(Kind::kString)) {
      content = json_string(dump_python_json(content));
    }
    add_result(call_id.value_or(id.value_or("")), std::move(content));
  }

  // The client's search and what it found.
  void read_search(const JsonValue& item, const std::string& type, const std::string& where) {
    RequestFields sent(item, where + ".");
    const auto call_id = sent.string("call_id");
    const auto execution = sent.string("execution");
    const JsonValue* arguments = sent.find("arguments");
    if (arguments != nullptr && !is_arguments(*arguments)) {
      sent.fail("arguments", found_expected(*arguments, "an object"));
    }
    fields_.absorb(sent);
    if (fields_.failed()) return;
    if (execution.value_or("client") != "client") return ignore(type);
    if (type == "tool_search_call") {
      return add_call(std::string(kSearchTool), call_id.value_or(""),
                      arguments != nullptr ? *arguments : json_object());
    }
    const std::string found = tools_.text_of(names_for_model(*sent.find("tools")));
    add_result(call_id.value_or(""), json_string(found.empty() ? "no tool found" : found));
  }

  void read_hosted(const JsonValue& item, const std::string& where, const HostedCall& done) {
    RequestFields sent(item, where + ".");
    const auto id = sent.string("id");
    const bool is_mcp = done.tool == nullptr;
    const auto name = is_mcp ? sent.string("name") : std::string(done.tool);
    if (!sent.failed() && (!name || name->empty())) sent.fail("name", "expected a name");
    JsonValue arguments = json_object();
    if (const JsonValue* given = sent.find(done.argument)) {
      if (is_mcp && !is_arguments(*given))
        sent.fail(done.argument, found_expected(*given, "the JSON text of an object"));
      if (is_mcp) {
        arguments = *given;
      } else {
        json_set(arguments, done.argument, *given);
      }
    }
    fields_.absorb(sent);
    if (fields_.failed()) return;
    const JsonValue* result = sent.find(done.result);
    if (result == nullptr && is_mcp) result = sent.find("error");
    const bool has_result = result != nullptr && !(result->is(Kind::kArray) && result->items.empty());
    if (!has_result) return ignore(done.type);
    add_call(*name, id.value_or(""), std::move(arguments));
    add_result(id.value_or(""), result->is(Kind::kString) ? *result : json_string(dump_python_json(*result)));
  }

  void flush_assistant() {
    if (!open_) return;
    open_ = has_text_ = false;
    JsonValue message = json_object();
    json_set(message, "role", json_string("assistant"));
    json_set(message, "content", std::exchange(text_, json_array()));
    if (!reasoning_.empty()) json_set(message, "reasoning_content", json_string(std::exchange(reasoning_, {})));
    if (!calls_.items.empty()) json_set(message, "tool_calls", std::exchange(calls_, json_array()));
    messages_.items.push_back(std::move(message));
  }

  RequestFields& fields_;
  DeferredTools& tools_;
  JsonValue messages_ = json_array();
  bool open_ = false, has_text_ = false;  // an assistant message is being put together
  JsonValue text_ = json_array(), calls_ = json_array();
  std::string reasoning_;
  std::vector<std::string> ignored_;
};

}  // namespace

ResponsesInput read_responses_input(RequestFields& fields, const std::optional<std::string>& instructions,
                                    DeferredTools& tools, const JsonValue& input) {
  InputReader reader(fields, tools);
  if (instructions && !instructions->empty()) reader.add("system", json_string(*instructions));
  return reader.read(input);
}

}  // namespace fathom
