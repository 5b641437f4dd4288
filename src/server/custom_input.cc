#include "server/custom_input.h"

#include "server/responses_tools.h"
#include "text/json_value.h"

namespace fathom {
namespace {

using Kind = JsonValue::Kind;

std::string value_text(const JsonValue& value) {
  return value.is(Kind::kString) ? value.text : dump_python_json(value);
}

}  // namespace

std::string CustomInput::push(std::string_view arguments) {
  arguments_ += arguments;
  if (!streams_) {
    const std::string beginning = "{\"" + std::string(kCustomParameter) + "\": \"";
    if (!arguments_.starts_with(beginning)) return {};
    streams_ = true;
    next_ = beginning.size();
  }
  if (closed_) return {};
  std::size_t end = next_;
  while (end < arguments_.size() && arguments_[end] != '"') end += arguments_[end] == '\\' ? 2 : 1;
  closed_ = end < arguments_.size();
  const auto text = parse_json("\"" + arguments_.substr(next_, end - next_) + "\"");
  next_ = end;
  return text.ok() ? text->text : std::string();
}

std::string CustomInput::finish() {
  if (streams_) return {};
  const auto parsed = parse_json(arguments_);
  if (!parsed.ok() || parsed->members.empty()) return {};
  if (const JsonValue* input = parsed->find(kCustomParameter)) return value_text(*input);
  return parsed->members.size() == 1 ? value_text(parsed->members.front().value) : arguments_;
}

}  // namespace fathom
