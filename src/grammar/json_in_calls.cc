#include "grammar/json_in_calls.h"

#include "base/check.h"

namespace fathom {
namespace {

constexpr std::string_view kBegin = "string=\"false\">";
constexpr std::string_view kEnd = "</";

}  // namespace

void JsonInCalls::push(std::string_view bytes) {
  State state = now();
  for (const char c : bytes) {
    if (state.tail.size() == kBegin.size()) state.tail.erase(0, 1);
    state.tail += c;
    if (!state.in_json) {
      state.in_json = state.tail == kBegin;
    } else if (state.is_escaped) {
      state.is_escaped = false;
    } else if (state.in_string && c == '\\') {
      state.is_escaped = true;
    } else if (c == '"') {
      state.in_string = !state.in_string;
    } else if (!state.in_string && state.tail.ends_with(kEnd)) {
      state.in_json = false;
    }
  }
  states_.push_back(std::move(state));
}

void JsonInCalls::pop(std::int32_t num_tokens) {
  FATHOM_CHECK(num_tokens >= 0 && static_cast<std::size_t>(num_tokens) < states_.size(), "tokens that came");
  states_.resize(states_.size() - static_cast<std::size_t>(num_tokens));
}

}  // namespace fathom
