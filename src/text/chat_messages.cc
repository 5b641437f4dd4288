#include "text/chat_messages.h"

#include <array>

namespace fathom {
namespace {

using Kind = JsonValue::Kind;

struct NamedRole {
  std::string_view name;
  Role role;
};
constexpr std::array<NamedRole, 6> kRoles = {{{"system", Role::kSystem},
                                              {"user", Role::kUser},
                                              {"assistant", Role::kAssistant},
                                              {"tool", Role::kTool},
                                              {"latest_reminder", Role::kLatestReminder},
                                              {"developer", Role::kDeveloper}}};

struct NamedTask {
  std::string_view name;
  Task task;
};
constexpr std::array<NamedTask, 6> kTasks = {{{"action", Task::kAction},
                                              {"query", Task::kQuery},
                                              {"authority", Task::kAuthority},
                                              {"domain", Task::kDomain},
                                              {"title", Task::kTitle},
                                              {"read_url", Task::kReadUrl}}};

template <typename Names>
std::string list_names(const Names& names) {
  std::string list;
  for (const auto& named : names) list += (list.empty() ? "" : ", ") + std::string(named.name);
  return list;
}

Status wrong(const std::string& field, std::string_view found, std::string_view expected) {
  return invalid_argument(field + ": found " + std::string(found) + ", expected " + std::string(expected));
}

bool is_absent(const JsonValue* value) { return value == nullptr || value->is(Kind::kNull); }

std::string_view kind_of(const JsonValue* value) { return value == nullptr ? "nothing" : json_kind_name(value->kind); }

// A string member; null and missing count as empty.
Status read_text(const JsonValue& object, std::string_view key, const std::string& path, std::string& out) {
  const JsonValue* value = object.find(key);
  if (is_absent(value)) return {};
  if (!value->is(Kind::kString)) return wrong(path + "." + std::string(key), kind_of(value), "a string");
  out = value->text;
  return {};
}

Status read_flag(const JsonValue& object, std::string_view key, const std::string& path, bool& out) {
  const JsonValue* value = object.find(key);
  if (is_absent(value)) return {};
  if (!value->is_bool()) return wrong(path + "." + std::string(key), kind_of(value), "a boolean");
  out = out || value->is(Kind::kTrue);
  return {};
}

// One part of an array content, as text.
Result<std::string> read_part(const JsonValue& part, const std::string& path, Role role) {
  if (part.is(Kind::kString)) return part.text;
  if (!part.is(Kind::kObject)) return wrong(path, kind_of(&part), "a text part {\"type\": \"text\", \"text\": ...}");
  const JsonValue* type = part.find("type");
  if (type == nullptr || !type->is(Kind::kString)) return wrong(path + ".type", kind_of(type), "a string");
  if (type->text == "text" || type->text == "input_text" || type->text == "output_text") {
    const JsonValue* text = part.find("text");
    if (text == nullptr || !text->is(Kind::kString)) return wrong(path + ".text", kind_of(text), "a string");
    return text->text;
  }
  if (type->text == "refusal" && role == Role::kAssistant) {
    const JsonValue* text = part.find("refusal");
    if (text == nullptr || !text->is(Kind::kString)) return wrong(path + ".refusal", kind_of(text), "a string");
    return text->text;
  }
  if (role == Role::kTool) return "[Unsupported " + type->text + "]";
  std::string quoted;
  append_json_quoted(type->text, quoted);
  return wrong(path + ".type", quoted, "\"text\": this model reads text only");
}

Status read_content(const JsonValue& message, const std::string& path, Role role, std::string& out) {
  const JsonValue* content = message.find("content");
  if (is_absent(content)) return {};
  if (content->is(Kind::kString)) {
    out = content->text;
    return {};
  }
  if (!content->is(Kind::kArray)) {
    return wrong(path + ".content", kind_of(content), "a string, an array of parts or null");
  }
  for (std::size_t i = 0; i < content->items.size(); ++i) {
    FATHOM_ASSIGN_OR_RETURN(const std::string text,
                            read_part(content->items[i], path + ".content[" + std::to_string(i) + "]", role));
    if (i > 0) out += "\n\n";
    out += text;
  }
  return {};
}

Status read_tool_calls(const JsonValue& message, const std::string& path, std::vector<ToolCall>& out) {
  const JsonValue* calls = message.find("tool_calls");
  if (is_absent(calls)) return {};
  if (!calls->is(Kind::kArray)) return wrong(path + ".tool_calls", kind_of(calls), "an array");
  for (std::size_t i = 0; i < calls->items.size(); ++i) {
    const JsonValue& call = calls->items[i];
    const std::string call_path = path + ".tool_calls[" + std::to_string(i) + "]";
    const JsonValue* function = call.find("function");
    if (function == nullptr || !function->is(Kind::kObject)) {
      return wrong(call_path + ".function", kind_of(function), "an object with name and arguments");
    }
    ToolCall read;
    FATHOM_RETURN_IF_ERROR(read_text(call, "id", call_path, read.id));
    FATHOM_RETURN_IF_ERROR(read_text(*function, "name", call_path + ".function", read.name));
    if (read.name.empty()) return wrong(call_path + ".function.name", "nothing", "the function's name");
    const JsonValue* arguments = function->find("arguments");
    if (is_absent(arguments)) {
      read.arguments = "{}";
    } else if (arguments->is(Kind::kString)) {
      read.arguments = arguments->text;
    } else if (arguments->is(Kind::kObject)) {
      read.arguments = dump_python_json(*arguments);
    } else {
      return wrong(call_path + ".function.arguments", kind_of(arguments), "a string of JSON or an object");
    }
    out.push_back(std::move(read));
  }
  return {};
}

// The `function` objects of a list of tools.
Result<std::vector<JsonValue>> read_tools(const JsonValue* tools, const std::string& path) {
  std::vector<JsonValue> functions;
  if (is_absent(tools)) return functions;
  if (!tools->is(Kind::kArray)) return wrong(path, kind_of(tools), "an array of tools");
  for (std::size_t i = 0; i < tools->items.size(); ++i) {
    const JsonValue& tool = tools->items[i];
    const std::string tool_path = path + "[" + std::to_string(i) + "]";
    if (!tool.is(Kind::kObject)) return wrong(tool_path, kind_of(&tool), "an object");
    const JsonValue* type = tool.find("type");
    if (!is_absent(type) && (!type->is(Kind::kString) || type->text != "function")) {
      return wrong(tool_path + ".type", dump_python_json(*type), "\"function\"");
    }
    const JsonValue* function = tool.find("function");
    if (function == nullptr || !function->is(Kind::kObject)) {
      return wrong(tool_path + ".function", kind_of(function), "an object");
    }
    const JsonValue* name = function->find("name");
    if (name == nullptr || !name->is(Kind::kString) || name->text.empty()) {
      return wrong(tool_path + ".function.name", kind_of(name), "a name");
    }
    functions.push_back(*function);
  }
  return functions;
}

Result<Role> read_role(const JsonValue& message, const std::string& path) {
  const JsonValue* role = message.find("role");
  if (role == nullptr || !role->is(Kind::kString)) {
    return wrong(path + ".role", kind_of(role), "one of " + list_names(kRoles));
  }
  for (const NamedRole& named : kRoles) {
    if (named.name == role->text) return named.role;
  }
  std::string quoted;
  append_json_quoted(role->text, quoted);
  return wrong(path + ".role", quoted, "one of " + list_names(kRoles));
}

Status read_task(const JsonValue& message, const std::string& path, std::optional<Task>& out) {
  std::string name;
  FATHOM_RETURN_IF_ERROR(read_text(message, "task", path, name));
  if (name.empty()) return {};
  for (const NamedTask& named : kTasks) {
    if (named.name == name) out = named.task;
  }
  if (out) return {};
  std::string quoted;
  append_json_quoted(name, quoted);
  return wrong(path + ".task", quoted, "one of " + list_names(kTasks));
}

Result<ChatMessage> read_message(const JsonValue& value, const std::string& path) {
  if (!value.is(Kind::kObject)) return wrong(path, kind_of(&value), "a message object");
  ChatMessage message;
  FATHOM_ASSIGN_OR_RETURN(message.role, read_role(value, path));
  FATHOM_RETURN_IF_ERROR(read_content(value, path, message.role, message.content));
  FATHOM_RETURN_IF_ERROR(read_task(value, path, message.task));
  switch (message.role) {
    case Role::kAssistant:
      FATHOM_RETURN_IF_ERROR(read_text(value, "reasoning_content", path, message.reasoning_content));
      if (is_absent(value.find("reasoning_content"))) {
        FATHOM_RETURN_IF_ERROR(read_text(value, "reasoning", path, message.reasoning_content));
      }
      FATHOM_RETURN_IF_ERROR(read_tool_calls(value, path, message.tool_calls));
      FATHOM_RETURN_IF_ERROR(read_flag(value, "wo_eos", path, message.wo_eos));
      FATHOM_RETURN_IF_ERROR(read_flag(value, "prefix", path, message.wo_eos));
      break;
    case Role::kTool: FATHOM_RETURN_IF_ERROR(read_text(value, "tool_call_id", path, message.tool_call_id)); break;
    case Role::kSystem:
    case Role::kDeveloper: {
      FATHOM_ASSIGN_OR_RETURN(message.tools, read_tools(value.find("tools"), path + ".tools"));
      if (const JsonValue* format = value.find("response_format"); !is_absent(format))
        message.response_format = *format;
      break;
    }
    case Role::kUser:
    case Role::kLatestReminder: break;
  }
  return message;
}

}  // namespace

std::string_view role_name(Role role) {
  for (const NamedRole& named : kRoles) {
    if (named.role == role) return named.name;
  }
  return "";
}

Result<ChatConversation> read_chat(const JsonValue& messages, const JsonValue* tools) {
  if (!messages.is(Kind::kArray)) return wrong("messages", kind_of(&messages), "an array of messages");
  if (messages.items.empty()) return wrong("messages", "an empty array", "at least one message");
  ChatConversation chat;
  chat.messages.reserve(messages.items.size() + 1);
  for (std::size_t i = 0; i < messages.items.size(); ++i) {
    FATHOM_ASSIGN_OR_RETURN(ChatMessage message,
                            read_message(messages.items[i], "messages[" + std::to_string(i) + "]"));
    chat.messages.push_back(std::move(message));
  }
  FATHOM_ASSIGN_OR_RETURN(std::vector<JsonValue> functions, read_tools(tools, "tools"));
  if (functions.empty()) return chat;
  const Role first = chat.messages.front().role;
  if (first != Role::kSystem && first != Role::kDeveloper) {
    ChatMessage system;
    system.role = Role::kSystem;
    chat.messages.insert(chat.messages.begin(), std::move(system));
    chat.num_inserted = 1;
  }
  if (!chat.messages.front().tools.empty()) {
    return wrong("tools", "tools here and in messages[0].tools", "them in one place");
  }
  chat.messages.front().tools = std::move(functions);
  return chat;
}

Result<ChatConversation> parse_chat(std::string_view json) {
  Result<JsonValue> root = parse_json(json);
  if (!root.ok()) return root.status().with_context("messages");
  if (root->is(Kind::kArray)) return read_chat(*root, nullptr);
  if (!root->is(Kind::kObject)) {
    return wrong("messages", kind_of(&*root), "{\"messages\": [...], \"tools\": [...]} or an array of messages");
  }
  const JsonValue* messages = root->find("messages");
  if (messages == nullptr) return wrong("messages", "nothing", "an array of messages");
  return read_chat(*messages, root->find("tools"));
}

}  // namespace fathom
