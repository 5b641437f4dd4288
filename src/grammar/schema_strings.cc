#include "grammar/schema_strings.h"

#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "grammar/regex_check.h"
#include "grammar/schema_places.h"
#include "grammar/schema_recursion.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

// Null where there is none, or the library has to refuse it.
const Json* bound_of(const Json& schema, const char* key) {
  return schema.contains(key) && schema[key].is_number_unsigned() && schema[key] <= INT32_MAX ? &schema[key] : nullptr;
}

// The characters `of`, as many as the schema's bounds say; empty: it has none.
std::string bounded(const Json& schema, const std::string& of) {
  const Json* least = bound_of(schema, "minLength");
  const Json* most = bound_of(schema, "maxLength");
  if (least == nullptr && most == nullptr) return {};
  if ((least == nullptr && schema.contains("minLength")) || (most == nullptr && schema.contains("maxLength")))
    return {};
  if (least != nullptr && most != nullptr && *least > *most) return {};
  return "^" + of + "{" + (least != nullptr ? least->dump() : "0") + "," + (most != nullptr ? most->dump() : "") + "}$";
}

// A bar that is part of every tag, and a character of a bare string.
constexpr std::string_view kBar = "\xEF\xBD\x9C";
constexpr const char* kBareCharacter = "[^\xEF\xBD\x9C]";

void write_bounds(Json& schema, const std::string& of) {
  std::string pattern = bounded(schema, of);
  if (pattern.empty()) return;
  schema.erase("minLength");
  schema.erase("maxLength");
  schema["pattern"] = std::move(pattern);
}

// Of one schema, those within aside.
void write_quoted(Json& schema, std::vector<std::string>& patterns) {
  const auto spelled = [&patterns](const std::string& regex) {
    return patterns.emplace_back(as_ascii(spell_out(regex)));
  };
  if (schema.contains("pattern") && schema["pattern"].is_string()) {
    schema["pattern"] = spelled(schema["pattern"]);
  }
  if (schema.contains("patternProperties") && schema["patternProperties"].is_object()) {
    Json renamed = Json::object();
    for (auto& [name, value] : schema["patternProperties"].items()) {
      const std::string text = spelled(name);
      renamed[renamed.contains(text) ? name : text] = std::move(value);
    }
    schema["patternProperties"] = std::move(renamed);
  }
}

// Formats that the library holds bare strings to. Of others it makes any text, closing tags among it.
bool is_bare_format(const Json& format) {
  return format.is_string() &&
         among({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "json-pointer",
                "relative-json-pointer", "time", "uri", "uri-reference", "uri-template", "uuid"},
               format.get_ref<const std::string&>());
}

void write_bare(Json& schema) {
  if (schema.contains("format") && !is_bare_format(schema["format"])) schema.erase("format");
  if (schema.contains("pattern") && schema["pattern"].is_string()) {
    schema["pattern"] = as_ascii(spell_out(schema["pattern"].get_ref<const std::string&>(), kBar));
  } else {
    write_bounds(schema, kBareCharacter);
  }
}

// The schema of a call's arguments. What a schema's strings are depends on the way it is met, so whatever is referred
// to is copied, once for each kind of place.
class Arguments {
 public:
  Arguments(Json& root, std::vector<std::string>& patterns) : root_(root), original_(root), patterns_(patterns) {}

  void write() {
    const std::string text = original_.dump();
    while (text.find(prefix_) != std::string::npos) prefix_ += "_";
    write_schema(root_, Met::kArguments);
    while (!copies_to_write_.empty()) {
      const auto [name, met] = std::move(copies_to_write_.back());
      copies_to_write_.pop_back();
      Json copy = std::move(copies_[name]);
      write_schema(copy, met);
      copies_[name] = std::move(copy);
    }
    if (copies_.empty()) return;
    if (!root_.contains("$defs") || !root_["$defs"].is_object()) root_["$defs"] = Json::object();
    root_["$defs"].update(copies_);
  }

 private:
  enum class Met { kArguments, kBare, kQuoted };

  void write_schema(Json& schema, Met met) {
    if (!schema.is_object()) return;
    if (schema.contains("$ref") && schema["$ref"].is_string()) {
      schema["$ref"] = copy_of(schema["$ref"], met);
      return;
    }
    const bool is_choice = schema.contains("anyOf") || schema.contains("oneOf") || schema.contains("allOf");
    if (!is_choice && met == Met::kBare) write_bare(schema);
    if (!is_choice && met == Met::kQuoted) write_quoted(schema, patterns_);
    const Met within = is_choice ? met : met == Met::kArguments ? Met::kBare : Met::kQuoted;
    for (auto& [key, value] : schema.items()) {
      if (holds_schema(key)) {
        write_schema(value, within);
      } else if (holds_schema_list(key) && value.is_array()) {
        for (Json& one : value) write_schema(one, within);
      } else if (holds_schema_map(key) && key != "$defs" && key != "definitions" && value.is_object()) {
        for (auto& [name, one] : value.items()) write_schema(one, within);
      }
    }
  }

  std::string copy_of(const std::string& reference, Met met) {
    const Json* target = resolve_reference(original_, reference);
    if (target == nullptr) return reference;
    const auto [at, is_new] = names_.try_emplace({reference, met}, prefix_ + std::to_string(names_.size()));
    if (is_new) {
      copies_[at->second] = *target;
      copies_to_write_.emplace_back(at->second, met);
    }
    return "#/$defs/" + at->second;
  }

  Json& root_;
  const Json original_;
  std::vector<std::string>& patterns_;
  std::string prefix_ = "met";
  std::map<std::pair<std::string, Met>, std::string> names_;
  Json copies_ = Json::object();
  std::vector<std::pair<std::string, Met>> copies_to_write_;
};

}  // namespace

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

std::vector<std::string> spell_out_strings(Json& schema, StringPlaces where) {
  std::vector<std::string> patterns;
  if (where == StringPlaces::kArguments) {
    Arguments(schema, patterns).write();
    return patterns;
  }
  std::vector<Place<Json>> places{{&schema, ""}};
  while (!places.empty()) {
    const auto place = std::move(places.back());
    places.pop_back();
    if (!place.schema->is_object()) continue;
    write_quoted(*place.schema, patterns);
    push_schemas_within(place, places);
  }
  return patterns;
}

Status check_objects_only(const Json& schema) {
  std::vector<std::pair<const Json*, std::string>> todo{{&schema, "#"}};
  std::map<const Json*, bool> seen;
  while (!todo.empty()) {
    const auto [one, path] = std::move(todo.back());
    todo.pop_back();
    if (!one->is_object() || !seen.emplace(one, true).second) continue;
    const auto wrong = [&path = path](const std::string& what) {
      return invalid_argument("the schema at " + path + ": " + what + ", expected objects only: arguments are one");
    };
    if (one->contains("$ref")) {
      const Json* target = (*one)["$ref"].is_string() ? resolve_reference(schema, (*one)["$ref"]) : nullptr;
      if (target != nullptr) todo.emplace_back(target, (*one)["$ref"].get<std::string>());
      continue;
    }
    if (one->contains("const") && !(*one)["const"].is_object()) return wrong("found a constant that is none");
    if (one->contains("enum") && (*one)["enum"].is_array()) {
      for (const Json& value : (*one)["enum"]) {
        if (!value.is_object()) return wrong("found a value that is none in \"enum\"");
      }
    }
    bool is_choice = false;
    for (const char* key : {"anyOf", "oneOf", "allOf"}) {
      if (!one->contains(key) || !(*one)[key].is_array()) continue;
      is_choice = true;
      for (std::size_t i = 0; i < (*one)[key].size(); ++i) {
        todo.emplace_back(&(*one)[key][i], path + "/" + key + "/" + std::to_string(i));
      }
    }
    const Json* type = one->contains("type") ? &(*one)["type"] : nullptr;
    const bool is_object = type != nullptr && (*type == "object" || *type == Json::array({"object"}));
    if (type != nullptr && !is_object) return wrong("found \"type\" " + type->dump());
    // Without a type the root is given one; a member of alternatives is not.
    const bool says_else = one->contains("items") || one->contains("prefixItems") || one->contains("unevaluatedItems");
    const bool says_object = one->contains("properties") || one->contains("additionalProperties") ||
                             one->contains("unevaluatedProperties") || one->contains("const") || one->contains("enum");
    if (type == nullptr && !is_choice && (says_else || (one != &schema && !says_object))) {
      return wrong("found one that others fit");
    }
  }
  return {};
}

}  // namespace fathom
