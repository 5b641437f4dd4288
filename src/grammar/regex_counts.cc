#include "grammar/regex_counts.h"

#include <algorithm>
#include <charconv>

namespace fathom {
namespace {

// Of bytes: no answer has so many, whatever its tokens.
constexpr std::int64_t kNoAnswer = 999'999'999;

// A class, an escape or a character of the expression at `at`; where it ends.
std::size_t end_of_item(std::string_view regex, std::size_t at) {
  if (regex[at] == '\\') {
    // \u{2014} is a character, no count.
    const bool is_code_point = regex.substr(at).starts_with("\\u{");
    const std::size_t close = is_code_point ? regex.find('}', at) : std::string_view::npos;
    return close != std::string_view::npos ? close + 1 : std::min(at + 2, regex.size());
  }
  if (regex[at] != '[') return at + 1;
  for (++at; at < regex.size() && regex[at] != ']'; ++at) at += regex[at] == '\\' ? 1 : 0;
  return std::min(at + 1, regex.size());
}

struct Count {
  LengthBounds bounds;
  std::size_t end = 0;
  bool is_large() const { return std::max(bounds.least, bounds.most) > kMostUnrolledCount; }
};

// "{m}", "{m,}" or "{m,n}" at `at`.
std::optional<Count> count_at(std::string_view regex, std::size_t at) {
  const auto number = [&](std::int64_t& value) {
    const auto [end, error] = std::from_chars(regex.data() + at, regex.data() + regex.size(), value);
    const bool found = error == std::errc() && value >= 0;
    if (found) at = static_cast<std::size_t>(end - regex.data());
    return found;
  };
  const auto take = [&](char c) {
    const bool found = at < regex.size() && regex[at] == c;
    at += found ? 1 : 0;
    return found;
  };
  Count count;
  if (!take('{') || !number(count.bounds.least)) return std::nullopt;
  if (take('}')) {
    count.bounds.most = count.bounds.least;
  } else {
    if (!take(',')) return std::nullopt;
    if (!take('}') && (!number(count.bounds.most) || !take('}'))) return std::nullopt;
  }
  count.end = at;
  return count;
}

// With other bounds for its large counts, where `change` gives some.
template <class Change>
std::string rewritten(std::string_view regex, Change change) {
  std::string out;
  for (std::size_t at = 0; at < regex.size();) {
    const auto count = count_at(regex, at);
    const std::size_t end = count ? count->end : end_of_item(regex, at);
    const std::optional<LengthBounds> bounds = count && count->is_large() ? change(count->bounds) : std::nullopt;
    out += bounds ? "{" + std::to_string(bounds->least) + "," + std::to_string(bounds->most) + "}"
                  : std::string(regex.substr(at, end - at));
    at = end;
  }
  return out;
}

}  // namespace

bool has_large_count(std::string_view regex) {
  for (std::size_t at = 0; at < regex.size(); at = end_of_item(regex, at)) {
    if (const auto count = count_at(regex, at); count && count->is_large()) return true;
  }
  return false;
}

std::string close_counts(std::string_view regex) {
  return rewritten(regex, [](const LengthBounds& bounds) -> std::optional<LengthBounds> {
    if (bounds.most >= 0) return std::nullopt;
    return LengthBounds{bounds.least, kNoAnswer};
  });
}

std::string small_counts(std::string_view regex) {
  return rewritten(regex, [](const LengthBounds& bounds) -> std::optional<LengthBounds> {
    return bounds.least == 0 ? LengthBounds{0, 1} : LengthBounds{1, 2};
  });
}

std::optional<CountedClass> counted_class(std::string_view regex) {
  if (regex.starts_with('^')) regex.remove_prefix(1);
  if (regex.ends_with('$') && !regex.ends_with("\\$")) regex.remove_suffix(1);
  if (regex.empty() || std::string_view("(|{^$").find(regex.front()) != std::string_view::npos) return std::nullopt;
  const std::size_t end = end_of_item(regex, 0);
  const std::string_view item = regex.substr(0, end);
  const auto count = end < regex.size() ? count_at(regex, end) : std::nullopt;
  if (!count || count->end != regex.size() || !count->is_large()) return std::nullopt;
  if (count->bounds.most >= 0 && count->bounds.least > count->bounds.most) return std::nullopt;
  if (!item.starts_with("[^")) {
    const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
    if (!std::all_of(item.begin(), item.end(), is_ascii)) return std::nullopt;
    for (const char* by_code : {"\\u", "\\x", "\\c"}) {
      if (item.find(by_code) != std::string_view::npos) return std::nullopt;
    }
  }
  return CountedClass{std::string(item), count->bounds};
}

}  // namespace fathom
