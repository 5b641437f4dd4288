// Large counts in regular expressions: "[a-z]{1,200}". The grammar library makes a state of each repetition up to 128,
// and tells the ways on from a larger count token by token where its grammar does not suit it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "grammar/text_lengths.h"

namespace fathom {

inline constexpr std::int64_t kMostUnrolledCount = 128;

// All of an expression that passed check_regex (regex_check.h).
bool has_large_count(std::string_view regex);

// Large counts without an end, "{200,}", with one that no answer comes to: the library counts those alone.
std::string close_counts(std::string_view regex);

// Large counts as small ones: some text matches, or some beginning of a text has no way on, exactly where it is so of
// the expression itself.
std::string small_counts(std::string_view regex);

// An expression that is one class with a large count, maybe between anchors: the class, and how many of its characters
// there are. None: it is another, or the class names characters beyond ASCII that belong to it.
struct CountedClass {
  std::string characters;
  LengthBounds bounds;
};
std::optional<CountedClass> counted_class(std::string_view regex);

}  // namespace fathom
