#include "grammar/text_lengths.h"

#include <algorithm>
#include <optional>

#include "base/check.h"

namespace fathom {
namespace {

constexpr std::string_view kBar = "\xEF\xBD\x9C";
constexpr std::string_view kTag =
                               "<\xEF\xBD\x9C"
                               "DSML\xEF\xBD\x9C",
                           kEndTag =
                               "</\xEF\xBD\x9C"
                               "DSML\xEF\xBD\x9C";
constexpr std::string_view kValueEnd =
    "</\xEF\xBD\x9C"
    "DSML\xEF\xBD\x9C"
    "parameter>";
constexpr std::string_view kNamed = " name=\"";
constexpr std::string_view kIsText = "\" string=\"true\">", kIsJson = "\" string=\"false\">";
// Of a tag outside of calls, where any text may stand.
constexpr std::size_t kMostTagBytes = 4096;

bool is_continued(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

std::int64_t num_chars(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(), [](char c) { return !is_continued(c); });
}

// X of "<｜DSML｜KIND name="X..." without `end`.
std::optional<std::string_view> name_in(std::string_view tag, std::string_view kind, std::string_view end) {
  for (const std::string_view part : {kTag, kind, kNamed}) {
    if (!tag.starts_with(part)) return std::nullopt;
    tag.remove_prefix(part.size());
  }
  if (!tag.ends_with(end)) return std::nullopt;
  tag.remove_suffix(end.size());
  return tag;
}

}  // namespace

TextTokens::TextTokens(const std::vector<std::string>& token_bytes) {
  for (const std::string& bytes : token_bytes) most_chars = std::max(most_chars, num_chars(bytes));
  const std::size_t num_words = (token_bytes.size() + 31) / 32;
  up_to.assign(static_cast<std::size_t>(most_chars) + 1, Mask(num_words, 0u));
  for (std::size_t id = 0; id < token_bytes.size(); ++id) {
    const std::string& bytes = token_bytes[id];
    const bool is_odd = !bytes.empty() && (bytes.front() == '/' || is_continued(bytes.front()) ||
                                           bytes.find_first_of("<\xEF") != std::string::npos);
    const std::size_t first = is_odd ? 0 : static_cast<std::size_t>(num_chars(bytes));
    up_to[first][id / 32] |= 1u << (id % 32);
    const auto token = static_cast<std::int32_t>(id);
    if (is_odd) odd.push_back(token);
    if (bytes.starts_with(kBar.substr(1)) || bytes.starts_with(kBar.substr(2)) || bytes.find(kBar) != bytes.npos) {
      ending.push_back(token);
    }
    if (const std::size_t end = bytes.find('>'); end != bytes.npos && end + 1 < bytes.size()) behind.push_back(token);
  }
  for (std::size_t chars = 1; chars < up_to.size(); ++chars) {
    for (std::size_t i = 0; i < num_words; ++i) up_to[chars][i] |= up_to[chars - 1][i];
  }
}

bool TextLengths::fits(std::string_view bytes) const {
  State state = now();
  return add_all(state, bytes);
}

bool TextLengths::push(std::string_view bytes) {
  states_.push_back(State(now()));
  return add_all(states_.back(), bytes);
}

void TextLengths::pop(std::int32_t num_tokens) {
  FATHOM_CHECK(num_tokens >= 0 && static_cast<std::size_t>(num_tokens) < states_.size(), "tokens that came");
  states_.resize(states_.size() - static_cast<std::size_t>(num_tokens));
}

void TextLengths::restrict(std::span<std::uint32_t> mask, const std::vector<std::string>& token_bytes) const {
  const State& state = now();
  const auto check = [&](const std::vector<std::int32_t>& ids) {
    for (const std::int32_t id : ids) {
      std::uint32_t& word = mask[static_cast<std::size_t>(id) / 32];
      const std::uint32_t bit = 1u << (id % 32);
      if ((word & bit) != 0 && !fits(token_bytes[static_cast<std::size_t>(id)])) word &= ~bit;
    }
  };
  if (state.place == Place::kOutside && !state.tag.empty()) return check(tokens_->behind);
  if (state.place != Place::kText) return;
  const std::int64_t room = state.bounds.most - state.chars;
  if (state.bounds.most >= 0 && room < tokens_->most_chars) {
    // No room at all is left where a closing tag has begun that has to go on.
    const TextTokens::Mask& up_to = tokens_->up_to[static_cast<std::size_t>(std::max<std::int64_t>(room, 0))];
    for (std::size_t i = 0; i < mask.size(); ++i) mask[i] &= up_to[i];
    return check(tokens_->odd);
  }
  if (state.chars - state.closing < state.bounds.least) check(tokens_->ending);
}

bool TextLengths::add_all(State& state, std::string_view bytes) const {
  bool keeps = true;
  for (const char c : bytes) keeps = add(state, c) && keeps;
  return keeps;
}

bool TextLengths::add(State& state, char c) const {
  if (state.place == Place::kText) return add_to_text(state, static_cast<unsigned char>(c));
  if (state.place == Place::kValue) {
    state.closing = c == kValueEnd[state.closing] ? static_cast<std::uint8_t>(state.closing + 1) : c == '<' ? 1 : 0;
    if (state.closing == kValueEnd.size()) state.place = Place::kOutside, state.closing = 0;
    return true;
  }
  if (c == '<') {
    state.tag = "<";
  } else if (!state.tag.empty()) {
    state.tag += c;
    const std::size_t size = state.tag.size();
    const bool may_be_tag =
        state.tag.starts_with(kTag.substr(0, size)) || state.tag.starts_with(kEndTag.substr(0, size));
    if (!may_be_tag || (!state.in_calls && size > kMostTagBytes)) {
      state.tag.clear();
    } else if (c == '>') {
      end_tag(state);
    }
  }
  return true;
}

void TextLengths::end_tag(State& state) const {
  const std::string_view tag = state.tag;
  if (tag ==
      "<\xEF\xBD\x9C"
      "DSML\xEF\xBD\x9Ctool_calls>") {
    state.in_calls = true;
  } else if (tag ==
             "</\xEF\xBD\x9C"
             "DSML\xEF\xBD\x9Ctool_calls>") {
    state.in_calls = false;
  } else if (const auto tool = name_in(tag, "invoke", "\">")) {
    const auto at = std::find_if(bounds_->begin(), bounds_->end(), [&](const auto& one) { return one.name == *tool; });
    state.tool = at == bounds_->end() ? -1 : static_cast<std::int32_t>(at - bounds_->begin());
  } else if (state.in_calls && name_in(tag, "parameter", kIsJson)) {
    state.place = Place::kValue, state.closing = 0;
  } else if (const auto name = name_in(tag, "parameter", kIsText); state.in_calls && name) {
    state.place = Place::kValue, state.closing = 0;
    if (state.tool >= 0) {
      const auto& texts = (*bounds_)[static_cast<std::size_t>(state.tool)].texts;
      auto at = texts.find(std::string(*name));
      if (at == texts.end()) at = texts.find("");
      if (at != texts.end()) {
        state.place = Place::kText, state.bounds = at->second, state.chars = 0, state.bar = 0;
      }
    }
  } else if (state.in_calls && name_in(tag, "parameter", "")) {
    return;  // a name may have a ">"
  }
  state.tag.clear();
}

// A text ends with "</" and a bar. Until the bar has come these may be its own: either way has to keep the bounds, or
// there would be no way on.
bool TextLengths::add_to_text(State& state, unsigned char c) const {
  const LengthBounds& bounds = state.bounds;
  const auto is_length = [&bounds](std::int64_t chars) {
    return chars >= bounds.least && (bounds.most < 0 || chars <= bounds.most);
  };
  const auto keeps = [&](std::int64_t num_closing) {
    return bounds.most < 0 || state.chars <= bounds.most || (num_closing > 0 && is_length(state.chars - num_closing));
  };
  if ((c & 0xC0) == 0x80) {
    if (state.bar > 0 && c == static_cast<unsigned char>(kBar[state.bar])) {
      if (++state.bar < kBar.size()) return keeps(3);
      state.bar = 0;
      if (state.closing == 2) {
        state.place = Place::kOutside, state.closing = 0;
        state.tag = kEndTag.substr(0, 2 + kBar.size());
        return is_length(state.chars - 3);
      }
    }
    state.bar = 0;
    state.closing = 0;
    return keeps(0);
  }
  ++state.chars;
  if (c == static_cast<unsigned char>(kBar[0]) && state.closing == 2) {
    state.bar = 1;
    return keeps(3);
  }
  state.bar = 0;
  state.closing = c == '<' ? 1 : c == '/' && state.closing == 1 ? 2 : 0;
  return keeps(state.closing);
}

}  // namespace fathom
