#include "server/anthropic_request.h"

#include <set>

#include "server/deferred_tools.h"
#include "server/generation_fields.h"
#include "server/json_build.h"
#include "server/thinking_signature.h"

namespace fathom {
namespace {

using Kind = JsonValue::Kind;

std::string type_of(const JsonValue& block) { return json_text_of(block.find("type")); }

// Claude Code puts a line at the head of its system prompt that tells who pays, and changes with every request. It says
// nothing to a model, and kept there no request would find the prefix of another.
void drop_billing_line(std::string& text) {
  if (!text.starts_with("x-anthropic-billing-header:")) return;
  const std::size_t end = text.find('\n');
  text.erase(0, end == std::string::npos ? end : end + 1);
}

// The name in a tool_addition or a tool_removal.
std::string changed_tool(const JsonValue& block) {
  const JsonValue* tool = block.find("tool");
  if (tool == nullptr) return {};
  const JsonValue* definition = tool->find("definition");
  return json_text_of((definition != nullptr ? definition : tool)->find("name"));
}

// One message of theirs becomes one or more of ours; `out` takes them.
class MessageReader {
 public:
  MessageReader(RequestFields& fields, DeferredTools& tools, JsonValue& out)
      : fields_(fields), tools_(tools), out_(out) {}

  // is_past: a later message is the user's.
  void read(const JsonValue& message, const std::string& where, bool is_past) {
    if (!message.is(Kind::kObject)) return fields_.fail(where, found_expected(message, "an object"));
    RequestFields inner(message, where + ".");
    const std::string role = inner.string("role").value_or("");
    if (!inner.failed() && role != "user" && role != "assistant" && role != "system") {
      inner.fail("role", "found \"" + role + "\", expected user, assistant or system");
    }
    const std::string clear_at = role == "system" ? inner.string("clear_at").value_or("never") : "never";
    if (!inner.failed() && clear_at != "never" && clear_at != "next_user_message") {
      inner.fail("clear_at", "found \"" + clear_at + "\", expected never or next_user_message");
    }
    const bool has_config = role == "system" && inner.object("output_config") != nullptr;
    fields_.absorb(inner);
    if (fields_.failed()) return;
    const JsonValue* content = inner.find("content");
    if (content == nullptr && has_config) return;
    if (content == nullptr) return fields_.fail(where + ".content", "found none");
    if (role == "system") {
      const std::string text = read_system(*content, where + ".content");
      if (!fields_.failed() && !text.empty() && (clear_at == "never" || !is_past)) add_system(text);
      return;
    }
    if (content->is(Kind::kString)) return add_text(role, content->text);
    if (!content->is(Kind::kArray)) {
      return fields_.fail(where + ".content", found_expected(*content, "a string or an array of blocks"));
    }
    role == "user" ? read_user(*content, where) : read_assistant(*content, where);
  }

  // A string, or text blocks, and blocks of tools that come and go: the model reads of it, none is withdrawn.
  std::string read_system(const JsonValue& content, const std::string& where) {
    if (content.is(Kind::kString)) {
      std::string text = content.text;
      drop_billing_line(text);
      return text;
    }
    if (!content.is(Kind::kArray)) {
      fields_.fail(where, found_expected(content, "a string or an array of text blocks"));
    }
    std::string text;
    for (std::size_t i = 0; i < content.items.size(); ++i) {
      const JsonValue& block = content.items[i];
      const std::string type = type_of(block);
      if (type == "tool_addition" || type == "tool_removal") {
        const std::string name = changed_tool(block);
        if (name.empty()) continue;
        text += text.empty() ? "" : "\n\n";
        text +=
            type == "tool_addition" ? tools_.text_of({&name, 1}) : "The tool " + name + " cannot be called any more.";
        continue;
      }
      const JsonValue* part = block.find("text");
      if (type != "text" || part == nullptr || !part->is(Kind::kString)) {
        fields_.fail(where + "[" + std::to_string(i) + "]", "expected a text block");
        return {};
      }
      std::string more = part->text;
      if (i == 0) drop_billing_line(more);
      text += (text.empty() || more.empty() ? "" : "\n\n") + more;
    }
    return text;
  }

  // Neighbours are one message: the encoder puts nothing between them.
  void add_system(const std::string& text) {
    JsonValue* last = out_.items.empty() ? nullptr : &out_.items.back();
    if (last == nullptr || json_text_of(last->find("role")) != "system") return add_text("system", text);
    for (auto& member : last->members) {
      if (member.key == "content") member.value.text += "\n\n" + text;
    }
  }

 private:
  void add_text(const std::string& role, std::string text) {
    JsonValue message = json_object();
    json_set(message, "role", json_string(role));
    json_set(message, "content", json_string(std::move(text)));
    out_.items.push_back(std::move(message));
  }

  void read_user(const JsonValue& content, const std::string& where) {
    JsonValue parts = json_array();
    const auto flush = [&] {
      if (parts.items.empty()) return;
      JsonValue message = json_object();
      json_set(message, "role", json_string("user"));
      json_set(message, "content", std::exchange(parts, json_array()));
      out_.items.push_back(std::move(message));
    };
    for (std::size_t i = 0; i < content.items.size() && !fields_.failed(); ++i) {
      const JsonValue& block = content.items[i];
      const std::string at = where + ".content[" + std::to_string(i) + "]";
      const std::string type = type_of(block);
      if (type == "text") {
        const JsonValue* text = block.find("text");
        if (text == nullptr || !text->is(Kind::kString)) return fields_.fail(at + ".text", "expected a string");
        parts.items.push_back(json_text_part(text->text));
      } else if (type == "tool_result") {
        flush();
        read_tool_result(block, at);
      } else {
        fields_.fail(at + ".type", "found \"" + type + "\", expected text or tool_result");
      }
    }
    flush();
    if (content.items.empty()) add_text("user", "");
  }

  void read_tool_result(const JsonValue& block, const std::string& at) {
    const JsonValue* id = block.find("tool_use_id");
    if (id == nullptr || !id->is(Kind::kString)) return fields_.fail(at + ".tool_use_id", "expected a string");
    RequestFields fields(block, at + ".");
    fields.boolean("is_error");
    fields_.absorb(fields);
    const JsonValue* content = fields.find("content");
    if (content != nullptr && !content->is(Kind::kString) && !content->is(Kind::kArray)) {
      return fields_.fail(at + ".content", found_expected(*content, "a string or an array of blocks"));
    }
    for (std::size_t i = 0; content != nullptr && i < content->items.size(); ++i) {
      const JsonValue& part = content->items[i];
      const JsonValue* text = part.find("text");
      const std::string part_type = type_of(part);
      if (part_type.empty() || (part_type == "text" && (text == nullptr || !text->is(Kind::kString)))) {
        return fields_.fail(at + ".content[" + std::to_string(i) + "]", "expected a block, with text where it is one");
      }
    }
    JsonValue shown = content != nullptr ? *content : json_string("");
    std::vector<std::string> found;  // by a search for tools
    for (const JsonValue& part : shown.items) {
      if (type_of(part) == "tool_reference") found.push_back(json_text_of(part.find("tool_name")));
    }
    if (!found.empty()) {
      std::erase_if(shown.items, [](const JsonValue& part) { return type_of(part) == "tool_reference"; });
      shown.items.push_back(json_text_part(tools_.text_of(found)));
    }
    JsonValue message = json_object();
    json_set(message, "role", json_string("tool"));
    json_set(message, "tool_call_id", *id);
    json_set(message, "content", std::move(shown));
    out_.items.push_back(std::move(message));
  }

  void read_assistant(const JsonValue& content, const std::string& where) {
    std::string text, reasoning;
    JsonValue calls = json_array();
    for (std::size_t i = 0; i < content.items.size(); ++i) {
      const JsonValue& block = content.items[i];
      const std::string at = where + ".content[" + std::to_string(i) + "]";
      const std::string type = type_of(block);
      const auto take = [&](std::string_view key, std::string& into) {
        const JsonValue* value = block.find(key);
        if (value == nullptr || !value->is(Kind::kString)) {
          return fields_.fail(at + "." + std::string(key), "expected a string");
        }
        into += value->text;
      };
      if (type == "text") {
        take("text", text);
      } else if (type == "thinking") {
        const std::size_t before = reasoning.size();
        take("thinking", reasoning);
        if (reasoning.size() == before) {
          reasoning += thinking_of_signature(json_text_of(block.find("signature"))).value_or("");
        }
      } else if (type == "tool_use") {
        read_tool_use(block, at, calls);
      } else if (type != "redacted_thinking") {
        fields_.fail(at + ".type", "found \"" + type + "\", expected text, thinking or tool_use");
      }
      if (fields_.failed()) return;
    }
    JsonValue message = json_object();
    json_set(message, "role", json_string("assistant"));
    json_set(message, "content", json_string(std::move(text)));
    if (!reasoning.empty()) json_set(message, "reasoning_content", json_string(std::move(reasoning)));
    if (!calls.items.empty()) json_set(message, "tool_calls", std::move(calls));
    out_.items.push_back(std::move(message));
  }

  void read_tool_use(const JsonValue& block, const std::string& at, JsonValue& calls) {
    RequestFields fields(block, at + ".");
    const auto id = fields.string("id");
    const auto name = fields.string("name");
    const JsonValue* input = fields.object("input");
    if (!fields.failed() && (!name || name->empty())) fields.fail("name", "expected a name");
    fields_.absorb(fields);
    if (fields_.failed()) return;
    JsonValue function = json_object();
    json_set(function, "name", json_string(*name));
    json_set(function, "arguments", input != nullptr ? *input : json_object());
    JsonValue call = json_object();
    json_set(call, "id", json_string(id.value_or("")));
    json_set(call, "type", json_string("function"));
    json_set(call, "function", std::move(function));
    calls.items.push_back(std::move(call));
  }

  RequestFields& fields_;
  DeferredTools& tools_;
  JsonValue& out_;
};

JsonValue read_messages(RequestFields& fields, DeferredTools& tools) {
  JsonValue out = json_array();
  MessageReader reader(fields, tools, out);
  if (const JsonValue* system = fields.find("system")) {
    const std::string text = reader.read_system(*system, "system");
    if (!fields.failed() && !text.empty()) reader.add_system(text);
  }
  const JsonValue* messages = fields.array("messages");
  if (!fields.failed() && (messages == nullptr || messages->items.empty())) {
    fields.fail("messages", "found none, expected at least one message");
  }
  if (fields.failed()) return out;
  std::size_t last_user = 0;
  for (std::size_t i = 0; i < messages->items.size(); ++i) {
    if (json_text_of(messages->items[i].find("role")) == "user") last_user = i;
  }
  for (std::size_t i = 0; !fields.failed() && i < messages->items.size(); ++i) {
    reader.read(messages->items[i], "messages[" + std::to_string(i) + "]", i < last_user);
  }
  if (!fields.failed() && out.items.empty()) fields.fail("messages", "found no text");
  return out;
}

struct PlacedTool {
  const JsonValue* tool;
  std::string where;
};

// Tools that stand among the messages, in system messages: {type: tool_addition, tool: {type: tool_definition,
// definition}}. A reference names one of `tools`.
std::vector<PlacedTool> inline_tools(RequestFields& fields) {
  std::vector<PlacedTool> out;
  const JsonValue* messages = fields.find("messages");
  for (std::size_t i = 0; messages != nullptr && i < messages->items.size(); ++i) {
    const JsonValue* content = messages->items[i].find("content");
    if (json_text_of(messages->items[i].find("role")) != "system" || content == nullptr) continue;
    for (std::size_t j = 0; j < content->items.size(); ++j) {
      if (type_of(content->items[j]) != "tool_addition") continue;
      const std::string where = "messages[" + std::to_string(i) + "].content[" + std::to_string(j) + "].tool";
      const JsonValue* tool = content->items[j].find("tool");
      if (tool == nullptr || !tool->is(Kind::kObject)) {
        fields.fail(where, "expected a tool_reference or a tool_definition");
        return out;
      }
      if (type_of(*tool) != "tool_definition") continue;
      const JsonValue* definition = tool->find("definition");
      if (definition == nullptr) {
        fields.fail(where + ".definition", "found none, expected a tool");
        return out;
      }
      out.push_back({definition, where + ".definition"});
    }
  }
  return out;
}

// Their tools in OpenAI's form, so that one reader checks both.
JsonValue translate_tool(RequestFields& fields, const JsonValue& tool, const std::string& where) {
  if (!tool.is(Kind::kObject)) {
    fields.fail(where, found_expected(tool, "an object"));
    return {};
  }
  RequestFields named(tool, where + ".");
  const std::string type = named.string("type").value_or("custom");
  if (!named.failed() && type != "custom") {
    named.fail("type", "found \"" + type + "\": only custom tools are offered");
  }
  if (!named.string("name") && !named.failed()) named.fail("name", "found none, expected a string");
  if (named.object("input_schema") == nullptr && !named.failed()) {
    named.fail("input_schema", "found none, expected a JSON schema");
  }
  named.boolean("strict");
  named.boolean("defer_loading");
  fields.absorb(named);
  JsonValue function = json_object();
  for (const auto& [from, to] : {std::pair{"name", "name"},
                                 {"description", "description"},
                                 {"input_schema", "parameters"},
                                 {"strict", "strict"}}) {
    if (const JsonValue* value = tool.find(from)) json_set(function, to, *value);
  }
  JsonValue entry = json_object();
  json_set(entry, "type", json_string("function"));
  json_set(entry, "function", std::move(function));
  return entry;
}

// `deferred`: the names of tools that are not to be shown from the beginning.
JsonValue translate_tools(RequestFields& fields, std::vector<std::string>& places, std::set<std::string>& deferred) {
  JsonValue body = json_object();
  const JsonValue* tools = fields.array("tools");
  std::vector<PlacedTool> all;
  for (std::size_t i = 0; tools != nullptr && i < tools->items.size(); ++i) {
    all.push_back({&tools->items[i], "tools[" + std::to_string(i) + "]"});
  }
  const std::size_t num_declared = all.size();
  for (PlacedTool& tool : inline_tools(fields)) all.push_back(std::move(tool));
  if (tools != nullptr || !all.empty()) {
    JsonValue list = json_array();
    std::set<std::string> names;
    for (std::size_t i = 0; i < all.size() && !fields.failed(); ++i) {
      JsonValue entry = translate_tool(fields, *all[i].tool, all[i].where);
      if (fields.failed()) return body;
      // A tool that is added again is what it was.
      const std::string name = json_text_of(all[i].tool->find("name"));
      const bool is_later = i >= num_declared;
      if (!names.insert(name).second && is_later) continue;
      const JsonValue* defers = all[i].tool->find("defer_loading");
      if (is_later || (defers != nullptr && defers->is(Kind::kTrue))) deferred.insert(name);
      list.items.push_back(std::move(entry));
      places.push_back(all[i].where);
    }
    json_set(body, "tools", std::move(list));
  }
  if (const JsonValue* choice = fields.object("tool_choice")) {
    RequestFields nested(*choice, "tool_choice.");
    const std::string type = nested.string("type").value_or("");
    if (type == "tool") {
      JsonValue function = json_object();
      json_set(function, "name", json_string(nested.string("name").value_or("")));
      JsonValue named = json_object();
      json_set(named, "type", json_string("function"));
      json_set(named, "function", std::move(function));
      json_set(body, "tool_choice", std::move(named));
    } else if (type == "auto" || type == "any" || type == "none") {
      json_set(body, "tool_choice", json_string(type));
    } else {
      nested.fail("type", "found \"" + type + "\", expected auto, any, tool or none");
    }
    if (nested.boolean("disable_parallel_tool_use").value_or(false)) {
      JsonValue off;
      off.kind = Kind::kFalse;
      json_set(body, "parallel_tool_calls", std::move(off));
    }
    fields.absorb(nested);
  }
  return body;
}

ThinkingFields read_anthropic_thinking(RequestFields& fields) {
  ThinkingFields out;
  out.thinking = false;
  const JsonValue* object = fields.object("thinking");
  if (object == nullptr) return out;
  RequestFields nested(*object, "thinking.");
  const std::string type = nested.string("type").value_or("");
  if (type == "enabled" || type == "adaptive") {
    out.thinking = true;
    if (type == "enabled" && !nested.has("budget_tokens"))
      nested.fail("budget_tokens", "found none, expected a number");
    if (const auto budget = nested.integer("budget_tokens", 0, 1 << 30)) {
      out.effort = *budget <= 4096    ? ReasoningEffort::kLow
                   : *budget <= 16384 ? ReasoningEffort::kHigh
                                      : ReasoningEffort::kMax;
    }
  } else if (type != "disabled" && type != "between_tools") {  // the latter is off too, but for models that report
    nested.fail("type", "found \"" + type + "\", expected enabled, adaptive, between_tools or disabled");
  }
  const auto display = nested.string("display");
  if (display && *display != "summarized" && *display != "omitted") {
    nested.fail("display", "found \"" + *display + "\", expected summarized or omitted");
  }
  out.show_reasoning = display.value_or("summarized") != "omitted";
  fields.absorb(nested);
  return out;
}

void read_stop_sequences(RequestFields& fields, Request& request) {
  const JsonValue* stops = fields.array("stop_sequences");
  if (stops == nullptr) return;
  JsonValue body = json_object();
  json_set(body, "stop_sequences", *stops);
  RequestFields nested(body);
  read_stops(nested, request, "stop_sequences");
  fields.absorb(nested);
}

// output_config {format, effort}, and output_format, its name while it was in trial.
void read_output_config(RequestFields& fields, const ServedModel& model, Request& request, ThinkingFields& thinking) {
  if (const JsonValue* format = fields.object("output_format")) {
    return read_format(fields, *format, "output_format", model, request);
  }
  const JsonValue* config = fields.object("output_config");
  if (config == nullptr) return;
  RequestFields nested(*config, "output_config.");
  const auto effort = nested.string("effort");
  if (effort && !apply_effort(*effort, thinking)) {
    nested.fail("effort", "found \"" + *effort + "\", expected low, medium, high or max");
  }
  fields.absorb(nested);
  if (const JsonValue* format = nested.find("format")) {
    read_format(fields, *format, "output_config.format", model, request);
  }
}

}  // namespace

std::optional<AnthropicRequest> read_anthropic(const JsonValue& body, const ServerOptions& options,
                                               const ServedModel& model, bool for_counting, ApiError& error) {
  RequestFields fields(body);
  AnthropicRequest out;
  read_model(fields, options);
  read_sampling(fields, options, model, out.request);
  read_stop_sequences(fields, out.request);
  if (!for_counting) {
    read_max_tokens(fields, {"max_tokens"}, 1, out.request);
    if (!fields.failed() && out.request.max_tokens < 0) fields.fail("max_tokens", "found none, expected a number");
  }
  out.stream = fields.boolean("stream").value_or(false);
  out.thinking = read_anthropic_thinking(fields);
  read_output_config(fields, model, out.request, out.thinking);
  fields.string("service_tier");
  if (const JsonValue* metadata = fields.object("metadata")) {
    RequestFields nested(*metadata, "metadata.");
    nested.string("user_id");
    fields.absorb(nested);
  }
  std::vector<std::string> places;
  std::set<std::string> deferred_names;
  const JsonValue tool_body = translate_tools(fields, places, deferred_names);
  RequestFields tool_fields(tool_body);
  out.tools = read_tools(tool_fields, model.grammar != nullptr, places);
  fields.absorb(tool_fields);
  DeferredTools deferred(out.tools.tools, deferred_names);
  const JsonValue messages = fields.failed() ? json_array() : read_messages(fields, deferred);
  if (fields.failed()) {
    error = fields.error();
    return std::nullopt;
  }
  const auto conversation = read_client_chat(messages, &deferred.shown());
  if (!conversation.ok()) {
    error = error_of(conversation.status());
    return std::nullopt;
  }
  out.markup = call_markup(*conversation);
  if (auto failed = build_chat_prompt(model, *conversation, out.thinking, out.tools, "messages", out.request)) {
    error = std::move(*failed);
    return std::nullopt;
  }
  out.tools.tools = nullptr;  // it pointed into tool_body
  return out;
}

}  // namespace fathom
