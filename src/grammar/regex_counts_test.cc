#include "grammar/regex_counts.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(RegexCounts, LargeOnesAreFoundOutsideOfClassesAndEscapes) {
  for (const char* regex : {"a{129}", "x[a-z]{1,200}y", "(ab){200,}", "[\\]]{0,129}", "\\\\{129}", "\\u{2014}{200}"}) {
    EXPECT_TRUE(has_large_count(regex)) << regex;
  }
  for (const char* regex : {"a{128}", "a{0,128}", "a{5,}", "\\u{2014}x", "[\\u{2014}]", "[{200}]", "\\{200}", "a{,200}",
                            "a{x}", "", "[a{200}"}) {
    EXPECT_FALSE(has_large_count(regex)) << regex;
  }
}

TEST(RegexCounts, LargeOnesAreGivenAnEnd) {
  EXPECT_EQ(close_counts("^a{200,}b{3,}[{200,}]\\{200,}$"), "^a{200,999999999}b{3,}[{200,}]\\{200,}$");
  EXPECT_EQ(close_counts("(a|b){200,}?c{129,300}"), "(a|b){200,999999999}?c{129,300}");
}

TEST(RegexCounts, LargeOnesAreMadeSmall) {
  EXPECT_EQ(small_counts("^a{200,}(b{0,1000}c{2,3}){129}$"), "^a{1,2}(b{0,1}c{2,3}){1,2}$");
  EXPECT_EQ(small_counts("\\u{2014}\\u{2014}{200}"), "\\u{2014}\\u{2014}{1,2}");
}

TEST(RegexCounts, AClassAloneIsKnown) {
  const auto expect = [](const char* regex, const char* characters, std::int64_t least, std::int64_t most) {
    const auto found = counted_class(regex);
    ASSERT_TRUE(found) << regex;
    EXPECT_EQ(found->characters, characters);
    EXPECT_EQ(found->bounds.least, least);
    EXPECT_EQ(found->bounds.most, most);
  };
  expect("^[a-z]{1,200}$", "[a-z]", 1, 200);
  expect(".{200}", ".", 200, 200);
  expect("^\\w{129,}", "\\w", 129, -1);
  expect("[^\\]é]{0,1000}$", "[^\\]é]", 0, 1000);
  expect("\\${200}$", "\\$", 200, 200);
  for (const char* regex : {"^[a-z]{1,128}$", "^[a-z]{1,200}x$", "^x[a-z]{1,200}$", "^(a){200}$", "^[a-z]{1,200}?$",
                            "^[a-z]{200,129}$", "^é{200}$", "^[é]{200}$", "^[\\u0000-\\uffff]{1,200}$",
                            "^\\u0041{200}$", "", "^", "{200}", "^a{200}\\$", "a|b{200}"}) {
    EXPECT_FALSE(counted_class(regex)) << regex;
  }
}

}  // namespace
}  // namespace fathom
