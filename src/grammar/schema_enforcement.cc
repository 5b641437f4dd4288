#include "grammar/schema_enforcement.h"

#include "grammar/regex_check.h"
#include "grammar/schema_places.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

// The library's automaton of a pattern takes time with the square of its size: a third of a second here.
constexpr std::size_t kMostPatternSize = 1000;

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

// A bound in steps of a millionth, which are all the numbers that the library writes between bounds: the first step
// inside. `direction` 1: of a lower bound, -1: of an upper one.
long double first_step(double bound, bool is_exclusive, int direction) {
  if (std::abs(bound) > 0x1p53 / 1e6) return static_cast<long double>(bound) * 1e6L + (is_exclusive ? direction : 0);
  const double nearest = std::round(bound * 1e6);
  const double at = nearest / 1e6;
  const bool is_outside = at == bound ? is_exclusive : (at < bound) == (direction > 0);
  return nearest + (is_outside ? direction : 0);
}

// Whether bounds leave no number that the library writes, which then makes an empty text of it.
bool is_empty_range(const Json& schema) {
  const auto first = [&schema](const char* key, const char* exclusive_key, int direction) {
    std::optional<long double> step;
    for (const char* one : {key, exclusive_key}) {
      if (!schema.contains(one) || !schema[one].is_number()) continue;
      const long double found = first_step(schema[one].get<double>(), one == exclusive_key, direction);
      if (!step || (found - *step) * direction > 0) step = found;
    }
    return step;
  };
  const auto low = first("minimum", "exclusiveMinimum", 1), high = first("maximum", "exclusiveMaximum", -1);
  return low && high && *low > *high;
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
  if (is_number && is_empty_range(schema)) {
    return "the bounds leave no number of at most six digits after the point, which are all that are written";
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
  for (std::string_view key : {"type", "anyOf", "oneOf"}) {
    if (decides == key && schema[key].is_array() && schema[key].empty()) return not_enforced(key, "is empty");
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

}  // namespace fathom
