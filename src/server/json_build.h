// Small JSON values made in code, and read: what one API's form becomes in another's.
#pragma once

#include <string>
#include <utility>

#include "text/json_value.h"

namespace fathom {

inline JsonValue json_string(std::string text) {
  JsonValue value;
  value.kind = JsonValue::Kind::kString;
  value.text = std::move(text);
  return value;
}
inline JsonValue json_array() {
  JsonValue value;
  value.kind = JsonValue::Kind::kArray;
  return value;
}
inline JsonValue json_object() {
  JsonValue value;
  value.kind = JsonValue::Kind::kObject;
  return value;
}
inline JsonValue& json_set(JsonValue& object, std::string key, JsonValue value) {
  object.members.push_back({std::move(key), std::move(value)});
  return object;
}
inline JsonValue json_text_part(std::string text) {
  JsonValue part = json_object();
  json_set(part, "type", json_string("text"));
  json_set(part, "text", json_string(std::move(text)));
  return part;
}

// A string's characters; empty where there is none.
inline std::string json_text_of(const JsonValue* value) {
  return value != nullptr && value->is(JsonValue::Kind::kString) ? value->text : std::string();
}

}  // namespace fathom
