// Two profiles, opened and compared: what `compare` and `findings add` begin with.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "profile/compare.h"

namespace fathom::app {

// `before` and `after`: folders or report.json files. `intended`: names of differences (difference_name).
Result<Comparison> compare_profiles(const std::string& before, const std::string& after,
                                    const std::vector<std::string>& intended);

}  // namespace fathom::app
