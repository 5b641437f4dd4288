#include "grammar/schema_lengths.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "grammar/regex_counts.h"
#include "grammar/schema_places.h"
#include "grammar/schema_recursion.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostNameBytes = 256;

// Named in a tag as it is, and read back from there.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name.size() <= kMostNameBytes && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
  });
}

bool has_bounds(const Json& schema) { return schema.contains("minLength") || schema.contains("maxLength"); }

// Whether a text may stand where the schema is met: one of its own, alternatives aside.
bool may_be_text(const Json& schema) {
  if (!schema.is_object()) return true;
  const auto is_text = [](const Json& value) { return value.is_string(); };
  if (schema.contains("const")) return is_text(schema["const"]);
  if (schema.contains("enum")) {
    return !schema["enum"].is_array() || std::any_of(schema["enum"].begin(), schema["enum"].end(), is_text);
  }
  if (!schema.contains("type")) return true;
  const Json& type = schema["type"];
  return type == "string" || (type.is_array() && std::find(type.begin(), type.end(), "string") != type.end());
}

// The value of a parameter, as a copy in which references are followed and its bounds are gone; false: they cannot be
// told from the parameter's name alone.
class Value {
 public:
  explicit Value(const Json& root) : root_(root) {}

  bool take(Json& schema) { return follow(schema, 0) && num_texts_ <= 1; }
  bool has_any() const { return has_any_; }
  LengthBounds bounds() const { return bounds_; }

 private:
  static constexpr int kMostDepth = 64;
  static constexpr std::size_t kMostCopied = std::size_t{1} << 22;  // bytes, about, of all that references stand for

  // References to what refers again, twice each, would grow without end.
  bool may_copy(const Json& target) {
    std::vector<const Json*> todo{&target};
    while (!todo.empty() && num_copied_bytes_ <= kMostCopied) {
      const Json& one = *todo.back();
      todo.pop_back();
      num_copied_bytes_ += sizeof(Json) + (one.is_string() ? one.get_ref<const std::string&>().size() : 0);
      if (!one.is_structured()) continue;
      for (const auto& [key, value] : one.items()) {
        num_copied_bytes_ += key.size();
        todo.push_back(&value);
      }
    }
    return num_copied_bytes_ <= kMostCopied;
  }

  bool follow(Json& schema, int depth) {
    if (depth > kMostDepth || !schema.is_object()) return false;
    if (schema.contains("$ref")) {
      const Json* target = schema["$ref"].is_string() ? resolve_reference(root_, schema["$ref"]) : nullptr;
      if (target == nullptr || !may_copy(*target)) return false;
      schema = Json(*target);
      return follow(schema, depth + 1);
    }
    for (const char* choice : {"const", "enum"}) {
      if (!schema.contains(choice)) continue;
      num_texts_ += may_be_text(schema) ? 1 : 0;
      return true;
    }
    for (const char* choice : {"anyOf", "oneOf", "allOf"}) {
      if (!schema.contains(choice)) continue;
      if (!schema[choice].is_array()) return false;
      return std::all_of(schema[choice].begin(), schema[choice].end(),
                         [&](Json& one) { return follow(one, depth + 1); });
    }
    if (!may_be_text(schema)) return true;
    ++num_texts_;
    if (!schema.contains("type")) return true;
    if (schema.contains("pattern") && schema["pattern"].is_string() && !has_bounds(schema) &&
        !schema.contains("format")) {
      const auto counted = counted_class(schema["pattern"].get_ref<const std::string&>());
      if (!counted) return true;
      bounds_ = counted->bounds;
      has_any_ = true;
      schema["pattern"] = "^" + counted->characters + "*$";
      return true;
    }
    if (!has_bounds(schema)) return true;
    if (schema.contains("pattern") || schema.contains("format")) return false;
    for (const auto& [key, bound] :
         {std::pair<const char*, std::int64_t*>{"minLength", &bounds_.least}, {"maxLength", &bounds_.most}}) {
      if (!schema.contains(key)) continue;
      if (!schema[key].is_number_unsigned() || schema[key] > INT32_MAX) return false;  // for the library to refuse
      *bound = schema[key].get<std::int64_t>();
    }
    if (bounds_.most >= 0 && bounds_.least > bounds_.most) return false;
    has_any_ = true;
    schema.erase("minLength");
    schema.erase("maxLength");
    schema["pattern"] = "^[^\xEF\xBD\x9C]*$";
    return true;
  }

  const Json& root_;
  LengthBounds bounds_;
  bool has_any_ = false;
  int num_texts_ = 0;
  std::size_t num_copied_bytes_ = 0;
};

// Whether something refers to what take_text_bounds writes in its place: the reference would lose its bounds.
bool refers_to_properties(const Json& schema) {
  std::vector<const Json*> todo{&schema};
  while (!todo.empty()) {
    const Json& one = *todo.back();
    todo.pop_back();
    if (!one.is_structured()) continue;
    for (const auto& [key, value] : one.items()) {
      todo.push_back(&value);
      if (key != "$ref" || !value.is_string()) continue;
      const auto& reference = value.get_ref<const std::string&>();
      if (!reference.starts_with("#/$defs/") && !reference.starts_with("#/definitions/")) return true;
    }
  }
  return false;
}

}  // namespace

BoundedTool take_text_bounds(Json& schema, const std::string& tool) {
  BoundedTool out{tool, {}};
  if (!schema.is_object()) return out;
  for (const char* key : {"$ref", "const", "enum", "anyOf", "oneOf", "allOf", "patternProperties"}) {
    if (schema.contains(key)) return out;
  }
  if (refers_to_properties(schema)) return out;
  const Json original = schema;
  if (schema.contains("properties") && schema["properties"].is_object()) {
    for (auto& [name, property] : schema["properties"].items()) {
      Value value(original);
      Json taken = property;
      if (!is_plain_name(name) || !value.take(taken) || !value.has_any()) continue;
      property = std::move(taken);
      out.texts[name] = value.bounds();
    }
  }
  if (schema.contains("additionalProperties") && schema["additionalProperties"].is_object()) {
    Value value(original);
    Json taken = schema["additionalProperties"];
    if (value.take(taken) && value.has_any()) {
      schema["additionalProperties"] = std::move(taken);
      out.texts[""] = value.bounds();
      const Json named = original.value("properties", Json::object());
      for (const auto& [name, property] : named.items()) out.texts.try_emplace(name);
    }
  }
  return out;
}

Status check_unrolled(const Json& schema) {
  struct Met {
    const Json* schema;
    bool is_value;  // of a parameter; else: of the arguments as a whole
  };
  std::vector<Met> todo{{&schema, false}};
  std::set<std::pair<const Json*, bool>> seen;
  while (!todo.empty()) {
    const auto [one, is_value] = todo.back();
    todo.pop_back();
    if (!one->is_object() || !seen.emplace(one, is_value).second) continue;
    if (one->contains("$ref") && (*one)["$ref"].is_string()) {
      if (const Json* target = resolve_reference(schema, (*one)["$ref"])) todo.push_back({target, is_value});
      continue;
    }
    bool is_choice = false;
    for (const char* choice : {"anyOf", "oneOf", "allOf"}) {
      if (!one->contains(choice) || !(*one)[choice].is_array()) continue;
      is_choice = true;
      for (const Json& alternative : (*one)[choice]) todo.push_back({&alternative, is_value});
    }
    if (is_choice) continue;
    if (is_value) {
      for (const char* key : {"minLength", "maxLength"}) {
        if (!may_be_text(*one) || !one->contains(key) || !(*one)[key].is_number()) continue;
        if ((*one)[key] <= kMostUnrolledLength) continue;
        return invalid_argument("\"" + std::string(key) + "\": found " + (*one)[key].dump() + ", expected at most " +
                                std::to_string(kMostUnrolledLength) +
                                " where a parameter has other forms of text beside it or no plain name of its own");
      }
      continue;
    }
    for (const char* key : {"properties", "patternProperties"}) {
      if (!one->contains(key) || !(*one)[key].is_object()) continue;
      for (const auto& [name, value] : (*one)[key].items()) todo.push_back({&value, true});
    }
    for (const char* key : {"additionalProperties", "unevaluatedProperties"}) {
      if (one->contains(key)) todo.push_back({&(*one)[key], true});
    }
  }
  return {};
}

}  // namespace fathom
