#include "server/tool_choice.h"

#include <algorithm>
#include <map>
#include <set>

#include "text/chat_encoding.h"

namespace fathom {
namespace {

// Token sequences that share their beginnings. Node 0 is the root; a node without children is an end.
struct TokenTree {
  std::vector<std::map<TokenId, std::size_t>> children{1};

  void add(const std::vector<TokenId>& tokens) {
    std::size_t node = 0;
    for (const TokenId token : tokens) {
      const auto found = children[node].find(token);
      if (found != children[node].end()) {
        node = found->second;
      } else {
        children.emplace_back();
        const std::size_t next = children.size() - 1;
        children[node].emplace(token, next);
        node = next;
      }
    }
  }
};

class CallConstraint : public TokenConstraint {
 public:
  explicit CallConstraint(std::shared_ptr<const TokenTree> tree) : tree_(std::move(tree)) {}

  bool next_mask(std::span<std::uint32_t> mask) override {
    const auto& allowed = tree_->children[path_.back()];
    if (allowed.empty()) return false;
    std::fill(mask.begin(), mask.end(), 0u);
    for (const auto& [token, next] : allowed) {
      const auto word = static_cast<std::size_t>(token) / 32;
      if (word < mask.size()) mask[word] |= 1u << (static_cast<unsigned>(token) % 32);
    }
    return true;
  }
  Status accept(TokenId token) override {
    const auto& allowed = tree_->children[path_.back()];
    if (allowed.empty()) {
      path_.push_back(path_.back());
      return {};
    }
    const auto found = allowed.find(token);
    if (found == allowed.end()) return invalid_argument("tool_choice: the answer left the call it was to make");
    path_.push_back(found->second);
    return {};
  }
  void rollback(std::int32_t num_tokens) override { path_.resize(path_.size() - static_cast<std::size_t>(num_tokens)); }

 private:
  std::shared_ptr<const TokenTree> tree_;
  std::vector<std::size_t> path_{0};  // the node after each accepted token
};

bool is_offered(const ToolFields& tools, const std::string& name) {
  return std::any_of(tools.offered.begin(), tools.offered.end(),
                     [&](const OfferedTool& tool) { return tool.name == name; });
}

void read_tool_list(RequestFields& fields, const JsonValue& tools, bool strict_is_offered,
                    const std::vector<std::string>& places, ToolFields& out) {
  if (!are_few(fields, &tools, "tools")) return;
  for (std::size_t i = 0; i < tools.items.size() && !fields.failed(); ++i) {
    const std::string where = places.empty() ? "tools[" + std::to_string(i) + "]" : places[i];
    const std::string of_function = where + (places.empty() ? ".function." : ".");
    const JsonValue& tool = tools.items[i];
    if (!tool.is(JsonValue::Kind::kObject)) return fields.fail(where, found_expected(tool, "an object"));
    RequestFields entry(tool, where + ".");
    const std::string type = entry.string("type").value_or("function");
    if (!entry.failed() && type != "function") {
      entry.fail("type", "found \"" + type + "\", and only \"function\" tools can be called here");
    }
    const JsonValue* function = entry.object("function");
    if (!entry.failed() && function == nullptr) entry.fail("function", "found none");
    fields.absorb(entry);
    if (fields.failed()) return;
    RequestFields inner(*function, of_function);
    const auto name = inner.string("name");
    if (!inner.failed() && (!name || name->empty() || name->find('"') != std::string::npos)) {
      inner.fail("name", "expected a name without quotes");
    }
    inner.string("description");
    const JsonValue* parameters = inner.object("parameters");
    const bool strict = inner.boolean("strict").value_or(false);
    if (strict && !strict_is_offered) {
      inner.fail("strict", "strict tool calls need the grammar library, which this build was made without");
    }
    fields.absorb(inner);
    if (fields.failed()) return;
    if (is_offered(out, *name)) return fields.fail(of_function + "name", "'" + *name + "' stands twice");
    out.offered.push_back({*name, parameters != nullptr ? dump_python_json(*parameters) : std::string(), strict});
  }
}

// {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}; the members of the inner object stand in the outer one
// on responses. Tools that are no functions are none here.
void read_allowed(RequestFields& fields, const JsonValue& choice, ToolFields& out) {
  RequestFields outer(choice, "tool_choice.");
  const JsonValue* within = outer.object("allowed_tools");
  fields.absorb(outer);
  if (fields.failed()) return;
  RequestFields allowed(within != nullptr ? *within : choice,
                        within != nullptr ? "tool_choice.allowed_tools." : "tool_choice.");
  const auto mode = allowed.string("mode");
  if (!allowed.failed() && (!mode || (*mode != "auto" && *mode != "required"))) {
    allowed.fail("mode",
                 (mode ? "found \"" + *mode + "\"" : std::string("found none")) + ", expected auto or required");
  }
  if (!allowed.failed() && *mode == "required") out.choice = ToolFields::Choice::kRequired;
  std::set<std::string> names;
  const JsonValue* tools = allowed.array("tools");
  if (!allowed.failed()) are_few(allowed, tools, "tools");
  for (std::size_t i = 0; tools != nullptr && i < tools->items.size() && !allowed.failed(); ++i) {
    const JsonValue& tool = tools->items[i];
    const std::string where = "tools[" + std::to_string(i) + "]";
    if (!tool.is(JsonValue::Kind::kObject)) {
      allowed.fail(where, found_expected(tool, "an object"));
      break;
    }
    const JsonValue* type = tool.find("type");
    if (type != nullptr && type->is(JsonValue::Kind::kString) && type->text != "function") continue;
    const JsonValue* function = tool.find("function");
    const JsonValue* name = function != nullptr ? function->find("name") : tool.find("name");
    if (name == nullptr || !name->is(JsonValue::Kind::kString)) {
      allowed.fail(where, "found no name of a function");
    } else if (!is_offered(out, name->text)) {
      allowed.fail(where, "the function '" + name->text + "' is not among the tools");
    } else {
      names.insert(name->text);
    }
  }
  if (!allowed.failed() && names.empty()) allowed.fail("tools", "found no function, expected at least one");
  fields.absorb(allowed);
  out.is_narrowed = names.size() < out.offered.size();
  std::erase_if(out.offered, [&](const OfferedTool& tool) { return !names.contains(tool.name); });
}

void read_choice(RequestFields& fields, ToolFields& out) {
  const JsonValue* choice = fields.find("tool_choice");
  if (choice == nullptr) return;
  if (choice->is(JsonValue::Kind::kString)) {
    if (choice->text == "none") {
      out.choice = ToolFields::Choice::kNone;
    } else if (choice->text == "required" || choice->text == "any") {
      out.choice = ToolFields::Choice::kRequired;
    } else if (choice->text != "auto") {
      fields.fail("tool_choice", found_expected(*choice, "none, auto, required or a function"));
    }
  } else if (choice->is(JsonValue::Kind::kObject)) {
    const JsonValue* type = choice->find("type");
    if (type != nullptr && !type->is(JsonValue::Kind::kString)) {
      return fields.fail("tool_choice.type", found_expected(*type, "\"function\""));
    }
    if (type != nullptr && type->text == "allowed_tools") return read_allowed(fields, *choice, out);
    const JsonValue* function = choice->find("function");
    const JsonValue* name = function != nullptr ? function->find("name") : choice->find("name");
    if (name == nullptr || !name->is(JsonValue::Kind::kString)) {
      return fields.fail("tool_choice", "found an object without function.name");
    }
    out.choice = ToolFields::Choice::kNamed;
    out.named = name->text;
  } else {
    fields.fail("tool_choice", found_expected(*choice, "none, auto, required or a function"));
  }
}

}  // namespace

bool are_few(RequestFields& fields, const JsonValue* list, const std::string& where) {
  if (list == nullptr || list->items.size() <= kMostTools) return true;
  fields.fail(where, "found " + std::to_string(list->items.size()) + " entries, expected at most " +
                         std::to_string(kMostTools));
  return false;
}

ToolFields read_tools(RequestFields& fields, bool strict_is_offered, const std::vector<std::string>& places) {
  ToolFields out;
  const JsonValue* tools = fields.array("tools");
  if (tools != nullptr) read_tool_list(fields, *tools, strict_is_offered, places, out);
  read_choice(fields, out);
  out.parallel = fields.boolean("parallel_tool_calls").value_or(true);
  if (fields.failed()) return out;
  if (out.choice == ToolFields::Choice::kRequired && out.offered.empty()) {
    fields.fail("tool_choice", "found required, but there are no tools");
  }
  if (out.choice == ToolFields::Choice::kNamed && !is_offered(out, out.named)) {
    fields.fail("tool_choice", "the function '" + out.named + "' is not among the tools");
  }
  if (out.choice != ToolFields::Choice::kNone && !out.offered.empty()) out.tools = tools;
  return out;
}

std::function<std::unique_ptr<TokenConstraint>()> make_call_constraint(const Tokenizer& tokenizer,
                                                                       const std::vector<std::string>& names) {
  const auto tree = std::make_shared<TokenTree>();
  for (const auto& name : names) {
    PromptText markup;
    markup.append_template("\n\n<");
    markup.append_template(kDsmlText);
    markup.append_template("tool_calls>\n<");
    markup.append_template(kDsmlText);
    markup.append_template("invoke name=\"");
    markup.append_user(name);
    markup.append_template("\">\n");
    tree->add(tokenizer.encode(markup));
  }
  return [tree] { return std::make_unique<CallConstraint>(tree); };
}

}  // namespace fathom
