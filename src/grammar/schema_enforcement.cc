#include "grammar/schema_enforcement.h"

#include "grammar/regex_check.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

// The library's automaton of a pattern takes time with the square of its size: a third of a second here.
constexpr std::size_t kMostPatternSize = 1000;

bool among(std::initializer_list<std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Keywords whose value is a schema, a list of schemas, and an object of schemas under names the author chose.
bool holds_schema(std::string_view key) {
  return among({"additionalProperties", "unevaluatedProperties", "propertyNames", "items", "unevaluatedItems"}, key);
}
bool holds_schema_list(std::string_view key) { return among({"anyOf", "oneOf", "allOf", "prefixItems"}, key); }
bool holds_schema_map(std::string_view key) {
  return among({"properties", "patternProperties", "$defs", "definitions"}, key);
}

bool is_number_keyword(std::string_view key) {
  return among({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}, key);
}
bool is_string_keyword(std::string_view key) { return among({"minLength", "maxLength", "pattern", "format"}, key); }
bool is_array_keyword(std::string_view key) {
  return among({"items", "prefixItems", "additionalItems", "unevaluatedItems", "minItems", "maxItems", "uniqueItems",
                "contains", "minContains", "maxContains"},
               key);
}
bool is_object_keyword(std::string_view key) {
  return among({"properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames",
                "required", "minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies"},
               key);
}
bool is_choice_keyword(std::string_view key) {
  return among({"$ref", "$dynamicRef", "$recursiveRef", "const", "enum", "anyOf", "oneOf", "allOf", "type", "not", "if",
                "then", "else"},
               key);
}
bool is_condition(std::string_view key) {
  return is_number_keyword(key) || is_string_keyword(key) || is_array_keyword(key) || is_object_keyword(key) ||
         is_choice_keyword(key);
}

bool has_type(const Json& type, std::string_view name) {
  if (type.is_string()) return type.get_ref<const std::string&>() == name;
  return type.is_array() && std::any_of(type.begin(), type.end(), [&](const Json& one) { return one == name; });
}

bool value_has_type(const Json& value, const Json& type) {
  switch (value.type()) {
    case Json::value_t::null: return has_type(type, "null");
    case Json::value_t::boolean: return has_type(type, "boolean");
    case Json::value_t::string: return has_type(type, "string");
    case Json::value_t::array: return has_type(type, "array");
    case Json::value_t::object: return has_type(type, "object");
    case Json::value_t::number_float: return has_type(type, "number");
    default: return has_type(type, "number") || has_type(type, "integer");
  }
}

// The keyword by which the library reads a schema: it looks at this one alone, but for "type".
std::string_view deciding_keyword(const Json& schema) {
  for (std::string_view key : {"$ref", "const", "enum", "anyOf", "oneOf", "allOf", "type"}) {
    if (schema.contains(key)) return key;
  }
  for (std::string_view key : {"properties", "additionalProperties", "unevaluatedProperties"}) {
    if (schema.contains(key)) return "an object";
  }
  for (std::string_view key : {"items", "prefixItems", "unevaluatedItems"}) {
    if (schema.contains(key)) return "an array";
  }
  return "nothing";
}

std::string not_enforced(std::string_view key, const std::string& why) {
  return "\"" + std::string(key) + "\" " + (why.empty() ? "is not supported" : why);
}

// What the grammar of a value of one of the stated types leaves out; empty: nothing.
std::string unmet_of_types(const Json& schema, const Json& type) {
  const bool is_integer = has_type(type, "integer"), is_number = has_type(type, "number");
  const bool is_string = has_type(type, "string"), is_array = has_type(type, "array");
  const bool is_object = has_type(type, "object");
  if (schema.contains("multipleOf")) {
    const Json& value = schema["multipleOf"];
    const bool is_whole = value.is_number() && value.get<double>() >= 1 &&
                          value.get<double>() == static_cast<double>(static_cast<std::int64_t>(value.get<double>()));
    if (is_number || (is_integer && !is_whole)) {
      return not_enforced("multipleOf", "is supported for integers alone, by a whole number");
    }
    if (is_integer && (schema.contains("minimum") || schema.contains("maximum") ||
                       schema.contains("exclusiveMinimum") || schema.contains("exclusiveMaximum"))) {
      return not_enforced("multipleOf", "beside a bound is not supported");
    }
  }
  if (is_string) {
    if (schema.contains("pattern") && schema["pattern"].is_string()) {
      if (const Status status = check_regex(schema["pattern"].get_ref<const std::string&>(), kMostPatternSize);
          !status.ok()) {
        return "\"pattern\": " + status.message();
      }
    }
    const bool has_length = schema.contains("minLength") || schema.contains("maxLength");
    if (schema.contains("pattern") && has_length) {
      return not_enforced("pattern",
                          "beside \"minLength\" or \"maxLength\" is not supported; write the length into it");
    }
    if (schema.contains("format") && (has_length || schema.contains("pattern"))) {
      return not_enforced("format", "beside \"pattern\" or a length is not supported");
    }
  }
  if (is_array) {
    for (std::string_view key : {"contains", "minContains", "maxContains", "additionalItems"}) {
      if (schema.contains(key)) return not_enforced(key, "");
    }
    if (schema.contains("uniqueItems") && schema["uniqueItems"] != false) return not_enforced("uniqueItems", "");
  }
  if (is_object) {
    for (std::string_view key : {"dependentRequired", "dependentSchemas", "dependencies"}) {
      if (schema.contains(key)) return not_enforced(key, "");
    }
    if (schema.contains("patternProperties")) {
      for (const auto& [name, value] : schema["patternProperties"].items()) {
        const Status status = check_regex(name, kMostPatternSize);
        if (!status.ok()) return "\"patternProperties\": " + status.message();
      }
    }
    const Json* properties = schema.contains("properties") ? &schema["properties"] : nullptr;
    if (schema.contains("required") && schema["required"].is_array()) {
      for (const Json& name : schema["required"]) {
        if (!name.is_string()) return not_enforced("required", "has a member that is no string");
        if (properties == nullptr || !properties->is_object() || !properties->contains(name.get<std::string>())) {
          return not_enforced("required", "names \"" + name.get<std::string>() + "\", which \"properties\" does not");
        }
      }
    }
  }
  return {};
}

// What the library's grammar of this schema leaves out, schemas within it aside; empty: nothing.
std::string unmet(const Json& schema) {
  const std::string_view decides = deciding_keyword(schema);
  for (std::string_view key : {"not", "if", "then", "else", "$dynamicRef", "$recursiveRef"}) {
    if (schema.contains(key)) return not_enforced(key, "");
  }
  if (decides == "type") return unmet_of_types(schema, schema["type"]);
  if (decides == "an object") return unmet_of_types(schema, "object");
  if (decides == "an array") return unmet_of_types(schema, "array");
  if (decides == "allOf" && schema["allOf"].is_array() && schema["allOf"].size() != 1) {
    return not_enforced("allOf", "is supported with one member; merge its members into one schema");
  }
  for (const auto& [key, value] : schema.items()) {
    if (key == decides || !is_condition(key)) continue;
    if (key == "type" && decides == "const" && value_has_type(schema["const"], value)) continue;
    if (key == "type" && decides == "enum" && schema["enum"].is_array() &&
        std::all_of(schema["enum"].begin(), schema["enum"].end(),
                    [&value = value](const Json& one) { return value_has_type(one, value); })) {
      continue;
    }
    if (decides == "nothing") return not_enforced(key, "without a \"type\" is not supported");
    return not_enforced(key, "beside \"" + std::string(decides) + "\" is not supported");
  }
  return {};
}

template <typename AnyJson>
struct Place {
  AnyJson* schema;
  std::string path;
};

template <typename AnyJson>
void push_schemas_within(const Place<AnyJson>& place, std::vector<Place<AnyJson>>& places) {
  for (auto& [key, value] : place.schema->items()) {
    const std::string path = place.path + "/" + key;
    if (holds_schema(key)) {
      places.push_back({&value, path});
    } else if (holds_schema_list(key) && value.is_array()) {
      for (std::size_t i = 0; i < value.size(); ++i) places.push_back({&value[i], path + "/" + std::to_string(i)});
    } else if (holds_schema_map(key) && value.is_object()) {
      for (auto& [name, one] : value.items()) places.push_back({&one, path + "/" + name});
    }
  }
}

// In characters that the library's own reader of patterns takes: it quotes what it matches as JSON does, and the other
// one, which it falls back to beyond ASCII, does not.
std::string as_ascii(std::string_view regex) {
  std::string out;
  while (!regex.empty()) {
    const auto lead = static_cast<unsigned char>(regex.front());
    const std::size_t size = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    unsigned code = size == 1 ? lead : lead & (0x7Fu >> size);
    for (std::size_t i = 1; i < size && i < regex.size(); ++i) {
      code = code << 6 | (static_cast<unsigned char>(regex[i]) & 0x3F);
    }
    if (size == 1 && lead >= 0x20 && lead <= 0x7E) {
      out += regex.front();
    } else {
      char digits[8];
      out += "\\u{" + std::string(digits, std::to_chars(digits, digits + sizeof digits, code, 16).ptr) + "}";
    }
    regex.remove_prefix(std::min(size, regex.size()));
  }
  return out;
}

}  // namespace

Status check_enforced(const Json& schema) {
  std::vector<Place<const Json>> places{{&schema, "#"}};
  while (!places.empty()) {
    const auto place = std::move(places.back());
    places.pop_back();
    if (!place.schema->is_object()) continue;
    if (const std::string found = unmet(*place.schema); !found.empty()) {
      const std::string_view unseen = " (the answer could break it unseen)";
      return invalid_argument("the schema at " + place.path + ": " + found +
                              (found.ends_with(unseen) ? "" : std::string(unseen)));
    }
    push_schemas_within(place, places);
  }
  return {};
}

std::vector<std::string> spell_out_patterns(Json& schema) {
  std::vector<std::string> patterns;
  const auto spelled = [&patterns](const std::string& regex) {
    return patterns.emplace_back(as_ascii(spell_out(regex)));
  };
  std::vector<Place<Json>> places{{&schema, ""}};
  while (!places.empty()) {
    const auto place = std::move(places.back());
    places.pop_back();
    Json& one = *place.schema;
    if (!one.is_object()) continue;
    if (one.contains("pattern") && one["pattern"].is_string()) one["pattern"] = spelled(one["pattern"]);
    if (one.contains("patternProperties") && one["patternProperties"].is_object()) {
      Json renamed = Json::object();
      for (auto& [name, value] : one["patternProperties"].items()) {
        const std::string text = spelled(name);
        renamed[renamed.contains(text) ? name : text] = std::move(value);
      }
      one["patternProperties"] = std::move(renamed);
    }
    push_schemas_within(place, places);
  }
  return patterns;
}

}  // namespace fathom
