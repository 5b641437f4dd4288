#include "server/responses_tools.h"

#include <algorithm>

#include "server/json_build.h"

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
JsonValue custom_function(const JsonValue& tool, const CustomGrammar& grammar) {
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
  json_set(function, "name", json_string(json_text_of(tool.find("name"))));
  if (const JsonValue* description = tool.find("description")) json_set(function, "description", *description);
  json_set(function, "parameters", std::move(parameters));
  if (grammar.syntax == "regex") json_set(function, "strict", json_true());
  return function;
}

JsonValue plain_function(const JsonValue& tool) {
  JsonValue function = json_object();
  for (const auto& member : tool.members) {
    if (member.key != "type") json_set(function, member.key, member.value);
  }
  return function;
}

void read_tool(RequestFields& fields, const JsonValue& tool, const std::string& where, bool strict_is_offered,
               JsonValue& list, ResponsesTools& out) {
  if (!tool.is(Kind::kObject)) return fields.fail(where, found_expected(tool, "an object"));
  RequestFields sent(tool, where + ".");
  const auto type = sent.string("type");
  if (!sent.failed() && !type) sent.fail("type", "found none, expected function or custom");
  if (!sent.failed() && *type != "function" && *type != "custom") {
    if (std::find(out.ignored.begin(), out.ignored.end(), *type) == out.ignored.end()) out.ignored.push_back(*type);
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
  JsonValue function = *type == "custom" ? custom_function(tool, grammar) : plain_function(tool);
  if (*type == "custom") {
    out.custom.insert(*name);
    if (grammar.syntax == "lark") out.unenforced.push_back(*name);
  }
  out.places.push_back(where);
  JsonValue entry = json_object();
  json_set(entry, "type", json_string("function"));
  json_set(entry, "function", std::move(function));
  list.items.push_back(std::move(entry));
}

// A custom tool that is named is a function to the reader of chat's form.
JsonValue as_function(RequestFields& fields, const JsonValue& named, const std::string& where,
                      const std::set<std::string>& custom) {
  const std::string type = json_text_of(named.find("type"));
  const std::string name = json_text_of(named.find("name"));
  if (type != "custom") return named;
  if (!custom.contains(name)) fields.fail(where, "the custom tool '" + name + "' is not among the tools");
  JsonValue out = json_object();
  for (const auto& member : named.members) {
    json_set(out, member.key, member.key == "type" ? json_string("function") : member.value);
  }
  return out;
}

JsonValue translate_choice(RequestFields& fields, const JsonValue& choice, const ResponsesTools& tools) {
  if (choice.is(Kind::kString)) {
    const JsonValue* list = tools.body.find("tools");
    if (choice.text == "required" && !tools.ignored.empty() && list->items.empty()) {
      fields.fail("tool_choice",
                  "found required, but no tool is a function: " + joined(tools.ignored) + " is not offered here");
    }
    return choice;
  }
  if (!choice.is(Kind::kObject)) return choice;
  const std::string type = json_text_of(choice.find("type"));
  if (type == "custom") return as_function(fields, choice, "tool_choice", tools.custom);
  if (type != "function" && type != "allowed_tools") {
    fields.fail("tool_choice.type", "found \"" + type + "\": only function and custom tools can be called here");
  }
  if (type != "allowed_tools") return choice;
  JsonValue out = choice;
  for (auto& member : out.members) {
    if (member.key != "tools") continue;
    for (std::size_t i = 0; i < member.value.items.size(); ++i) {
      JsonValue& tool = member.value.items[i];
      tool = as_function(fields, tool, "tool_choice.tools[" + std::to_string(i) + "]", tools.custom);
    }
  }
  return out;
}

}  // namespace

ResponsesTools translate_responses_tools(RequestFields& fields, bool strict_is_offered) {
  ResponsesTools out;
  out.body = json_object();
  if (const JsonValue* tools = fields.array("tools")) {
    JsonValue list = json_array();
    for (std::size_t i = 0; i < tools->items.size() && !fields.failed(); ++i) {
      read_tool(fields, tools->items[i], "tools[" + std::to_string(i) + "]", strict_is_offered, list, out);
    }
    json_set(out.body, "tools", std::move(list));
  }
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
