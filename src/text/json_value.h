// JSON as Python sees it: key order kept, numbers kept as Python's json.loads -> json.dumps prints them (1.0 stays
// 1.0, 1e5 becomes 100000.0, integers of any size stay exact). Tool schemas and arguments go into prompts through
// this, because the model was trained on what Python prints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace fathom {

class JsonValue {
 public:
  enum class Kind { kNull, kFalse, kTrue, kNumber, kString, kArray, kObject };
  struct Member;

  Kind kind = Kind::kNull;
  std::string text;              // kString: the characters (UTF-8); kNumber: Python's spelling
  std::vector<JsonValue> items;  // kArray
  std::vector<Member> members;   // kObject: in order, keys unique (of equal keys the last value, at the first place)

  bool is(Kind k) const { return kind == k; }
  bool is_bool() const { return kind == Kind::kTrue || kind == Kind::kFalse; }
  // The member's value, or null when this is no object or has no such key.
  const JsonValue* find(std::string_view key) const;
  // The number as an integer, when it was written as one and fits.
  std::optional<std::int64_t> as_integer() const;
  std::optional<double> as_double() const;
};

struct JsonValue::Member {
  std::string key;
  JsonValue value;
};

// "null", "a boolean", "a number", "a string", "an array", "an object": for messages.
std::string_view json_kind_name(JsonValue::Kind kind);

// Nesting beyond this is refused: no input may exhaust the stack.
constexpr int kMaxJsonDepth = 256;

// Refuses anything that is not one JSON text in UTF-8, lone surrogates included; the message has line and column.
Result<JsonValue> parse_json(std::string_view text);
// Whether parse_json would take it, without building anything.
bool is_valid_json(std::string_view text);

// As Python's json.dumps(value, ensure_ascii=False): separators ", " and ": ".
std::string dump_python_json(const JsonValue& value);
void append_python_json(const JsonValue& value, std::string& out);
// A string in quotes, and the same without the quotes (for text that arrives in parts).
void append_json_quoted(std::string_view text, std::string& out);
void append_json_escaped(std::string_view text, std::string& out);

}  // namespace fathom
