#include "engine/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

namespace fathom {
namespace {

struct Found {
  std::string text;
  std::optional<std::int32_t> stop;
  bool operator==(const Found&) const = default;
};

Found run(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopStrings finder(stops);
  Found found;
  for (const std::string& piece : pieces) {
    found.stop = finder.push(piece, found.text);
    if (found.stop) return found;
  }
  finder.flush(found.text);
  return found;
}

// The rule in one line, without an automaton: the match that ends first, of those the longest.
Found by_definition(const std::vector<std::string>& stops, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    Found best{text, std::nullopt};
    std::size_t longest = 0;
    for (std::size_t i = 0; i < stops.size(); ++i) {
      const std::string& stop = stops[i];
      if (stop.size() > longest && end >= stop.size() && text.compare(end - stop.size(), stop.size(), stop) == 0) {
        longest = stop.size();
        best = {text.substr(0, end - stop.size()), static_cast<std::int32_t>(i)};
      }
    }
    if (best.stop) return best;
  }
  return {text, std::nullopt};
}

TEST(StopStrings, AcrossPieces) {
  EXPECT_EQ(run({"STOP"}, {"go S", "TO", "P and more"}), (Found{"go ", 0}));
  EXPECT_EQ(run({"STOP"}, {"go S", "TO", "W"}), (Found{"go STOW", std::nullopt}));
  EXPECT_EQ(run({"aab"}, {"aaa", "ab"}), (Found{"aa", 0}));
  EXPECT_EQ(run({"x", "yx"}, {"ayx"}), (Found{"a", 1}));
  EXPECT_EQ(run({"abcd", "bc"}, {"abcd"}), (Found{"a", 1}));
  EXPECT_EQ(run({}, {"a", "b"}), (Found{"ab", std::nullopt}));
}

TEST(StopStrings, HoldsBackNoMoreThanMayMatch) {
  StopStrings finder({"\n\nHuman:"});
  std::string out;
  EXPECT_FALSE(finder.push("hello\n", out));
  EXPECT_EQ(out, "hello");
  EXPECT_FALSE(finder.push("\n", out));
  EXPECT_EQ(out, "hello");
  EXPECT_FALSE(finder.push("\n", out));  // three line ends: the first cannot begin it
  EXPECT_EQ(out, "hello\n");
  EXPECT_FALSE(finder.push("Hi", out));
  EXPECT_EQ(out, "hello\n\n\nHi");
}

TEST(StopStrings, AnyCutGivesWhatTheDefinitionSays) {
  std::mt19937 random(3);
  int num_matches = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (unsigned i = random() % 30; i > 0; --i) text += static_cast<char>('a' + random() % 3);
    std::vector<std::string> stops;
    for (unsigned i = 1 + random() % 3; i > 0; --i) {
      std::string stop;
      for (unsigned j = 1 + random() % 5; j > 0; --j) stop += static_cast<char>('a' + random() % 3);
      if (std::find(stops.begin(), stops.end(), stop) == stops.end()) stops.push_back(stop);
    }
    std::vector<std::string> pieces;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t size = random() % 5;
      pieces.push_back(text.substr(begin, size));
      begin += size;
    }
    const Found expected = by_definition(stops, text);
    EXPECT_EQ(run(stops, pieces), expected) << text;
    num_matches += expected.stop ? 1 : 0;
  }
  EXPECT_GT(num_matches, 1000);
}

}  // namespace
}  // namespace fathom
