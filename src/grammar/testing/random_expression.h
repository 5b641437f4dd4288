// Regular expressions drawn at random that know what they match, by ECMAScript's rules and over code points: each piece
// is its text and a matcher of its own, so no other engine has to read the text to judge an answer.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/utf8.h"

namespace fathom {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }
  bool one_in(std::size_t n) { return below(n) == 0; }
  template <typename T>
  const T& of(const std::vector<T>& values) {
    return values[below(values.size())];
  }

 private:
  std::mt19937_64 engine_;
};

class RandomExpression {
 public:
  // Anchors, lookaround and odd escapes among the rest; `depth` groups deep, no repetition within a repetition.
  RandomExpression(Dice& dice, int depth) { add_alternative(dice, depth); }

  const std::string& text() const { return text_; }
  // Whether the text is of the expression: as a whole, or a part of it. Nothing where the expression has a piece that
  // ECMAScript's modes read differently.
  std::optional<bool> matches(std::string_view text, bool whole) const {
    if (is_odd_) return std::nullopt;
    std::u32string points;
    while (!text.empty()) {
      const CodePoint point = decode_code_point(text);
      points += point.value;
      text.remove_prefix(point.length);
    }
    const auto end = [&](std::size_t at) { return !whole || at == points.size(); };
    for (std::size_t begin = 0; begin <= (whole ? 0 : points.size()); ++begin) {
      if (match_(points, begin, end)) return true;
    }
    return false;
  }

 private:
  using Points = std::u32string;
  using Next = std::function<bool(std::size_t)>;
  using Match = std::function<bool(const Points&, std::size_t, const Next&)>;
  using Class = bool (*)(char32_t);

  static bool is_digit(char32_t c) { return c >= U'0' && c <= U'9'; }
  static bool is_word(char32_t c) {
    return is_digit(c) || (c >= U'a' && c <= U'z') || (c >= U'A' && c <= U'Z') || c == U'_';
  }
  static bool is_line_end(char32_t c) { return c == U'\n' || c == U'\r' || c == 0x2028 || c == 0x2029; }
  static bool is_space(char32_t c) {
    return (c >= 9 && c <= 13) || c == U' ' || c == 0xA0 || c == 0xFEFF || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || is_line_end(c) || c == 0x202F || c == 0x205F || c == 0x3000;
  }

  void add(std::string text, Match match) {
    text_ += text;
    if (match_ == nullptr) {
      match_ = std::move(match);
      return;
    }
    match_ = [first = std::move(match_), second = std::move(match)](const Points& points, std::size_t at,
                                                                    const Next& next) {
      return first(points, at, [&](std::size_t between) { return second(points, between, next); });
    };
  }
  // `least` to `most` characters of the class.
  static Match run_of(Class is_of, std::size_t least, std::size_t most) {
    return [=](const Points& points, std::size_t at, const Next& next) {
      std::size_t count = 0;
      while (count < most && at + count < points.size() && is_of(points[at + count])) ++count;
      for (++count; count-- > least;) {
        if (next(at + count)) return true;
      }
      return false;
    };
  }

  struct Atom {
    const char* text;
    Class is_of;
    std::size_t least = 1, most = 1;
  };
  void add_atom(Dice& dice) {
    static constexpr std::size_t kAny = std::numeric_limits<std::size_t>::max();
    static const std::vector<Atom> kAtoms = {
        {"a", [](char32_t c) { return c == U'a'; }},
        {"b", [](char32_t c) { return c == U'b'; }},
        {"-", [](char32_t c) { return c == U'-'; }},
        {"\"", [](char32_t c) { return c == U'"'; }},
        {"\\\\", [](char32_t c) { return c == U'\\'; }},
        {".", [](char32_t c) { return !is_line_end(c); }},
        {"\\.", [](char32_t c) { return c == U'.'; }},
        {"[a-c]", [](char32_t c) { return c >= U'a' && c <= U'c'; }},
        {"[^a]", [](char32_t c) { return c != U'a'; }},
        {"\\d", is_digit},
        {"\\D", [](char32_t c) { return !is_digit(c); }},
        {"\\w", is_word},
        {"\\W", [](char32_t c) { return !is_word(c); }},
        {"\\s", is_space},
        {"\\S", [](char32_t c) { return !is_space(c); }},
        {"[\\d_]", [](char32_t c) { return is_digit(c) || c == U'_'; }},
        {"[^\\s]", [](char32_t c) { return !is_space(c); }},
        {"[\\sa]", [](char32_t c) { return is_space(c) || c == U'a'; }},
        {" ", [](char32_t c) { return c == U' '; }},
        {"\\n", [](char32_t c) { return c == U'\n'; }},
        {"/", [](char32_t c) { return c == U'/'; }},
        {"\\x41", [](char32_t c) { return c == U'A'; }},
        {"é", [](char32_t c) { return c == 0xE9; }},
        {"[à-ü😀]", [](char32_t c) { return (c >= 0xE0 && c <= 0xFC) || c == 0x1F600; }},
        {"[^\\n\"]", [](char32_t c) { return c != U'\n' && c != U'"'; }},
        {"\\u0042", [](char32_t c) { return c == U'B'; }},
        {"x?", [](char32_t c) { return c == U'x'; }, 0, 1},
        {"b*", [](char32_t c) { return c == U'b'; }, 0, kAny},
        {"c+", [](char32_t c) { return c == U'c'; }, 1, kAny},
        {".+", [](char32_t c) { return !is_line_end(c); }, 1, kAny},
        {"d{2}", [](char32_t c) { return c == U'd'; }, 2, 2},
        {"[xy]{1,3}", [](char32_t c) { return c == U'x' || c == U'y'; }, 1, 3}};
    const Atom& atom = dice.of(kAtoms);
    add(atom.text, run_of(atom.is_of, atom.least, atom.most));
  }

  void add_odd(Dice& dice) {
    const auto is_at = [](const Points& points, std::size_t at, char32_t c) {
      return at < points.size() && points[at] == c;
    };
    switch (dice.below(9)) {
      case 0: return add("^", [](const Points&, std::size_t at, const Next& next) { return at == 0 && next(at); });
      case 1:
        return add("$", [](const Points& points, std::size_t at, const Next& next) {
          return at == points.size() && next(at);
        });
      case 2:
        return add("(?=a)", [=](const Points& points, std::size_t at, const Next& next) {
          return is_at(points, at, U'a') && next(at);
        });
      case 3:
        return add("(?!b)", [=](const Points& points, std::size_t at, const Next& next) {
          return !is_at(points, at, U'b') && next(at);
        });
      case 4:
        return add("\\b", [](const Points& points, std::size_t at, const Next& next) {
          return (at > 0 && is_word(points[at - 1])) != (at < points.size() && is_word(points[at])) && next(at);
        });
      case 5:
      case 6: {
        // A second round of the star would not be at the beginning.
        return add(dice.one_in(2) ? "(?:^a)?" : "(^a)*", [=](const Points& points, std::size_t at, const Next& next) {
          return (at == 0 && is_at(points, at, U'a') && next(1)) || next(at);
        });
      }
      case 7:
        return add("(b$)?", [=](const Points& points, std::size_t at, const Next& next) {
          return (is_at(points, at, U'b') && at + 1 == points.size() && next(at + 1)) || next(at);
        });
      default: text_ += dice.of(std::vector<std::string>{"]", "}", "[a-\\d]", "\\A"}); is_odd_ = true;
    }
  }

  void add_alternative(Dice& dice, int depth) {
    add("", [](const Points&, std::size_t at, const Next& next) { return next(at); });
    if (dice.one_in(3)) add("^", [](const Points&, std::size_t at, const Next& next) { return at == 0 && next(at); });
    const std::size_t num_parts = 1 + dice.below(4);
    for (std::size_t i = 0; i < num_parts; ++i) {
      if (dice.one_in(9)) add_odd(dice);
      if (depth > 0 && dice.one_in(4)) {
        add_group(RandomExpression(dice, depth - 1), RandomExpression(dice, depth - 1));
      } else {
        add_atom(dice);
      }
    }
    if (dice.one_in(3)) {
      add("$", [](const Points& points, std::size_t at, const Next& next) { return at == points.size() && next(at); });
    }
  }

  void add_group(RandomExpression a, RandomExpression b) {
    is_odd_ = is_odd_ || a.is_odd_ || b.is_odd_;
    add("(" + a.text_ + "|" + b.text_ + ")", [first = std::move(a.match_), second = std::move(b.match_)](
                                                 const Points& points, std::size_t at, const Next& next) {
      return first(points, at, next) || second(points, at, next);
    });
  }

  std::string text_;
  Match match_;
  bool is_odd_ = false;
};

}  // namespace fathom
