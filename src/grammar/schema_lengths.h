// Bounds of length that are counted (text_lengths.h) rather than written into a grammar.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/status.h"
#include "grammar/text_lengths.h"

namespace fathom {

// The most characters that a bound of a bare text may have where it has to be written into the grammar, a state a
// character: where a parameter may be one of several texts, or its name is of a pattern or holds odd characters.
inline constexpr std::int64_t kMostUnrolledLength = 128;

// Takes the bounds of bare texts out of the schema of a tool's arguments, which passed check_enforced and
// check_not_recursive, wherever the parameter's name alone says which bounds hold: a string as a property's value, or
// one among alternatives that are no strings. What is left in their place is a pattern of any text.
BoundedTool take_text_bounds(nlohmann::ordered_json& schema, const std::string& tool);

// Fails where a bound that is left would have to be written into the grammar and is beyond kMostUnrolledLength.
Status check_unrolled(const nlohmann::ordered_json& schema);

}  // namespace fathom
