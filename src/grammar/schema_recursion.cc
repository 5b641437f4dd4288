#include "grammar/schema_recursion.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

// Values under these are no schemas, or are met only through a reference.
constexpr std::array<std::string_view, 7> kNotFollowed = {"$defs",   "definitions", "enum",   "const",
                                                          "default", "examples",    "example"};
// Objects whose keys are names that the schema's author chose.
constexpr std::array<std::string_view, 3> kMaps = {"properties", "patternProperties", "dependentSchemas"};

template <std::size_t kSize>
bool among(const std::array<std::string_view, kSize>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

struct Next {
  const Json* schema;
  std::string reference;  // how it was reached; empty: it stands there
};

std::vector<Next> schemas_below(const Json& root, const Json& schema) {
  std::vector<Next> below;
  if (schema.is_array()) {
    for (const Json& item : schema) below.push_back({&item, ""});
    return below;
  }
  if (!schema.is_object()) return below;
  for (const auto& [key, value] : schema.items()) {
    if ((key == "$ref" || key == "$recursiveRef" || key == "$dynamicRef") && value.is_string()) {
      const auto reference = value.get<std::string>();
      if (const Json* target = resolve_reference(root, reference)) below.push_back({target, reference});
    } else if (among(kMaps, key) && value.is_object()) {
      for (const auto& [name, property] : value.items()) below.push_back({&property, ""});
    } else if (!among(kNotFollowed, key) && (value.is_object() || value.is_array())) {
      below.push_back({&value, ""});
    }
  }
  return below;
}

}  // namespace

const Json* resolve_reference(const Json& root, const std::string& reference) {
  if (reference == "#") return &root;
  if (!reference.starts_with("#/")) return nullptr;
  try {
    const Json::json_pointer pointer(reference.substr(1));
    return root.contains(pointer) ? &root.at(pointer) : nullptr;
  } catch (const Json::exception&) {
    return nullptr;
  }
}

Status check_not_recursive(const Json& schema) {
  enum class State { kOpen, kDone };
  struct Visit {
    const Json* schema;
    std::vector<Next> below;
    std::size_t next = 0;
  };
  std::unordered_map<const Json*, State> states{{&schema, State::kOpen}};
  std::vector<Visit> path;  // no recursion of ours: chains of references may be long
  path.push_back({&schema, schemas_below(schema, schema)});
  while (!path.empty()) {
    Visit& visit = path.back();
    if (visit.next == visit.below.size()) {
      states[visit.schema] = State::kDone;
      path.pop_back();
      continue;
    }
    const Next next = visit.below[visit.next++];
    const auto [at, is_new] = states.emplace(next.schema, State::kOpen);
    if (is_new) {
      path.push_back({next.schema, schemas_below(schema, *next.schema)});
    } else if (at->second == State::kOpen) {
      return invalid_argument("the schema is recursive: \"" + next.reference +
                              "\" refers to a schema it stands in; write out as many levels as are needed");
    }
  }
  return {};
}

}  // namespace fathom
