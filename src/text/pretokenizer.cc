#include "text/pretokenizer.h"

#include <algorithm>
#include <cstdint>

#include "text/unicode_classes.h"
#include "text/utf8.h"

namespace fathom {

const std::string_view kPretokenizerRegexes[3] = {
    "\\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
    "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
};

namespace {

// One code point as the regular expressions see it.
struct Symbol {
  char32_t value = 0;  // 0xFFFFFFFF for a byte of no code point
  std::uint8_t length = 0;
  UnicodeClass unicode = UnicodeClass::kOther;

  bool is_letter_or_mark() const { return unicode == UnicodeClass::kLetter || unicode == UnicodeClass::kMark; }
  bool is_punctuation_or_symbol() const {
    return unicode == UnicodeClass::kPunctuation || unicode == UnicodeClass::kSymbol;
  }
  bool is_white_space() const { return unicode == UnicodeClass::kWhiteSpace; }
  bool is_newline() const { return value == '\r' || value == '\n'; }
  bool is_ascii_letter() const { return (value >= 'A' && value <= 'Z') || (value >= 'a' && value <= 'z'); }
  bool is_ascii_punctuation() const { return value < 128 && is_punctuation_or_symbol(); }
  bool is_number() const { return unicode == UnicodeClass::kNumber; }
  // The set of stage 2.
  bool is_cjk_or_kana() const { return (value >= 0x4E00 && value <= 0x9FA5) || (value >= 0x3040 && value <= 0x30FF); }
  // [^\r\n\p{L}\p{P}\p{S}]
  bool may_lead_letters() const {
    return !is_newline() && unicode != UnicodeClass::kLetter && !is_punctuation_or_symbol();
  }
};

Symbol symbol_at(std::string_view text, std::size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 128) return {first, 1, unicode_class(first)};
  const CodePoint c = decode_code_point(text.substr(at));
  // A byte at a time where the text is ill-formed: any bytes then come back unchanged.
  if (!c.valid) return {0xFFFFFFFF, 1, UnicodeClass::kOther};
  return {c.value, c.length, unicode_class(c.value)};
}

// End of the run of symbols from `at` (before `end`) for which `belongs` holds.
template <typename Predicate>
std::size_t run_end(std::string_view text, std::size_t at, std::size_t end, Predicate belongs) {
  while (at < end) {
    const Symbol s = symbol_at(text, at);
    if (!belongs(s)) break;
    at += s.length;
  }
  return at;
}

// The alternatives from white space on: \s*[\r\n]+ | \s+(?!\S) | \s+, at a white-space symbol.
std::size_t match_white_space(std::string_view text, std::size_t at, std::size_t end) {
  std::size_t run = at;
  std::size_t after_last_newline = at;
  std::size_t last_symbol = at;
  while (run < end) {
    const Symbol s = symbol_at(text, run);
    if (!s.is_white_space()) break;
    last_symbol = run;
    run += s.length;
    if (s.is_newline()) after_last_newline = run;
  }
  if (after_last_newline > at) return after_last_newline;
  // Before a non-space the lookahead makes the run give its last symbol back, unless it is the only one.
  if (run < end && last_symbol > at) return last_symbol;
  return run;
}

// End of stage 3's match at `at`, or `at` when no alternative matches there.
std::size_t match_words(std::string_view text, std::size_t at, std::size_t end) {
  const Symbol first = symbol_at(text, at);
  const std::size_t next = at + first.length;
  const Symbol second = next < end ? symbol_at(text, next) : Symbol{};
  if (first.is_ascii_punctuation() && next < end && second.is_ascii_letter()) {
    return run_end(text, next, end, [](const Symbol& s) { return s.is_ascii_letter(); });
  }
  const auto letters = [](const Symbol& s) { return s.is_letter_or_mark(); };
  if (first.is_letter_or_mark() || (first.may_lead_letters() && next < end && second.is_letter_or_mark())) {
    return run_end(text, next, end, letters);
  }
  const auto marks = [](const Symbol& s) { return s.is_punctuation_or_symbol(); };
  if (first.is_punctuation_or_symbol() || (first.value == ' ' && next < end && second.is_punctuation_or_symbol())) {
    const std::size_t after = run_end(text, next, end, marks);
    return run_end(text, after, end, [](const Symbol& s) { return s.is_newline(); });
  }
  return first.is_white_space() ? match_white_space(text, at, end) : at;
}

// Stage 3 over one piece of the stages before: matches, and the gaps between them.
void split_words(std::string_view text, std::size_t at, std::size_t end, std::vector<std::size_t>& piece_ends) {
  std::size_t gap_begin = at;
  while (at < end) {
    const std::size_t match = match_words(text, at, end);
    if (match == at) {
      at += symbol_at(text, at).length;
      continue;
    }
    if (gap_begin < at) piece_ends.push_back(at);
    piece_ends.push_back(match);
    at = gap_begin = match;
  }
  if (gap_begin < end) piece_ends.push_back(end);
}

}  // namespace

void pretokenize(std::string_view text, std::vector<std::size_t>& piece_ends) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Symbol first = symbol_at(text, at);
    if (first.is_number()) {
      std::size_t end = at;
      for (int taken = 0; taken < 3 && end < text.size(); ++taken) {
        const Symbol s = symbol_at(text, end);
        if (!s.is_number()) break;
        end += s.length;
      }
      // No alternative of stage 3 takes a number without a letter after it: the group stays whole.
      piece_ends.push_back(end);
      at = end;
      continue;
    }
    const bool cjk = first.is_cjk_or_kana();
    const std::size_t end =
        run_end(text, at, text.size(), [cjk](const Symbol& s) { return !s.is_number() && s.is_cjk_or_kana() == cjk; });
    split_words(text, at, end, piece_ends);
    at = end;
  }
}

}  // namespace fathom
