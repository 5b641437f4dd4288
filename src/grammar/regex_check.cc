#include "grammar/regex_check.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <vector>

namespace fathom {
namespace {

constexpr std::string_view kKnownLetters = "dDwWsSnrtfvxuc";
constexpr std::string_view kLineEnds = "\\n\\r\\u2028\\u2029";

bool is_alnum(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// A group that is open, or the whole expression.
struct Group {
  bool at_start = true;     // nothing stands before it
  bool consumed = false;    // something stands in the alternative so far
  bool ended = false;       // a '$' does
  bool any_ended = false;   // one does in an earlier alternative
  bool has_anchor = false;  // anywhere in it
  double size = 0;          // of it, repetitions written out
  double last_size = 0;     // of what stands before
};

class Reader {
 public:
  explicit Reader(std::string_view regex) : regex_(regex) {}

  Status read(std::size_t most_size) {
    while (at_ < regex_.size()) {
      FATHOM_RETURN_IF_ERROR(read_one());
      if (groups_.back().size > static_cast<double>(most_size)) {
        return invalid_argument("the expression has more than " + std::to_string(most_size) +
                                " characters, repetitions written out, which takes too long to compile");
      }
    }
    return {};
  }

 private:
  static Status wrong(std::size_t at, const std::string& what, const std::string& why) {
    return invalid_argument(what + " at position " + std::to_string(at + 1) + " " + why);
  }
  static Status left_out(std::size_t at, const std::string& what, const std::string& why) {
    return wrong(at, what, why + " (the answer could break it unseen)");
  }

  bool repeats_next() const { return at_ < regex_.size() && std::string_view("*+?{").find(regex_[at_]) != kNone; }

  Status read_one() {
    const std::size_t begin = at_;
    switch (regex_[at_++]) {
      case '^':
        if (groups_.back().consumed || !groups_.back().at_start || repeats_next()) {
          return left_out(begin, "'^'", "does not stand at the beginning, which is not supported");
        }
        groups_.back().has_anchor = true;
        return {};
      case '$':
        if (repeats_next()) return left_out(begin, "'$'", "is repeated, which is not supported");
        groups_.back().ended = groups_.back().has_anchor = true;
        return {};
      case '|': {
        Group& group = groups_.back();
        group.any_ended = group.any_ended || group.ended;
        group.consumed = group.ended = false;
        return {};
      }
      case '(': return open_group(begin);
      case ')': return close_group(begin);
      case '[': return read_class(begin);
      case '\\': FATHOM_RETURN_IF_ERROR(read_escape(begin, false)); return consume(begin);
      case '*':
      case '+':
      case '?': return {};  // of what stands before, which has been looked at
      case '{': return repeat();
      case ']':
      case '}': return wrong(begin, "a bracket", "closes nothing; write it with a backslash");
      default: return consume(begin);
    }
  }

  Status consume(std::size_t begin) {
    if (groups_.back().ended) return left_out(begin, "what stands", "comes after a '$', which is not supported");
    groups_.back().consumed = true;
    grow(1);
    return {};
  }

  void grow(double size) {
    groups_.back().size += size;
    groups_.back().last_size = size;
  }

  // The larger of {n}, {n,} and {n,m} counts.
  Status repeat() {
    const std::size_t end = std::min(regex_.find('}', at_), regex_.size() - 1);
    std::uint64_t most = 1;
    while (at_ < end) {
      std::uint64_t count = 0;
      const auto [rest, error] = std::from_chars(regex_.data() + at_, regex_.data() + end, count);
      if (error == std::errc::result_out_of_range) count = UINT64_MAX;
      most = std::max(most, count);
      at_ = static_cast<std::size_t>(rest - regex_.data()) + 1;
    }
    at_ = end + 1;
    groups_.back().size += groups_.back().last_size * static_cast<double>(most - 1);
    return {};
  }

  Status open_group(std::size_t begin) {
    if (groups_.back().ended) return consume(begin);
    if (at_ < regex_.size() && regex_[at_] == '?') {
      const std::string_view rest = regex_.substr(at_ + 1);
      const bool named =
          (rest.starts_with('<') || rest.starts_with("P<")) && !rest.starts_with("<=") && !rest.starts_with("<!");
      if (!named && !rest.starts_with(':')) {
        const bool looks = rest.starts_with('=') || rest.starts_with('!') || rest.starts_with('<');
        return left_out(begin, looks ? "a lookahead or lookbehind" : "a group's modifier", "is not supported");
      }
      const std::size_t end = named ? regex_.find('>', at_) : at_ + 1;
      if (end == kNone) return wrong(begin, "a group's name", "does not end");
      at_ = end + 1;
    }
    Group inner;
    inner.at_start = groups_.back().at_start && !groups_.back().consumed;
    groups_.push_back(inner);
    return {};
  }

  Status close_group(std::size_t begin) {
    if (groups_.size() == 1) return wrong(begin, "a bracket", "closes nothing; write it with a backslash");
    const Group inner = groups_.back();
    groups_.pop_back();
    if (inner.has_anchor && repeats_next() && regex_[at_] != '?') {
      return left_out(begin, "a group with '^' or '$' that ends", "is repeated, which is not supported");
    }
    Group& group = groups_.back();
    group.consumed = true;
    group.ended = inner.ended || inner.any_ended;
    group.has_anchor = group.has_anchor || inner.has_anchor;
    grow(inner.size);
    return {};
  }

  Status read_class(std::size_t begin) {
    if (at_ < regex_.size() && regex_[at_] == '^') ++at_;
    while (at_ < regex_.size() && regex_[at_] != ']') {
      const std::size_t place = at_++;
      if (regex_[place] == '\\') FATHOM_RETURN_IF_ERROR(read_escape(place, true));
    }
    if (at_ == regex_.size()) return wrong(begin, "'['", "is not closed");
    ++at_;
    return consume(begin);
  }

  // The backslash has been read. Letters that mean different things in different places are not guessed at.
  Status read_escape(std::size_t begin, bool in_class) {
    if (at_ == regex_.size()) return wrong(begin, "a backslash", "is the last character");
    const char c = regex_[at_++];
    const bool plain_zero =
        c == '0' && (at_ == regex_.size() || std::isdigit(static_cast<unsigned char>(regex_[at_])) == 0);
    const bool two_digits = at_ + 1 < regex_.size() && std::isxdigit(static_cast<unsigned char>(regex_[at_])) != 0 &&
                            std::isxdigit(static_cast<unsigned char>(regex_[at_ + 1])) != 0;
    if (c == 'x' && !two_digits) return wrong(begin, "'\\x'", "stands without two hexadecimal digits");
    if (!is_alnum(c) || plain_zero || (in_class && c == 'b') || kKnownLetters.find(c) != kNone) return {};
    return left_out(begin, std::string("'\\") + c + "'", "is not supported");
  }

  static constexpr std::size_t kNone = std::string_view::npos;
  std::string_view regex_;
  std::size_t at_ = 0;
  std::vector<Group> groups_{Group{}};  // the whole, then those that are open
};

}  // namespace

Status check_regex(std::string_view regex, std::size_t most_size) { return Reader(regex).read(most_size); }

std::string spell_out(std::string_view regex, std::string_view without) {
  std::string out;
  const auto all_but = [&](std::string_view what) { return "[^" + std::string(what) + std::string(without) + "]"; };
  const auto is_complement = [&](std::size_t i) {
    return !without.empty() && i + 1 < regex.size() && regex[i] == '\\' &&
           std::string_view("SWD").find(regex[i + 1]) != std::string_view::npos;
  };
  const auto complement_of = [&](std::size_t i) {
    return all_but(std::string{'\\', static_cast<char>(std::tolower(static_cast<unsigned char>(regex[i + 1])))});
  };
  // One character or escape, as it stands in and out of classes.
  const auto copy = [&](std::size_t& i, std::string& to) {
    if (regex.substr(i).starts_with("\\x")) {
      to += "\\u00";
      i += 2;
      return;
    }
    to += regex[i];
    if (regex[i++] == '\\' && i < regex.size()) to += regex[i++];
  };
  for (std::size_t i = 0; i < regex.size();) {
    if (regex[i] == '.') {
      out += all_but(kLineEnds);
      ++i;
    } else if (is_complement(i)) {
      out += complement_of(i);
      i += 2;
    } else if (regex[i] == '[') {
      const bool is_negated = regex.substr(i).starts_with("[^");
      i += is_negated ? 2 : 1;
      std::string rest, others;  // the complements among the class's members stand beside it
      while (i < regex.size() && regex[i] != ']') {
        if (!is_negated && is_complement(i)) {
          others += (others.empty() ? "" : "|") + complement_of(i);
          i += 2;
        } else {
          copy(i, rest);
        }
      }
      ++i;
      if (is_negated) {
        out += all_but(rest);
      } else if (others.empty()) {
        out += "[" + rest + "]";
      } else {
        out += "(?:" + others + (rest.empty() ? "" : "|[" + rest + "]") + ")";
      }
    } else {
      copy(i, out);
    }
  }
  return out;
}

}  // namespace fathom
