#include "server/responses_tools.h"

#include <algorithm>

#include "server/json_build.h"
#include "server/tool_choice.h"

namespace fathom {
namespace {

using Kind = JsonValue::Kind;

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const auto& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

JsonValue json_true() {
  JsonValue value;
  value.kind = Kind::kTrue;
  return value;
}

struct CustomGrammar {
  std::string syntax, definition;  // empty: any text
};

// format: {type: text}, or {type: grammar, syntax, definition}.
CustomGrammar read_custom_format(RequestFields& tool, const std::string& where, bool strict_is_offered) {
  CustomGrammar out;
  const JsonValue* format = tool.object("format");
  if (format == nullptr) return out;
  RequestFields sent(*format, where + ".format.");
  const auto type = sent.string("type");
  if (!sent.failed() && (!type || (*type != "text" && *type != "grammar"))) {
    sent.fail("type", "found \"" + type.value_or("") + "\", expected text or grammar");
  }
  if (!sent.failed() && *type == "grammar") {
    out.syntax = sent.string("syntax").value_or("");
    if (!sent.failed() && out.syntax != "lark" && out.syntax != "regex") {
      sent.fail("syntax", "found \"" + out.syntax + "\", expected lark or regex");
    }
    if (!sent.failed() && out.syntax == "regex" && !strict_is_offered) {
      sent.fail("syntax", "a regex needs the grammar library, which this build was made without");
    }
    out.definition = sent.string("definition").value_or("");
    if (!sent.failed() && out.definition.empty()) sent.fail("definition", "found none, expected the grammar's text");
  }
  tool.absorb(sent);
  return out;
}

// The function that the model sees for a custom tool.
JsonValue custom_function(const std::string& name, const JsonValue& tool, const CustomGrammar& grammar) {
  JsonValue input = json_object();
  json_set(input, "type", json_string("string"));
  if (grammar.syntax == "lark") {
    json_set(input, "description",
             json_string("Text that the following Lark grammar accepts, as it stands:\n" + grammar.definition));
  } else if (grammar.syntax == "regex") {
    json_set(input, "pattern", json_string(grammar.definition));
  }
  JsonValue properties = json_object();
  json_set(properties, std::string(kCustomParameter), std::move(input));
  JsonValue required = json_array();
  required.items.push_back(json_string(std::string(kCustomParameter)));
  JsonValue parameters = json_object();
  json_set(parameters, "type", json_string("object"));
  json_set(parameters, "properties", std::move(properties));
  json_set(parameters, "required", std::move(required));
  JsonValue function = json_object();
  json_set(function, "name", json_string(name));
  if (const JsonValue* description = tool.find("description")) json_set(function, "description", *description);
  json_set(function, "parameters", std::move(parameters));
  if (grammar.syntax == "regex") json_set(function, "strict", json_true());
  return function;
}

JsonValue plain_function(const std::string& name, const JsonValue& tool) {
  JsonValue function = json_object();
  for (const auto& member : tool.members) {
    if (member.key == "type" || member.key == "defer_loading") continue;
    json_set(function, member.key, member.key == "name" ? json_string(name) : member.value);
  }
  return function;
}

struct ToolPlace {
  std::string name_space;  // that the tool stands in; empty: none
  std::string where;
  bool is_later = false;  // among the items: one that is offered already is what it was
};

// Its tools' names each begin with it.
constexpr std::size_t kMostNamespaceBytes = 256;
constexpr std::size_t kMostIgnoredTypes = 100;

void offer(JsonValue function, CallTarget target, const ToolPlace& place, JsonValue& list, ResponsesTools& out) {
  const std::string name = json_text_of(function.find("name"));
  if (place.is_later && out.targets.contains(name)) return;
  if (place.is_later) out.deferred.insert(name);
  out.targets.emplace(name, std::move(target));
  out.places.push_back(place.where);
  JsonValue entry = json_object();
  json_set(entry, "type", json_string("function"));
  json_set(entry, "function", std::move(function));
  list.items.push_back(std::move(entry));
}

void read_tool(RequestFields& fields, const JsonValue& tool, const ToolPlace& place, bool strict_is_offered,
               JsonValue& list, ResponsesTools& out);

void read_search(RequestFields& fields, const JsonValue& tool, const ToolPlace& place, JsonValue& list,
                 ResponsesTools& out) {
  RequestFields sent(tool, place.where + ".");
  const auto description = sent.string("description");
  const JsonValue* parameters = sent.object("parameters");
  fields.absorb(sent);
  JsonValue function = json_object();
  json_set(function, "name", json_string(std::string(kSearchTool)));
  if (description) json_set(function, "description", json_string(*description));
  if (parameters != nullptr) json_set(function, "parameters", *parameters);
  offer(std::move(function), {std::string(kSearchTool), {}, ToolKind::kSearch}, place, list, out);
}

void read_namespace(RequestFields& fields, const JsonValue& space, const ToolPlace& outer, bool strict_is_offered,
                    JsonValue& list, ResponsesTools& out) {
  RequestFields sent(space, outer.where + ".");
  const auto name = sent.string("name");
  sent.string("description");
  const JsonValue* tools = sent.array("tools");
  if (!sent.failed() && (!name || name->empty() || name->find('"') != std::string::npos)) {
    sent.fail("name", "expected a name without quotes");
  }
  if (!sent.failed() && name->size() > kMostNamespaceBytes) {
    sent.fail("name", "found " + std::to_string(name->size()) + " bytes, expected at most " +
                          std::to_string(kMostNamespaceBytes));
  }
  if (!sent.failed()) are_few(sent, tools, "tools");
  fields.absorb(sent);
  for (std::size_t i = 0; !fields.failed() && i < tools->items.size(); ++i) {
    const ToolPlace place{*name, outer.where + ".tools[" + std::to_string(i) + "]", outer.is_later};
    read_tool(fields, tools->items[i], place, strict_is_offered, list, out);
  }
}

void read_tool(RequestFields& fields, const JsonValue& tool, const ToolPlace& place, bool strict_is_offered,
               JsonValue& list, ResponsesTools& out) {
  const std::string& where = place.where;
  if (!tool.is(Kind::kObject)) return fields.fail(where, found_expected(tool, "an object"));
  RequestFields sent(tool, where + ".");
  const auto type = sent.string("type");
  if (!sent.failed() && !type) sent.fail("type", "found none, expected function or custom");
  if (!sent.failed() && *type == "namespace" && sent.has("tools") && place.name_space.empty()) {
    return read_namespace(fields, tool, place, strict_is_offered, list, out);
  }
  if (!sent.failed() && *type == kSearchTool && json_text_of(tool.find("execution")) == "client") {
    return read_search(fields, tool, place, list, out);
  }
  if (!sent.failed() && *type != "function" && *type != "custom") {
    const bool is_told = out.ignored.size() >= kMostIgnoredTypes ||
                         std::find(out.ignored.begin(), out.ignored.end(), *type) != out.ignored.end();
    if (!is_told) out.ignored.push_back(*type);
    return;
  }
  const auto name = sent.string("name");
  if (!sent.failed() && !name) sent.fail("name", "found none, expected a string");
  CustomGrammar grammar;
  if (!sent.failed() && *type == "custom") {
    sent.string("description");
    grammar = read_custom_format(sent, where, strict_is_offered);
  } else {
    sent.object("parameters");
    sent.boolean("strict");
  }
  fields.absorb(sent);
  if (fields.failed()) return;
  const std::string model_name = name->empty() ? *name : name_for_model(place.name_space, *name);
  JsonValue function =
      *type == "custom" ? custom_function(model_name, tool, grammar) : plain_function(model_name, tool);
  if (grammar.syntax == "lark") out.unenforced.push_back(*name);
  const ToolKind kind = *type == "custom" ? ToolKind::kCustom : ToolKind::kFunction;
  offer(std::move(function), {*name, place.name_space, kind}, place, list, out);
}

// Those that stand among the items of `input`.
void read_later_tools(RequestFields& fields, bool strict_is_offered, JsonValue& list, ResponsesTools& out) {
  const JsonValue* input = fields.find("input");
  for (std::size_t i = 0; input != nullptr && i < input->items.size() && !fields.failed(); ++i) {
    const JsonValue& item = input->items[i];
    const std::string type = json_text_of(item.find("type"));
    if (type != "tool_search_output" && type != "additional_tools") continue;
    const std::string where = "input[" + std::to_string(i) + "]";
    RequestFields sent(item, where + ".");
    const JsonValue* tools = sent.array("tools");
    if (!sent.failed() && tools == nullptr) sent.fail("tools", "found none, expected an array");
    if (!sent.failed()) are_few(sent, tools, "tools");
    fields.absorb(sent);
    for (std::size_t j = 0; !fields.failed() && j < tools->items.size(); ++j) {
      const ToolPlace place{{}, where + ".tools[" + std::to_string(j) + "]", true};
      read_tool(fields, tools->items[j], place, strict_is_offered, list, out);
    }
  }
}

// A tool that is named, as the reader of chat's form wants it: a function by the model's name. Without its namespace a
// name stands for the tool that is in none, or for the one that has it.
JsonValue as_function(RequestFields& fields, const JsonValue& named, const std::string& where,
                      const std::map<std::string, CallTarget>& targets) {
  const bool is_custom = json_text_of(named.find("type")) == "custom";
  const ToolKind kind = is_custom ? ToolKind::kCustom : ToolKind::kFunction;
  const std::string name = json_text_of(named.find("name"));
  const JsonValue* space = named.find("namespace");
  std::vector<std::string> found;
  for (const auto& [model_name, target] : targets) {
    if (target.name != name || target.kind != kind) continue;
    if (space != nullptr && target.name_space != json_text_of(space)) continue;
    if (target.name_space.empty()) {
      found = {model_name};
      break;
    }
    found.push_back(model_name);
  }
  if (found.empty() && !is_custom) return named;  // found wanting by the reader, which knows what to say
  if (found.size() != 1) {
    fields.fail(where, (is_custom ? "the custom tool '" : "the function '") + name +
                           (found.empty() ? "' is not among the tools" : "' is in several namespaces"));
    return named;
  }
  JsonValue out = json_object();
  json_set(out, "type", json_string("function"));
  json_set(out, "name", json_string(found.front()));
  return out;
}

JsonValue translate_choice(RequestFields& fields, const JsonValue& choice, const ResponsesTools& tools) {
  if (choice.is(Kind::kString)) {
    const JsonValue* list = tools.body.find("tools");
    if (choice.text == "required" && !tools.ignored.empty() && (list == nullptr || list->items.empty())) {
      fields.fail("tool_choice",
                  "found required, but no tool is a function: " + joined(tools.ignored) + " is not offered here");
    }
    return choice;
  }
  if (!choice.is(Kind::kObject)) return choice;
  const std::string type = json_text_of(choice.find("type"));
  if (type == "custom" || type == "function") return as_function(fields, choice, "tool_choice", tools.targets);
  if (type != "allowed_tools") {
    fields.fail("tool_choice.type", "found \"" + type + "\": only function and custom tools can be called here");
  }
  JsonValue out = choice;
  for (auto& member : out.members) {
    if (member.key != "tools" || !are_few(fields, &member.value, "tool_choice.tools")) continue;
    for (std::size_t i = 0; i < member.value.items.size(); ++i) {
      JsonValue& tool = member.value.items[i];
      const std::string of_tool = json_text_of(tool.find("type"));
      if (of_tool != "custom" && of_tool != "function") continue;
      tool = as_function(fields, tool, "tool_choice.tools[" + std::to_string(i) + "]", tools.targets);
    }
  }
  return out;
}

}  // namespace

std::vector<std::string> names_for_model(const JsonValue& tools) {
  std::vector<std::string> names;
  for (const JsonValue& tool : tools.items) {
    const std::string name = json_text_of(tool.find("name"));
    const JsonValue* within = tool.find("tools");
    if (within == nullptr && !name.empty()) names.push_back(name);
    const bool is_namespace = within != nullptr && name.size() <= kMostNamespaceBytes;
    for (std::size_t i = 0; is_namespace && i < within->items.size(); ++i) {
      names.push_back(name_for_model(name, json_text_of(within->items[i].find("name"))));
    }
  }
  return names;
}

std::string name_for_model(const std::string& name_space, const std::string& name) {
  if (name_space.empty()) return name;
  return name_space + (name_space.ends_with('_') ? "" : "__") + name;
}

ResponsesTools translate_responses_tools(RequestFields& fields, bool strict_is_offered) {
  ResponsesTools out;
  out.body = json_object();
  const JsonValue* tools = fields.array("tools");
  if (!fields.failed()) are_few(fields, tools, "tools");
  JsonValue list = json_array();
  for (std::size_t i = 0; tools != nullptr && i < tools->items.size() && !fields.failed(); ++i) {
    read_tool(fields, tools->items[i], {{}, "tools[" + std::to_string(i) + "]"}, strict_is_offered, list, out);
  }
  read_later_tools(fields, strict_is_offered, list, out);
  if (tools != nullptr || !list.items.empty()) json_set(out.body, "tools", std::move(list));
  if (fields.failed()) return out;
  if (const JsonValue* choice = fields.find("tool_choice")) {
    json_set(out.body, "tool_choice", translate_choice(fields, *choice, out));
  }
  if (const JsonValue* parallel = fields.find("parallel_tool_calls")) {
    json_set(out.body, "parallel_tool_calls", *parallel);
  }
  return out;
}

}  // namespace fathom
