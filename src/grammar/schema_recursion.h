// Schemas that contain themselves.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"

namespace fathom {

// Fails where a schema that an answer may meet refers, by way of whichever others, to one it stands in ("$ref": "#" in
// one of its properties; two definitions that name each other). Such an answer may nest without an end, so no bound on
// its tokens keeps it valid. References that lead nowhere are left to the library.
Status check_not_recursive(const nlohmann::ordered_json& schema);

}  // namespace fathom
