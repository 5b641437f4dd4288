#include "server/request_fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace fathom {
namespace {

// Put before the text of what stands in for a number that JSON cannot hold.
constexpr std::string_view kMark = "\x1Fnot a number: ";

// The length of what begins here and is no number of JSON's: NaN, Infinity, -Infinity, or one that overflows. 0: none.
std::size_t non_number_length(std::string_view text) {
  for (const std::string_view word : {"-Infinity", "Infinity", "NaN"}) {
    if (text.starts_with(word)) return word.size();
  }
  if (text.front() != '-' && (text.front() < '0' || text.front() > '9')) return 0;
  const std::size_t length = std::min(text.find_first_not_of("+-.0123456789eE"), text.size());
  double value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + length, value);
  return error == std::errc::result_out_of_range && rest == text.data() + length ? length : 0;
}

// Those become marked strings. Nothing when there are none.
std::optional<std::string> mark_non_numbers(std::string_view body) {
  std::string out;
  bool in_string = false;
  bool found = false;
  for (std::size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_string) {
      out += c;
      if (c == '\\' && i + 1 < body.size()) out += body[++i];
      if (c == '"') in_string = false;
      continue;
    }
    // Within a number, what follows its first character is none of its own.
    const bool begins = i == 0 || std::string_view("+-.0123456789eE").find(body[i - 1]) == std::string_view::npos;
    if (const std::size_t length = begins ? non_number_length(body.substr(i)) : 0; length > 0) {
      out += "\"\\u001f";
      out += kMark.substr(1);
      out += body.substr(i, std::min<std::size_t>(length, 40));
      out += '"';
      i += length - 1;
      found = true;
      continue;
    }
    if (c == '"') in_string = true;
    out += c;
  }
  if (!found) return std::nullopt;
  return out;
}

// The place of the first marked string, by the names of members and the numbers of items.
std::optional<ApiError> marked_field(const JsonValue& value, const std::string& path) {
  if (value.is(JsonValue::Kind::kString) && value.text.starts_with(kMark)) {
    return bad_field(path, "found " + value.text.substr(kMark.size()) + ", expected a value that JSON can hold");
  }
  for (const auto& [key, member] : value.members) {
    if (auto found = marked_field(member, path.empty() ? key : path + "." + key)) return found;
  }
  for (std::size_t i = 0; i < value.items.size(); ++i) {
    if (auto found = marked_field(value.items[i], path + "[" + std::to_string(i) + "]")) return found;
  }
  return std::nullopt;
}

std::string format_number(double value) {
  char buffer[40];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
}

std::string brief(const JsonValue& value) {
  if (value.is(JsonValue::Kind::kNumber)) return value.text.substr(0, 40);
  if (value.is(JsonValue::Kind::kString) && value.text.size() <= 40) return "\"" + value.text + "\"";
  return std::string(json_kind_name(value.kind));
}

}  // namespace

std::optional<JsonValue> parse_body(std::string_view body, ApiError& error) {
  auto parsed = parse_json(body);
  if (!parsed.ok()) {
    if (const auto marked = mark_non_numbers(body)) {
      const auto again = parse_json(*marked);
      if (const auto found = again.ok() ? marked_field(*again, "") : std::nullopt) {
        error = *found;
        return std::nullopt;
      }
    }
  }
  if (!parsed.ok()) {
    error = bad_field("body", parsed.status().message());
    return std::nullopt;
  }
  if (!parsed->is(JsonValue::Kind::kObject)) {
    error = bad_field("body", found_expected(*parsed, "an object"));
    return std::nullopt;
  }
  return std::move(*parsed);
}

std::string found_expected(const JsonValue& found, std::string_view expected) {
  return "found " + brief(found) + ", expected " + std::string(expected);
}

std::optional<std::int64_t> integral_value(const JsonValue& value) {
  if (!value.is(JsonValue::Kind::kNumber)) return std::nullopt;
  if (const auto exact = value.as_integer()) return exact;
  const auto real = value.as_double();
  if (!real || std::floor(*real) != *real || std::abs(*real) > 9e15) return std::nullopt;
  return static_cast<std::int64_t>(*real);
}

const JsonValue* RequestFields::find(std::string_view key) const {
  const JsonValue* value = object_->find(key);
  return value == nullptr || value->is(JsonValue::Kind::kNull) ? nullptr : value;
}

void RequestFields::fail(std::string_view key, std::string message) {
  fail(bad_field(prefix_ + std::string(key), std::move(message)));
}

void RequestFields::fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

void RequestFields::absorb(const RequestFields& nested) {
  if (nested.failed()) fail(nested.error());
}

std::optional<bool> RequestFields::boolean(std::string_view key) {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_bool()) {
    fail(key, found_expected(*value, "true or false"));
    return std::nullopt;
  }
  return value->is(JsonValue::Kind::kTrue);
}

std::optional<std::string> RequestFields::string(std::string_view key) {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is(JsonValue::Kind::kString)) {
    fail(key, found_expected(*value, "a string"));
    return std::nullopt;
  }
  return value->text;
}

std::optional<std::int64_t> RequestFields::integer(std::string_view key, std::int64_t lowest, std::int64_t highest) {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto number = integral_value(*value);
  if (!number || *number < lowest || *number > highest) {
    fail(key, found_expected(*value, "an integer from " + std::to_string(lowest) + " to " + std::to_string(highest)));
    return std::nullopt;
  }
  return number;
}

std::optional<double> RequestFields::number(std::string_view key, double lowest, double highest, bool open_low) {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto number = value->is(JsonValue::Kind::kNumber) ? value->as_double() : std::nullopt;
  // Written so that a value that compares with nothing fails.
  const bool inside = number && *number >= lowest && *number <= highest && !(open_low && *number == lowest);
  if (!inside) {
    const std::string low = (open_low ? "above " : "from ") + format_number(lowest);
    fail(key, found_expected(*value, "a number " + low + " to " + format_number(highest)));
    return std::nullopt;
  }
  return number;
}

const JsonValue* RequestFields::object(std::string_view key) {
  const JsonValue* value = find(key);
  if (value != nullptr && !value->is(JsonValue::Kind::kObject)) {
    fail(key, found_expected(*value, "an object"));
    return nullptr;
  }
  return value;
}

const JsonValue* RequestFields::array(std::string_view key) {
  const JsonValue* value = find(key);
  if (value != nullptr && !value->is(JsonValue::Kind::kArray)) {
    fail(key, found_expected(*value, "an array"));
    return nullptr;
  }
  return value;
}

}  // namespace fathom
