// Lengths of the texts that stand bare in an answer's tool calls (spec 8.3: parameters that say string="true"), counted
// beside the grammar: the library would make a state of each character that a bound allows.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

// Of a text, in code points; most < 0: none.
struct LengthBounds {
  std::int64_t least = 0;
  std::int64_t most = -1;
};

struct BoundedTool {
  std::string name;
  std::map<std::string, LengthBounds> texts;  // by parameter; "": of all that are not named
};
using TextBounds = std::vector<BoundedTool>;

// A vocabulary, sorted by what a token may do to a length.
struct TextTokens {
  using Mask = std::vector<std::uint32_t>;
  explicit TextTokens(const std::vector<std::string>& token_bytes);

  std::int64_t most_chars = 0;       // of one token
  std::vector<Mask> up_to;           // [most_chars + 1]: tokens of so many code points at most, and all of `odd`
  std::vector<std::int32_t> odd;     // may be part of the closing tag, or of a character that began before
  std::vector<std::int32_t> ending;  // of `odd`: may be where the closing tag is known for one
  std::vector<std::int32_t> behind;  // go on behind a tag's end
};

// One answer's. The grammar sees that there are calls, tags and texts; this one follows them.
class TextLengths {
 public:
  // Both outlive it.
  TextLengths(const TextBounds& bounds, const TextTokens& tokens) : bounds_(&bounds), tokens_(&tokens) {}

  // Whether the bytes keep all bounds, as what comes next.
  bool fits(std::string_view bytes) const;
  // The bytes of one token more. False: they do not fit, and are to be popped.
  bool push(std::string_view bytes);
  // The last tokens did not come after all.
  void pop(std::int32_t num_tokens);
  // Clears the bits of tokens that do not fit. What is left can always be ended within the bounds.
  void restrict(std::span<std::uint32_t> mask, const std::vector<std::string>& token_bytes) const;

 private:
  enum class Place : std::uint8_t { kOutside, kValue, kText };
  struct State {
    std::string tag;         // outside of values: from "<" on, while it may be one of the calls' tags
    LengthBounds bounds;     // of the text
    std::int64_t chars = 0;  // of it, those of a closing tag that may have begun among them
    std::int32_t tool = -1;  // of bounds_
    Place place = Place::kOutside;
    bool in_calls = false;
    std::uint8_t closing = 0;  // of a text: "<", "</"; of another value: bytes of its closing tag
    std::uint8_t bar = 0;      // of a text: bytes of the bar of tags that have come
  };

  bool add(State& state, char c) const;
  bool add_to_text(State& state, unsigned char c) const;
  void end_tag(State& state) const;
  bool add_all(State& state, std::string_view bytes) const;
  const State& now() const { return states_.back(); }

  const TextBounds* bounds_;
  const TextTokens* tokens_;
  std::vector<State> states_{State{}};  // after each token
};

}  // namespace fathom
