#include "server/request_fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace fathom {
namespace {

// Bare NaN, Infinity and -Infinity become strings. Nothing when there are none.
std::optional<std::string> quote_non_numbers(std::string_view body) {
  static constexpr std::array<std::string_view, 3> kWords = {"-Infinity", "Infinity", "NaN"};
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
    const auto word =
        std::find_if(kWords.begin(), kWords.end(), [&](std::string_view w) { return body.substr(i).starts_with(w); });
    if (word != kWords.end()) {
      out += '"';
      out += *word;
      out += '"';
      i += word->size() - 1;
      found = true;
      continue;
    }
    if (c == '"') in_string = true;
    out += c;
  }
  if (!found) return std::nullopt;
  return out;
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
    if (const auto quoted = quote_non_numbers(body)) {
      if (auto again = parse_json(*quoted); again.ok()) parsed = std::move(again);
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
