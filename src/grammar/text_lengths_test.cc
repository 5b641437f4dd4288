#include "grammar/text_lengths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace fathom {
namespace {

const std::string kBegin = "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n";
const std::string kEnd = "</｜DSML｜parameter>";
std::string open_text(const std::string& name) { return "<｜DSML｜parameter name=\"" + name + "\" string=\"true\">"; }

const TextBounds kBounds = {{"f", {{"s", {2, 4}}, {"least", {3, -1}}, {"none", {0, 0}}}}, {"g", {{"s", {0, 1}}}}};

// Every byte is a token, and so are these.
const std::vector<std::string>& vocabulary() {
  static const std::vector<std::string> made = [] {
    std::vector<std::string> out;
    for (int byte = 0; byte < 256; ++byte) out.emplace_back(1, static_cast<char>(byte));
    for (const char* text : {"",         "ab",       "abc",    "abcd", "é",
                             "éé",       "，",       "a，",    "</",   "a</",
                             "ab</",     "<<",       "<a",     "/a",   "｜",
                             "｜DSML｜", "</｜",     "a</｜",  "\">",  "\">a",
                             "\">ab",    "\">abcde", "\">a</", "x/y",  "</｜DSML｜parameter>"}) {
      out.emplace_back(text);
    }
    return out;
  }();
  return made;
}
const TextTokens& tokens() {
  static const TextTokens made(vocabulary());
  return made;
}

TextLengths behind(std::string_view text) {
  TextLengths lengths(kBounds, tokens());
  lengths.push(text);
  return lengths;
}

TEST(TextLengths, CountsCodePointsUpToTheClosingTag) {
  const TextLengths text = behind(kBegin + open_text("s"));
  for (const char* fits : {"ab", "abcd", "éé", "😀😀😀😀", "a</", "abcd</", "</</", "a<b", "，，｜，"}) {
    EXPECT_TRUE(text.fits(fits)) << fits;
  }
  for (const char* fits : {"ab", "abcd", "</</", "a</b", "｜｜", "<<"}) EXPECT_TRUE(text.fits(fits + kEnd)) << fits;
  for (const char* too_long : {"abcde", "😀😀😀😀😀", "abcd</x", "abcd<x", "abcd<<", "</</a", "abcd，", "abcd</，"}) {
    EXPECT_FALSE(text.fits(too_long)) << too_long;
  }
  for (const char* too_short : {"", "a", "é", "<", "\n"}) EXPECT_FALSE(text.fits(too_short + kEnd)) << too_short;
  EXPECT_FALSE(behind(kBegin + open_text("least")).fits("ab" + kEnd));
  EXPECT_TRUE(behind(kBegin + open_text("least")).fits("abc" + kEnd));
  EXPECT_TRUE(behind(kBegin + open_text("none")).fits(kEnd));
  EXPECT_FALSE(behind(kBegin + open_text("none")).fits("a"));
}

TEST(TextLengths, KnowsWhichTextItIs) {
  const std::string five = "abcde";
  const std::string json = "<｜DSML｜parameter name=\"s\" string=\"false\">";
  EXPECT_TRUE(behind(kBegin + open_text("other")).fits(five));
  EXPECT_TRUE(behind(kBegin + json).fits(five));
  EXPECT_TRUE(behind(open_text("s")).fits(five)) << "outside of calls";
  // A tag in a text that is not counted, and in JSON, is none.
  EXPECT_TRUE(behind(kBegin + open_text("other") + open_text("s")).fits(five));
  EXPECT_FALSE(behind(kBegin + open_text("other") + "x" + kEnd + "\n" + open_text("s")).fits(five));
  EXPECT_FALSE(behind(kBegin + open_text("s") + "abc" + kEnd + "\n" + open_text("s")).fits(five));
  const std::string other_tool = "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"g\">\n";
  EXPECT_FALSE(behind(kBegin + open_text("s") + "abc" + kEnd + "\n" + other_tool + open_text("s")).fits("ab"));
  EXPECT_TRUE(behind(kBegin + "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"h\">\n" + open_text("s")).fits(five));
  EXPECT_TRUE(behind(kBegin + "</｜DSML｜invoke>\n</｜DSML｜tool_calls>" + open_text("s")).fits(five));
  // Other parameters than those that are named.
  const TextBounds others = {{"f", {{"s", {}}, {"", {0, 2}}}}};
  for (const auto& [name, fits] : {std::pair<const char*, bool>{"s", true}, {"t", false}}) {
    TextLengths lengths(others, tokens());
    lengths.push(kBegin + open_text(name));
    EXPECT_EQ(lengths.fits(five), fits) << name;
  }
}

// At random places of random texts: what the mask keeps is what fits, something always fits, and tokens are taken back.
TEST(TextLengths, MasksAreWhatFits) {
  std::mt19937_64 random(7);
  const std::size_t num_words = (vocabulary().size() + 31) / 32;
  for (int round = 0; round < 300; ++round) {
    const char* names[] = {"s", "least", "none"};
    const std::string begin = kBegin + open_text(names[round % 3]);
    // With the end of the tag still to come, in some.
    TextLengths lengths = behind(round % 2 == 0 ? begin : begin.substr(0, begin.size() - 2));
    for (int step = 0; step < 12; ++step) {
      std::vector<std::uint32_t> mask(num_words, ~0u);
      lengths.restrict(mask, vocabulary());
      std::vector<std::size_t> kept;
      for (std::size_t id = 0; id < vocabulary().size(); ++id) {
        const bool is_kept = (mask[id / 32] >> (id % 32) & 1u) != 0;
        // Bytes that continue nothing are for the grammar to refuse.
        if (is_kept) kept.push_back(id);
        ASSERT_EQ(is_kept, lengths.fits(vocabulary()[id])) << "\"" << vocabulary()[id] << "\"";
      }
      ASSERT_FALSE(kept.empty());
      const std::string& token = vocabulary()[kept[random() % kept.size()]];
      lengths.push(token);
      lengths.push("ab");
      lengths.pop(1);
    }
  }
}

// Whatever fits leaves a way to the closing tag: by more of the text, or by the rest of a tag that has begun.
TEST(TextLengths, ThereIsAlwaysAWayToTheEnd) {
  std::mt19937_64 random(11);
  const std::vector<std::string> pieces = {"a", "é", "<", "/", "</", "a</", "<<", "</<", "ab", "，"};
  int num_at_end = 0;
  for (const LengthBounds bounds : {LengthBounds{4, 4}, LengthBounds{3, 4}, LengthBounds{0, 2}, LengthBounds{5, -1}}) {
    const TextBounds of_f = {{"f", {{"s", bounds}}}};
    for (int round = 0; round < 400; ++round) {
      TextLengths lengths(of_f, tokens());
      lengths.push(kBegin + open_text("s"));
      std::string text;
      for (int i = 0; i < 8; ++i) {
        const std::string& piece = pieces[random() % pieces.size()];
        if (!lengths.fits(piece)) continue;
        lengths.push(piece);
        text += piece;
      }
      const std::size_t begun = text.ends_with("</") ? 2 : text.ends_with("<") ? 1 : 0;
      bool ends = lengths.fits(kEnd.substr(begun));
      for (std::size_t more = 0; more <= 6; ++more) ends = ends || lengths.fits(std::string(more, 'x') + kEnd);
      EXPECT_TRUE(ends) << text << " within " << bounds.least << " and " << bounds.most;
      num_at_end += bounds.most >= 0 && !lengths.fits("a") ? 1 : 0;
    }
  }
  EXPECT_GT(num_at_end, 100);
}

}  // namespace
}  // namespace fathom
