// The pre-tokenizer of spec section 7: three "split, keep matches and gaps" stages, as one hand-written scanner.
//
//   1. \p{N}{1,3}
//   2. [U+4E00-9FA5 U+3040-309F U+30A0-30FF]+
//   3. punctuation+letters | letters and marks | punctuation | newlines | white space (ordered alternatives)
//
// A byte that is not part of well-formed UTF-8 counts as a code point of no class.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace fathom {

// The regular expressions that the scanner stands for, as tokenizer.json spells them.
extern const std::string_view kPretokenizerRegexes[3];

// Appends the byte offset of each piece's end, ascending; the last is text.size(). Linear in the text.
void pretokenize(std::string_view text, std::vector<std::size_t>& piece_ends);

}  // namespace fathom
