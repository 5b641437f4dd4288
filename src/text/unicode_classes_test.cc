#include "text/unicode_classes.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

namespace fathom {
namespace {

TEST(UnicodeClasses, CountsOfUnicode16) {
  std::array<int, 7> counts{};
  for (char32_t c = 0; c < 0x110000; ++c) ++counts[static_cast<std::size_t>(unicode_class(c))];
  EXPECT_EQ(counts[1], 141028);  // letters
  EXPECT_EQ(counts[2], 2501);    // marks
  EXPECT_EQ(counts[3], 1911);    // numbers
  EXPECT_EQ(counts[4], 855);     // punctuation
  EXPECT_EQ(counts[5], 8514);    // symbols
  EXPECT_EQ(counts[6], 25);      // white space
}

TEST(UnicodeClasses, WhiteSpaceIsExactlyThese) {
  const std::set<char32_t> expected = {0x9,    0xA,    0xB,    0xC,    0xD,    0x20,   0x85,   0xA0,   0x1680,
                                       0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006, 0x2007, 0x2008,
                                       0x2009, 0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000};
  for (char32_t c = 0; c < 0x110000; ++c) {
    EXPECT_EQ(unicode_class(c) == UnicodeClass::kWhiteSpace, expected.contains(c)) << std::hex << std::uint32_t{c};
  }
}

TEST(UnicodeClasses, Samples) {
  using enum UnicodeClass;
  const std::pair<char32_t, UnicodeClass> samples[] = {
      {'a', kLetter},      {U'é', kLetter},     {U'一', kLetter},      {U'ー', kLetter},    {0x301, kMark},
      {0x3099, kMark},     {0xFE0F, kMark},     {'7', kNumber},        {U'½', kNumber},     {U'Ⅷ', kNumber},
      {U'〇', kNumber},    {'!', kPunctuation}, {U'・', kPunctuation}, {'_', kPunctuation}, {'~', kSymbol},
      {'$', kSymbol},      {U'😀', kSymbol},    {U'゛', kSymbol},      {0x1C, kOther},      {0x200B, kOther},
      {0x180E, kOther},    {0xD800, kOther},    {0xE000, kOther},      {0x10FFFF, kOther},  {0x110000, kOther},
      {0xFFFFFFFF, kOther}};
  for (const auto& [c, expected] : samples) EXPECT_EQ(unicode_class(c), expected) << std::hex << std::uint32_t{c};
}

}  // namespace
}  // namespace fathom
