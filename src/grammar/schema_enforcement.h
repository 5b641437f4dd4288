// Schemas that the grammar library would only half enforce.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"

namespace fathom {

// Fails, naming the keyword and its place, where the schema states a condition that the library's grammar leaves out
// ("not", "uniqueItems", a second "allOf" member, "minimum" beside "$ref", …): an answer that breaks it would be
// returned as valid. Annotations, unknown keywords and conditions on types the value cannot have pass, as they do in
// JSON Schema. Exclusiveness of "oneOf" is left to the library, which keeps it where it can prove it.
Status check_enforced(const nlohmann::ordered_json& schema);

}  // namespace fathom
