#include "text/json_value.h"

#include <charconv>
#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <unordered_map>

namespace fathom {
namespace {

// Python's repr of a float: the shortest digits that read back as the same number, in positional notation for
// exponents from -4 to 15.
std::string python_float(double value) {
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<std::size_t>(end - buffer));
  std::string out;
  if (text[0] == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const std::size_t e = text.find('e');
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  int exponent = 0;
  const char* exponent_begin = text.data() + e + 1;
  std::from_chars(*exponent_begin == '+' ? exponent_begin + 1 : exponent_begin, text.data() + text.size(), exponent);
  const int num_digits = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits.substr(0, 1);
    if (num_digits > 1) out += "." + digits.substr(1);
    out += exponent < 0 ? "e-" : "e+";
    const std::string magnitude = std::to_string(std::abs(exponent));
    return out + (magnitude.size() < 2 ? "0" : "") + magnitude;
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto point = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= point) return out + digits + std::string(point - digits.size(), '0') + ".0";
  return out + digits.substr(0, point) + "." + digits.substr(point);
}

// Builds the tree from the library's events. Containers are closed by moving the top of the stack into its parent.
class TreeBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit TreeBuilder(bool keep) : keep_(keep) {}

  JsonValue root;
  std::string error;

  bool null() override { return add({}); }
  bool boolean(bool value) override { return add(make(value ? JsonValue::Kind::kTrue : JsonValue::Kind::kFalse, "")); }
  bool number_integer(number_integer_t value) override {
    return add(make(JsonValue::Kind::kNumber, std::to_string(value)));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return add(make(JsonValue::Kind::kNumber, std::to_string(value)));
  }
  // Also called for integers beyond 64 bits; those stay as written.
  bool number_float(number_float_t value, const string_t& written) override {
    const bool integer = written.find_first_of(".eE") == std::string::npos;
    return add(make(JsonValue::Kind::kNumber, integer ? written : python_float(value)));
  }
  bool string(string_t& value) override { return add(make(JsonValue::Kind::kString, std::move(value))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(JsonValue::Kind::kObject); }
  bool start_array(std::size_t) override { return open(JsonValue::Kind::kArray); }
  bool key(string_t& value) override {
    if (keep_) stack_.back().key = std::move(value);
    return true;
  }
  bool end_array() override { return close(); }
  bool end_object() override {
    if (keep_) drop_repeated_keys(stack_.back().value.members);
    return close();
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& e) override {
    error = e.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 5: ...": the tag says nothing to a user.
    if (const std::size_t tag = error.find("] "); tag != std::string::npos) error.erase(0, tag + 2);
    return false;
  }

 private:
  struct Open {
    JsonValue value;
    std::string key;  // of the member being read
  };

  static JsonValue make(JsonValue::Kind kind, std::string text) {
    JsonValue value;
    value.kind = kind;
    value.text = std::move(text);
    return value;
  }

  bool add(JsonValue value) {
    if (!keep_) return true;
    if (stack_.empty()) {
      root = std::move(value);
    } else if (Open& top = stack_.back(); top.value.is(JsonValue::Kind::kArray)) {
      top.value.items.push_back(std::move(value));
    } else {
      top.value.members.push_back({std::move(top.key), std::move(value)});
    }
    return true;
  }

  bool open(JsonValue::Kind kind) {
    if (++depth_ > kMaxJsonDepth) {
      error = "nested deeper than " + std::to_string(kMaxJsonDepth) + " levels";
      return false;
    }
    if (keep_) stack_.push_back({make(kind, ""), ""});
    return true;
  }

  bool close() {
    --depth_;
    if (!keep_) return true;
    JsonValue value = std::move(stack_.back().value);
    stack_.pop_back();
    return add(std::move(value));
  }

  static void drop_repeated_keys(std::vector<JsonValue::Member>& members) {
    if (members.size() < 2) return;
    std::unordered_map<std::string_view, std::size_t> first_place;
    first_place.reserve(members.size());
    std::vector<bool> repeated(members.size(), false);
    bool any = false;
    for (std::size_t i = 0; i < members.size(); ++i) {
      const auto [entry, is_new] = first_place.emplace(members[i].key, i);
      if (is_new) continue;
      members[entry->second].value = std::move(members[i].value);
      repeated[i] = any = true;
    }
    if (!any) return;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (repeated[i]) continue;
      if (kept != i) members[kept] = std::move(members[i]);
      ++kept;
    }
    members.resize(kept);
  }

  bool keep_;
  int depth_ = 0;
  std::vector<Open> stack_;
};

bool run_parser(std::string_view text, TreeBuilder& builder) {
  // The library takes a zero byte for the end of the text; JSON has none.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) {
    builder.error = "zero byte at offset " + std::to_string(zero);
    return false;
  }
  return nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
}

}  // namespace

const JsonValue* JsonValue::find(std::string_view key) const {
  for (const Member& member : members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

std::optional<std::int64_t> JsonValue::as_integer() const {
  if (kind != Kind::kNumber) return std::nullopt;
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  if (failure != std::errc{} || stop != end) return std::nullopt;
  return value;
}

std::optional<double> JsonValue::as_double() const {
  if (kind != Kind::kNumber) return std::nullopt;
  double value = 0;
  const auto [stop, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc{}) return std::nullopt;
  return value;
}

std::string_view json_kind_name(JsonValue::Kind kind) {
  switch (kind) {
    case JsonValue::Kind::kNull: return "null";
    case JsonValue::Kind::kFalse:
    case JsonValue::Kind::kTrue: return "a boolean";
    case JsonValue::Kind::kNumber: return "a number";
    case JsonValue::Kind::kString: return "a string";
    case JsonValue::Kind::kArray: return "an array";
    case JsonValue::Kind::kObject: return "an object";
  }
  return "nothing";
}

Result<JsonValue> parse_json(std::string_view text) {
  TreeBuilder builder(true);
  if (!run_parser(text, builder)) return invalid_argument("not valid JSON: " + builder.error);
  return std::move(builder.root);
}

bool is_valid_json(std::string_view text) {
  TreeBuilder builder(false);
  return run_parser(text, builder);
}

std::string dump_python_json(const JsonValue& value) {
  std::string out;
  append_python_json(value, out);
  return out;
}

void append_python_json(const JsonValue& value, std::string& out) {
  switch (value.kind) {
    case JsonValue::Kind::kNull: out += "null"; break;
    case JsonValue::Kind::kFalse: out += "false"; break;
    case JsonValue::Kind::kTrue: out += "true"; break;
    case JsonValue::Kind::kNumber: out += value.text; break;
    case JsonValue::Kind::kString: append_json_quoted(value.text, out); break;
    case JsonValue::Kind::kArray: {
      out += '[';
      const char* separator = "";
      for (const JsonValue& item : value.items) {
        out += separator;
        append_python_json(item, out);
        separator = ", ";
      }
      out += ']';
      break;
    }
    case JsonValue::Kind::kObject: {
      out += '{';
      const char* separator = "";
      for (const JsonValue::Member& member : value.members) {
        out += separator;
        append_json_quoted(member.key, out);
        out += ": ";
        append_python_json(member.value, out);
        separator = ", ";
      }
      out += '}';
      break;
    }
  }
}

void append_json_quoted(std::string_view text, std::string& out) {
  out += '"';
  append_json_escaped(text, out);
  out += '"';
}

void append_json_escaped(std::string_view text, std::string& out) {
  constexpr char kHex[] = "0123456789abcdef";
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += "\\u00";
          out += kHex[c >> 4];
          out += kHex[c & 15];
        } else {
          out += c;
        }
    }
  }
}

}  // namespace fathom
