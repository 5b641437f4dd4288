// The strings of a schema as the grammar library has to read them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/status.h"

namespace fathom {

enum class StringPlaces : std::uint8_t {
  kJson,       // all stand in JSON, quoted
  kArguments,  // of a tool call: the values of its arguments stand bare up to the closing tag, those within are JSON
};

// Writes patterns (regex_check.h) and bounds of length of a schema that passed check_enforced and check_not_recursive
// so that the library's grammar of them holds what it should: its own of a bound lets raw control characters into
// JSON's strings, and the closing tag into bare ones, which would end them early, unseen. Gives the patterns that stood
// in JSON, as they are written now.
std::vector<std::string> spell_out_strings(nlohmann::ordered_json& schema, StringPlaces places);

// Fails unless whatever fits the schema is an object, as the arguments of a call are.
Status check_objects_only(const nlohmann::ordered_json& schema);

}  // namespace fathom
