// UTF-8: decoding one code point at a time, and a stream filter that only lets whole code points out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fathom {

constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";  // U+FFFD

struct CodePoint {
  char32_t value = 0;       // U+FFFD when not valid
  std::uint8_t length = 0;  // bytes read; for an invalid one the maximal subpart (Unicode 15, table 3-8), at least 1
  bool valid = false;
  bool cut = false;  // not valid only because the text ends inside it
};

// The code point at the start of `text`, which must not be empty.
CodePoint decode_code_point(std::string_view text);

void append_utf8(char32_t code_point, std::string& out);

bool is_valid_utf8(std::string_view text);

// The text with every ill-formed maximal subpart replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

// Takes bytes in any cut, gives out valid UTF-8: whole code points only, each ill-formed maximal subpart as one
// U+FFFD. Holds at most three bytes. The concatenated output does not depend on the cuts.
class Utf8Stream {
 public:
  // Appends to `out` what `bytes` completes.
  void push(std::string_view bytes, std::string& out);
  // The end of the text: held bytes are an unfinished code point and become one U+FFFD.
  void flush(std::string& out);
  std::size_t num_held_bytes() const { return num_held_; }

 private:
  char held_[4] = {};
  std::size_t num_held_ = 0;
};

}  // namespace fathom
