// References in schemas, and schemas that contain themselves.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/status.h"

namespace fathom {

// Fails where a schema that an answer may meet refers, by way of whichever others, to one it stands in ("$ref": "#" in
// one of its properties; two definitions that name each other). Such an answer may nest without an end, so no bound on
// its tokens keeps it valid. References that lead nowhere are left to the library.
Status check_not_recursive(const nlohmann::ordered_json& schema);

// What "#", "#/$defs/a" and the like name. Null: it leads nowhere, or out of this schema.
const nlohmann::ordered_json* resolve_reference(const nlohmann::ordered_json& root, const std::string& reference);

}  // namespace fathom
