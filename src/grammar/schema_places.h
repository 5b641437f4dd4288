// The schemas within a schema, without recursion of ours: they may nest deep.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

inline bool among(std::initializer_list<std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Keywords whose value is a schema, a list of schemas, and an object of schemas under names the author chose.
inline bool holds_schema(std::string_view key) {
  return among({"additionalProperties", "unevaluatedProperties", "propertyNames", "items", "unevaluatedItems"}, key);
}
inline bool holds_schema_list(std::string_view key) { return among({"anyOf", "oneOf", "allOf", "prefixItems"}, key); }
inline bool holds_schema_map(std::string_view key) {
  return among({"properties", "patternProperties", "$defs", "definitions"}, key);
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

}  // namespace fathom
