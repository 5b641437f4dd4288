// The strings of a schema as the grammar library has to read them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fathom {

enum class StringPlaces : std::uint8_t {
  kJson,       // all stand in JSON, quoted
  kArguments,  // of a tool call: the values of its arguments stand bare up to the closing tag, those within are JSON
};

// Writes the patterns (regex_check.h) of a schema that passed check_enforced and check_not_recursive, and the bounds of
// length of bare strings, so that the library's grammar of them holds what it should: its own bare strings hold the
// closing tag, which would end them early, unseen. Gives the patterns that stood in JSON, as they are written now.
std::vector<std::string> spell_out_strings(nlohmann::ordered_json& schema, StringPlaces places);

// In characters that the library's own reader of patterns takes: it quotes what it matches as JSON does, and the other
// one, which it falls back to beyond ASCII, does not.
std::string as_ascii(std::string_view regex);

// Fails unless whatever fits the schema is an object, as the arguments of a call are.
Status check_objects_only(const nlohmann::ordered_json& schema);

}  // namespace fathom
