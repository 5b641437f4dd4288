// What `fathom selftest` found, remembered per card, driver and program: the variants to run by default.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace fathom {

using VariantChoices = std::vector<std::pair<std::string, std::string>>;  // operation, variant

// $XDG_CACHE_HOME/fathom/variants, or ~/.cache/fathom/variants; empty where neither is set.
std::string variant_choices_path();

// One section a key, in the order of their first writing:
//   [key]
//   operation = variant
// The choices of `key`; none where the file or the section is not there. Failure: a line that is neither.
Result<VariantChoices> read_variant_choices(const std::string& path, std::string_view key);
// Replaces the section of `key`; makes the directories it needs.
Status write_variant_choices(const std::string& path, std::string_view key, const VariantChoices& choices);

}  // namespace fathom
