// Schemas that the grammar library would only half enforce.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"

namespace fathom {

// Fails, naming the keyword and its place, where the schema states a condition that the library's grammar leaves out
// ("not", "uniqueItems", a second "allOf" member, "minimum" beside "$ref", …): an answer that breaks it would be
// returned as valid. Annotations, unknown keywords and conditions on types the value cannot have pass, as they do in
// JSON Schema. What the library leaves out and says so in its log is refused where it is read (xgrammar_adapter.cc).
Status check_enforced(const nlohmann::ordered_json& schema);

}  // namespace fathom
