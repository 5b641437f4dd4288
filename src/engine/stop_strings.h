// Finds stop strings in text that comes in pieces, and holds back what may still become one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

// What is found does not depend on how the text is cut: the match that ends first; of several that end at one
// place the longest.
class StopStrings {
 public:
  // None may be empty.
  explicit StopStrings(const std::vector<std::string>& stops);

  // Appends to `out` the text that is certain to stand before any match. A match ends it: its index is returned,
  // the text before it is out, what follows it in `piece` is dropped, and nothing may be pushed any more.
  std::optional<std::int32_t> push(std::string_view piece, std::string& out);
  // The end of the text: what was held back is text after all.
  void flush(std::string& out);
  std::size_t held_bytes() const { return held_.size(); }

 private:
  struct Automaton {  // Knuth, Morris, Pratt
    std::string text;
    std::vector<std::uint32_t> fallback;  // [i]: longest proper border of the first i + 1 bytes
    std::uint32_t state = 0;              // bytes of `text` that the stream ends with
  };

  std::vector<Automaton> automata_;
  std::string held_;
};

}  // namespace fathom
