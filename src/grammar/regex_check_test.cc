#include "grammar/regex_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom {
namespace {

using testing::HasSubstr;

TEST(CheckRegex, WhatIsAConditionOnAWholeAnswerPasses) {
  for (const char* regex : {
           "",
           "a",
           "^a$",
           "^$",
           "^",
           "$",
           "^^a$$",
           "^a|b$",
           "^a$|^b$",
           "(^a|b)c",
           "a(b$|c$)",
           "((^a))",
           "(?:^a)?b",
           "a(b$)?",
           "[^a$]+",
           "[$^]",
           "\\^\\$",
           "a\\$b",
           "^\\d{3}-\\w+\\s?$",
           "(?<year>\\d+)",
           "(?P<y>\\d+)",
           "\\u00e9\\x41\\cA\\0",
           "[\\b]",
           "a+?b*?",
           "^(a|b)*$",
           "^é\\.$",
           "\\/",
           "a{2}",
           "a{2,}",
       }) {
    EXPECT_TRUE(check_regex(regex).ok()) << regex << ": " << check_regex(regex).message();
  }
}

TEST(CheckRegex, WhatTheLibraryWouldLeaveOutIsNamed) {
  const std::pair<const char*, const char*> refused[] = {
      {"a^b", "'^' at position 2"},
      {"a$b", "at position 3 comes after a '$'"},
      {"a?^b", "'^' at position 3"},
      {"a$b?", "comes after a '$'"},
      {"x(^a|b)", "'^' at position 3"},
      {"(a|b^c)", "'^' at position 5"},
      {"(a$|b)c", "comes after a '$'"},
      {"(a$)(b)", "comes after a '$'"},
      {"(^a)*", "is repeated"},
      {"(a|b$)+", "is repeated"},
      {"(^a){2}", "is repeated"},
      {"^*", "'^' at position 1"},
      {"a$?", "'$' at position 2 is repeated"},
      {"a(?=b)", "lookahead"},
      {"(?!a)b", "lookahead"},
      {"(?<=a)b", "lookbehind"},
      {"(?<!a)b", "lookbehind"},
      {"(?i)a", "modifier"},
      {"\\bword", "'\\b'"},
      {"\\Aword\\Z", "'\\A'"},
      {"(a)\\1", "'\\1'"},
      {"\\p{L}", "'\\p'"},
      {"[\\q]", "'\\q'"},
      {"\\012", "'\\0'"},
      {"a\\", "last character"},
      {"\\x4", "two hexadecimal digits"},
      {"[a", "not closed"},
      {"a]", "closes nothing"},
      {"a)", "closes nothing"},
  };
  for (const auto& [regex, named] : refused) {
    const Status status = check_regex(regex);
    ASSERT_FALSE(status.ok()) << regex;
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(named)) << regex;
  }
}

TEST(CheckRegex, RepetitionsCountAsWrittenOut) {
  for (const char* regex : {"a{100}", "(ab){50}", "(a{10}){10}", "a{5,100}", "[a-z]{100,}", "((a|b){25}){2}"}) {
    EXPECT_TRUE(check_regex(regex, 100).ok()) << regex;
    EXPECT_FALSE(check_regex(regex, 99).ok()) << regex;
  }
  for (const char* regex : {"(((a{99}){99}){99}){99}", "a{99999999999999999999}", "a{0,1000000}"}) {
    EXPECT_FALSE(check_regex(regex, 1000).ok()) << regex;
    EXPECT_TRUE(check_regex(regex).ok()) << regex;
  }
}

TEST(CheckRegex, DotsAreSpelledOut) {
  const std::string any = "[^\\n\\r\\u2028\\u2029]";
  EXPECT_EQ(spell_out("a.b"), "a" + any + "b");
  EXPECT_EQ(spell_out(".*\\.[.\\].].?"), any + "*\\.[.\\].]" + any + "?");
  EXPECT_EQ(spell_out("plain\\\\"), "plain\\\\");
  EXPECT_EQ(spell_out("\\x41b\\\\x41[\\x42]"), "\\u0041b\\\\x41[\\u0042]");
}

TEST(CheckRegex, ACharacterIsLeftOutOfWhatIsNotNamed) {
  EXPECT_EQ(spell_out("a.", "!"), "a[^\\n\\r\\u2028\\u2029!]");
  EXPECT_EQ(spell_out("[^ab]\\.[.]", "!"), "[^ab!]\\.[.]");
  EXPECT_EQ(spell_out("\\S\\s\\\\S", "!"), "[^\\s!]\\s\\\\S");
  EXPECT_EQ(spell_out("[\\s\\S]+[\\Wa\\D]", "!"), "(?:[^\\s!]|[\\s])+(?:[^\\w!]|[^\\d!]|[a])");
  EXPECT_EQ(spell_out("[\\W][^\\W]", "!"), "(?:[^\\w!])[^\\W!]");
  EXPECT_EQ(spell_out("[\\s\\S][^]"), "[\\s\\S][^]");
}

}  // namespace
}  // namespace fathom
