// A prompt as one string that remembers which of its bytes the chat template wrote.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

struct ByteRange {
  std::size_t begin = 0;
  std::size_t end = 0;  // exclusive
  bool operator==(const ByteRange&) const = default;
};

// The prompt is tokenised as one string (pre-tokenizer and BPE see no seams), but an added token such as
// <｜User｜> or </think> matches only where every one of its bytes is a template byte. So user text (message
// content, tool schemas, tool results, replayed answers) cannot form control tokens, and the ids equal the
// vendor's for any text without control strings.
struct PromptText {
  std::string text;
  std::vector<ByteRange> template_ranges;  // ascending, disjoint, never touching

  void append_template(std::string_view part) {
    if (part.empty()) return;
    if (!template_ranges.empty() && template_ranges.back().end == text.size()) {
      template_ranges.back().end += part.size();
    } else {
      template_ranges.push_back({text.size(), text.size() + part.size()});
    }
    text += part;
  }
  void append_user(std::string_view part) { text += part; }
};

}  // namespace fathom
