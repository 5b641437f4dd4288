#include "text/pretokenizer.h"

#include <gtest/gtest.h>

#include <string>

namespace fathom {
namespace {

using Pieces = std::vector<std::string>;

Pieces split(std::string_view text) {
  std::vector<std::size_t> ends;
  pretokenize(text, ends);
  Pieces pieces;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    EXPECT_GT(end, begin) << "an empty piece in " << text;
    pieces.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  EXPECT_EQ(begin, text.size());
  return pieces;
}

TEST(Pretokenizer, NumbersInThrees) {
  EXPECT_EQ(split("1234567"), (Pieces{"123", "456", "7"}));
  EXPECT_EQ(split("a12"), (Pieces{"a", "12"}));
  EXPECT_EQ(split("½Ⅷ٣٤"), (Pieces{"½Ⅷ٣", "٤"}));
  EXPECT_EQ(split(" 12 x"), (Pieces{" ", "12", " x"}));
}

TEST(Pretokenizer, CjkAndKanaStandApart) {
  EXPECT_EQ(split("abc中文def"), (Pieces{"abc", "中文", "def"}));
  EXPECT_EQ(split("カナ・かな"), (Pieces{"カナ", "・", "かな"}));  // the dot is punctuation: split by stage 3
  EXPECT_EQ(split(" 中"), (Pieces{" ", "中"}));                    // stage 2 leaves the space behind
  EXPECT_EQ(split("龥龦"), (Pieces{"龥", "龦"}));                  // U+9FA5 is in the set, U+9FA6 a letter outside it
  EXPECT_EQ(split("ー〇"), (Pieces{"ー", "〇"}));
}

TEST(Pretokenizer, WordsAndPunctuation) {
  EXPECT_EQ(split("Hello, world!"), (Pieces{"Hello", ",", " world", "!"}));
  EXPECT_EQ(split("don't"), (Pieces{"don", "'t"}));
  EXPECT_EQ(split("~abc ~ x"), (Pieces{"~abc", " ~", " x"}));
  EXPECT_EQ(split("#é"), (Pieces{"#", "é"}));  // only ASCII letters join a punctuation mark
  EXPECT_EQ(split("a_b--\n\nc"), (Pieces{"a", "_b", "--\n\n", "c"}));
  EXPECT_EQ(split("x  (y"), (Pieces{"x", " ", " (", "y"}));
  EXPECT_EQ(split("\te\u0301"), (Pieces{"\te\u0301"}));
  EXPECT_EQ(split("\u0301"), (Pieces{"\u0301"}));
  EXPECT_EQ(split("!\u0301a"), (Pieces{"!", "\u0301a"}));
  EXPECT_EQ(split("\u200Bab"), (Pieces{"\u200B"
                                       "ab"}));
  EXPECT_EQ(split("\x1C\x1C"
                  "ab"),
            (Pieces{"\x1C",
                    "\x1C"
                    "ab"}));
}

TEST(Pretokenizer, WhiteSpace) {
  EXPECT_EQ(split("a   b"), (Pieces{"a", "  ", " b"}));
  EXPECT_EQ(split("a   "), (Pieces{"a", "   "}));
  EXPECT_EQ(split("   \n   \n"), (Pieces{"   \n   \n"}));
  EXPECT_EQ(split(" \n x"), (Pieces{" \n", " x"}));
  EXPECT_EQ(split(" \n  1"), (Pieces{" \n", "  ", "1"}));  // the lookahead succeeds at a piece's end
  EXPECT_EQ(split("\r\n\ta"), (Pieces{"\r\n", "\ta"}));
  EXPECT_EQ(split("\u3000\u00A0x"), (Pieces{"\u3000", "\u00A0x"}));
  EXPECT_EQ(split("\u0085"), (Pieces{"\u0085"}));
  EXPECT_EQ(split(" \u00A0."), (Pieces{" ", "\u00A0", "."}));
}

TEST(Pretokenizer, GapsAndIllFormedBytes) {
  EXPECT_EQ(split("\uE000\uE001"), (Pieces{"\uE000\uE001"}));  // private use: nothing matches, one gap
  EXPECT_EQ(split("\xFF\xFE"), (Pieces{"\xFF\xFE"}));
  EXPECT_EQ(split("\xFF"
                  "a"),
            (Pieces{"\xFF"
                    "a"}));
  EXPECT_EQ(split(""), Pieces{});
}

}  // namespace
}  // namespace fathom
