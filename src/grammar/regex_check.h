// Whether the library's grammar of a regular expression says what the expression says.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace fathom {

// The library makes a grammar of the whole answer and leaves out what it cannot express: anchors anywhere, lookaround,
// escapes that it does not know. kInvalidArgument names what would be left out and where, counted in bytes from 1. A
// '^' before which nothing can stand and a '$' after which nothing can are no condition on a whole answer, and pass.
// `most_size`: of the expression with its repetitions written out, in characters and classes.
Status check_regex(std::string_view regex, std::size_t most_size = SIZE_MAX);

// The same expression as the library has to read it: '.' as any character but a line's end, where its own is any; \xHH
// as \u00HH, since it takes all the hexadecimal digits that follow an \x.
// `without`: a character that what the expression does not name itself ('.', [^…], \S, \W, \D) does not match either.
std::string spell_out(std::string_view regex, std::string_view without = {});

}  // namespace fathom
