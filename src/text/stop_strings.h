// Ends a text at the first of some strings, as the text arrives: what may still become one is held back.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fathom {

class StopStrings {
 public:
  // Empty strings are ignored.
  explicit StopStrings(std::vector<std::string> stops);

  // Appends to `out` what is certainly before any stop. True once a stop was found: the text ends right
  // before it, and later text is dropped.
  bool push(std::string_view text, std::string& out);
  // The end of the text: what was held back is text after all.
  void flush(std::string& out);
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;  // shorter than the longest stop
  bool stopped_ = false;
};

}  // namespace fathom
