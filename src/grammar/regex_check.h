// Whether the library's grammar of a regular expression says what the expression says.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace fathom {

// The library makes a grammar of the whole answer and leaves out what it cannot express: anchors anywhere, lookaround,
// escapes that it does not know. kInvalidArgument names what would be left out and where, counted in bytes from 1. A
// '^' before which nothing can stand and a '$' after which nothing can are no condition on a whole answer, and pass.
Status check_regex(std::string_view regex);

// The same expression with '.' written as what it means: any character but a line's end. The library's '.' is any.
std::string spell_out_dots(std::string_view regex);

}  // namespace fathom
