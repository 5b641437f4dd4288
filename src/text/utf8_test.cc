#include "text/utf8.h"

#include <gtest/gtest.h>

#include <random>

namespace fathom {
namespace {

TEST(Utf8, EveryCodePointRoundTrips) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(c, text);
    const CodePoint decoded = decode_code_point(text);
    ASSERT_TRUE(decoded.valid);
    ASSERT_EQ(decoded.value, c);
    ASSERT_EQ(decoded.length, text.size());
  }
}

TEST(Utf8, IllFormedTextPerMaximalSubpart) {
  // The examples of the Unicode Standard, section 3.9, "U+FFFD substitution of maximal subparts".
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD"
            "A");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD"
            "A");
  EXPECT_EQ(replace_invalid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD"
            "A"
            "\uFFFD\uFFFD"
            "B");
  EXPECT_EQ(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD"
            "A");
}

TEST(Utf8Stream, CutsDoNotMatter) {
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (std::size_t n = random() % 12; n > 0; --n) {
      constexpr unsigned char kBytes[] = {'a', 0x80, 0xBF, 0xC2, 0xE0, 0xA0, 0xED, 0x9F, 0xF0, 0x90, 0xF4, 0x8F, 0xFF};
      if (random() % 3 == 0) {
        append_utf8(0x1F600 + random() % 16, text);
      } else {
        text += static_cast<char>(kBytes[random() % sizeof kBytes]);
      }
    }
    const std::string whole = replace_invalid_utf8(text);
    EXPECT_TRUE(is_valid_utf8(whole));
    Utf8Stream stream;
    std::string parts;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = 1 + random() % 3;
      stream.push(std::string_view(text).substr(at, size), parts);
      EXPECT_TRUE(is_valid_utf8(parts));
      EXPECT_LE(stream.num_held_bytes(), 3u);
      at += size;
    }
    stream.flush(parts);
    ASSERT_EQ(parts, whole);
  }
}

}  // namespace
}  // namespace fathom
