#include "text/stop_strings.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

// What comes out when the text arrives in pieces of `step` bytes.
std::string cut(const std::string& text, const std::vector<std::string>& stops, std::size_t step) {
  StopStrings filter(stops);
  std::string out;
  for (std::size_t i = 0; i < text.size(); i += step) {
    if (filter.push(std::string_view(text).substr(i, step), out)) break;
  }
  filter.flush(out);
  return out;
}

TEST(StopStrings, EndsBeforeTheFirstStopWhateverTheCuts) {
  for (std::size_t step = 1; step <= 12; ++step) {
    EXPECT_EQ(cut("one two three", {"two"}, step), "one ");
    EXPECT_EQ(cut("one two three", {"three", "o t"}, step), "one tw");
    EXPECT_EQ(cut("aaab", {"aab"}, step), "a");
    EXPECT_EQ(cut("ends with en", {"end!"}, step), "ends with en");
    EXPECT_EQ(cut("no stops", {}, step), "no stops");
    EXPECT_EQ(cut("no stops", {""}, step), "no stops");
  }
}

TEST(StopStrings, HoldsBackOnlyWhatCouldBeAStop) {
  StopStrings filter({"###"});
  std::string out;
  EXPECT_FALSE(filter.push("text #", out));
  EXPECT_EQ(out, "text ");
  EXPECT_FALSE(filter.push("# x", out));
  EXPECT_EQ(out, "text ## x");
  EXPECT_TRUE(filter.push("###", out));
  EXPECT_TRUE(filter.push("more", out));
  filter.flush(out);
  EXPECT_EQ(out, "text ## x");
}

}  // namespace
}  // namespace fathom
