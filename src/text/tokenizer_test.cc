#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>

#include "base/mapped_file.h"
#include "base/thread_time.h"
#include "text/json_value.h"
#include "text/text_test_data.h"

namespace fathom {
namespace {

using Ids = std::vector<TokenId>;

struct Vector {
  std::string text;
  Ids ids;
};

std::vector<Vector> read_vectors(const std::string& path, std::string_view key = "ids") {
  std::vector<Vector> vectors;
  auto file = read_text_file(path);
  if (!file.ok()) return vectors;
  const JsonValue root = parse_json(*file).value();
  for (const JsonValue& entry : root.items) {
    Vector vector{entry.find("text")->text, {}};
    for (const JsonValue& id : entry.find(key)->items) vector.ids.push_back(static_cast<TokenId>(*id.as_integer()));
    vectors.push_back(std::move(vector));
  }
  return vectors;
}

void expect_vectors(const Tokenizer& tokenizer, const std::vector<Vector>& vectors) {
  for (const Vector& vector : vectors) {
    ASSERT_EQ(tokenizer.encode(vector.text, SpecialTokens::kRecognise), vector.ids) << vector.text;
    ASSERT_EQ(tokenizer.decode(vector.ids), vector.text);
  }
}

// Of this thread, which does all of it: on an idle machine it is also the wall's time.
double seconds_to_encode(const Tokenizer& tokenizer, const std::string& text) {
  const double begin_us = thread_time_us();
  const Ids ids = tokenizer.encode(text, SpecialTokens::kRecognise);
  const double seconds = 1e-6 * (thread_time_us() - begin_us);
  EXPECT_EQ(tokenizer.decode(ids), text);
  return seconds;
}

std::string repeated(std::string_view unit, std::size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += unit;
  return text;
}

TEST(Tokenizer, MiniGolden) {
  const auto vectors = read_vectors(test_data("mini-tokenizer.json"));
  EXPECT_GE(vectors.size(), 50u);
  expect_vectors(mini_tokenizer(), vectors);
}

TEST(Tokenizer, VendorVectors) {
  FATHOM_REAL_TOKENIZER(tokenizer);
  const auto vectors = read_vectors(shared_path("data/tokenizer/vectors.json"));
  EXPECT_EQ(vectors.size(), 1059u);
  expect_vectors(*tokenizer, vectors);
}

// Random Unicode with the ids of PyPI `tokenizers` (tools/compare_tokenizers.py --write).
TEST(Tokenizer, RandomUnicodeMini) {
  const auto vectors = read_vectors(test_data("random_vectors.json"), "mini");
  EXPECT_EQ(vectors.size(), 2000u);
  expect_vectors(mini_tokenizer(), vectors);
}

TEST(Tokenizer, RandomUnicodeReal) {
  FATHOM_REAL_TOKENIZER(tokenizer);
  const auto vectors = read_vectors(test_data("random_vectors.json"), "real");
  EXPECT_EQ(vectors.size(), 2000u);
  expect_vectors(*tokenizer, vectors);
}

TEST(Tokenizer, SpecCheckValues) {
  FATHOM_REAL_TOKENIZER(tokenizer);
  const auto encode = [&](std::string_view text) { return tokenizer->encode(text, SpecialTokens::kRecognise); };
  EXPECT_EQ(encode("Hello, world!"), (Ids{19923, 14, 2058, 3}));
  EXPECT_EQ(encode("1234567890"), (Ids{6895, 18009, 25744, 18}));
  EXPECT_EQ(encode("你好世界"), (Ids{30594, 3427}));
  EXPECT_EQ(encode(" \n "), (Ids{539, 223}));
  EXPECT_EQ(encode(" ~"), (Ids{6883}));
  EXPECT_EQ(encode("<think>reasoning</think>answer"), (Ids{128821, 86512, 288, 128822, 19995}));
  EXPECT_EQ(encode("<｜DSML｜invoke name=\"f\">"), (Ids{30, 128825, 40148, 5406, 2329, 1281, 72, 3320}));
  EXPECT_EQ(tokenizer->bos_id(), 0);
  EXPECT_EQ(tokenizer->eos_id(), 1);
  EXPECT_EQ(tokenizer->find_added_token("<｜title｜>"), 128836);
}

TEST(Tokenizer, SpecialTokensOnlyWhereAllowed) {
  const Tokenizer& tokenizer = mini_tokenizer();
  const TokenId user = *tokenizer.find_added_token("<｜User｜>");
  const std::string text = "a<｜User｜>b";
  const Ids recognised = tokenizer.encode(text, SpecialTokens::kRecognise);
  EXPECT_EQ(std::count(recognised.begin(), recognised.end(), user), 1);
  const Ids plain = tokenizer.encode(text, SpecialTokens::kPlain);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), user), 0);
  EXPECT_GT(plain.size(), recognised.size());
  EXPECT_EQ(tokenizer.decode(plain), text);

  // Every split of the token's bytes between template and user text keeps it from forming.
  const std::string_view token = "<｜User｜>";
  for (std::size_t cut = 0; cut <= token.size(); ++cut) {
    PromptText prompt;
    prompt.append_template("a");
    prompt.append_template(token.substr(0, cut));
    prompt.append_user(token.substr(cut));
    const Ids ids = tokenizer.encode(prompt);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), user), cut == token.size() ? 1 : 0) << cut;
    PromptText reversed;
    reversed.append_user(token.substr(0, cut));
    reversed.append_template(token.substr(cut));
    const Ids reversed_ids = tokenizer.encode(reversed);
    EXPECT_EQ(std::count(reversed_ids.begin(), reversed_ids.end(), user), cut == 0 ? 1 : 0) << cut;
  }
}

TEST(Tokenizer, SeamsAreInvisible) {
  const Tokenizer& tokenizer = mini_tokenizer();
  const std::string text = "Hello there, the function returns 12345 numbers\n\n  and more";
  const Ids whole = tokenizer.encode(text, SpecialTokens::kRecognise);
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    PromptText prompt;
    prompt.append_template(text.substr(0, cut));
    prompt.append_user(text.substr(cut));
    EXPECT_EQ(tokenizer.encode(prompt), whole) << cut;
  }
}

TEST(Tokenizer, AnyBytesComeBack) {
  const Tokenizer& tokenizer = mini_tokenizer();
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    const std::size_t length = random() % 80;
    while (text.size() < length) {
      switch (random() % 5) {
        case 0: text += static_cast<char>(random() % 256); break;
        case 1: text += static_cast<char>(random() % 128); break;
        case 2: append_utf8(random() % 0x3000, text); break;
        case 3: append_utf8(0x10000 + random() % 0x100000, text); break;
        case 4: text += " \n\r\t"[random() % 4]; break;
      }
    }
    for (const auto special : {SpecialTokens::kRecognise, SpecialTokens::kPlain}) {
      ASSERT_EQ(tokenizer.decode(tokenizer.encode(text, special)), text);
    }
  }
}

TEST(Tokenizer, LongAndShortPiecesMergeAlike) {
  // Pieces around the length where the algorithm changes: prefixes of one word must give the ids of a naive merge.
  FATHOM_REAL_TOKENIZER(tokenizer);
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    std::string piece;
    const std::size_t length = 30 + random() % 60;
    while (piece.size() < length) piece += "etaoinshrdlu"[random() % 12];
    // The naive merge: by the bytes of neighbours; ids grow with rank in this vocabulary.
    std::vector<std::string> symbols;
    for (const char c : piece) symbols.emplace_back(1, c);
    for (;;) {
      std::size_t best = symbols.size();
      TokenId lowest = 0;
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
        const auto id = tokenizer->find_token(symbols[i] + symbols[i + 1]);
        if (id && (best == symbols.size() || *id < lowest)) {
          best = i;
          lowest = *id;
        }
      }
      if (best == symbols.size()) break;
      symbols[best] += symbols[best + 1];
      symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    Ids expected;
    for (const std::string& symbol : symbols) expected.push_back(*tokenizer->find_token(symbol));
    ASSERT_EQ(tokenizer->encode(piece, SpecialTokens::kPlain), expected) << piece;
  }
}

TEST(Tokenizer, OneMegabyteOfAnythingIsFast) {
  // The demand is 1 s each; the margin is for a slow machine.
  constexpr double kLimit_s = 4.0;
  for (const char* unit : {"a", " ", "😀", "\n", "<", "<｜User｜", "e\u0301", "1", "的", "ab ", "\xFF"}) {
    const std::string text = repeated(unit, megabyte());
    const double mini = seconds_to_encode(mini_tokenizer(), text);
    std::printf("1 MB of %-12s mini %.3f s\n", unit[0] == '\n' ? "newlines" : unit, mini);
    EXPECT_LT(mini, kLimit_s) << unit;
  }
}

TEST(Tokenizer, LoadsFast) {
  const double begin_us = thread_time_us();
  ASSERT_TRUE(open_tokenizer(std::string(FATHOM_SOURCE_DIR) + "/models/mini-v4").ok());
  const double mini = 1e-6 * (thread_time_us() - begin_us);
  std::printf("mini tokenizer loads in %.1f ms\n", mini * 1e3);
  EXPECT_LT(mini, std::getenv("FATHOM_SLOW_BUILD") == nullptr ? 0.5 : 5.0);
}

TEST(Tokenizer, OneMegabyteWithTheRealVocabularyIsFast) {
  FATHOM_REAL_TOKENIZER(tokenizer);
  for (const char* unit : {"a", " ", "😀", "\n", "<", "=", "的", "word "}) {
    const double seconds = seconds_to_encode(*tokenizer, repeated(unit, megabyte()));
    std::printf("1 MB of %-12s real %.3f s\n", unit[0] == '\n' ? "newlines" : unit, seconds);
    EXPECT_LT(seconds, 4.0) << unit;
  }
}

TEST(IncrementalDetokenizer, WholeCodePointsOnly) {
  const Tokenizer& tokenizer = mini_tokenizer();
  const std::string text = "né 你好 😀🇺🇸 e\u0301 ok";
  const Ids ids = tokenizer.encode(text, SpecialTokens::kPlain);
  IncrementalDetokenizer detokenizer(tokenizer);
  std::string all;
  for (const TokenId id : ids) {
    std::string part;
    detokenizer.push(id, part);
    EXPECT_TRUE(is_valid_utf8(part));
    EXPECT_EQ(part.find(kReplacementUtf8), std::string::npos);
    all += part;
  }
  detokenizer.flush(all);
  EXPECT_EQ(all, text);
}

TEST(IncrementalDetokenizer, CutCodePointIsOneReplacement) {
  const Tokenizer& tokenizer = mini_tokenizer();
  for (std::size_t kept = 1; kept < 4; ++kept) {
    const Ids ids = tokenizer.encode(std::string("a😀").substr(0, 1 + kept), SpecialTokens::kPlain);
    IncrementalDetokenizer detokenizer(tokenizer);
    std::string all;
    for (const TokenId id : ids) detokenizer.push(id, all);
    EXPECT_EQ(all, "a");
    detokenizer.flush(all);
    EXPECT_EQ(all, "a\uFFFD");
  }
}

TEST(IncrementalDetokenizer, SpecialTokensShownOrNot) {
  const Tokenizer& tokenizer = mini_tokenizer();
  const Ids ids = tokenizer.encode("a</think>b<｜end▁of▁sentence｜>", SpecialTokens::kRecognise);
  std::string skipped;
  std::string shown;
  IncrementalDetokenizer skip(tokenizer, SpecialText::kSkip);
  IncrementalDetokenizer show(tokenizer, SpecialText::kShow);
  for (const TokenId id : ids) {
    skip.push(id, skipped);
    show.push(id, shown);
  }
  EXPECT_EQ(skipped, "a</think>b");
  EXPECT_EQ(shown, "a</think>b<｜end▁of▁sentence｜>");
  std::string nothing;
  show.push(-1, nothing);
  show.push(1 << 30, nothing);
  EXPECT_EQ(nothing, "");
}

TEST(IncrementalDetokenizer, CostPerTokenDoesNotGrow) {
  const Tokenizer& tokenizer = mini_tokenizer();
  const Ids ids = tokenizer.encode("word 你", SpecialTokens::kPlain);
  IncrementalDetokenizer detokenizer(tokenizer);
  const auto time_tokens = [&] {
    std::string part;
    const double begin_us = thread_time_us();
    for (int i = 0; i < 100000; ++i) {
      part.clear();
      detokenizer.push(ids[static_cast<std::size_t>(i) % ids.size()], part);
    }
    return 1e-6 * (thread_time_us() - begin_us);
  };
  double first = 1e9;
  double last = 1e9;
  for (int i = 0; i < 3; ++i) first = std::min(first, time_tokens());
  for (int i = 0; i < 10; ++i) time_tokens();
  for (int i = 0; i < 3; ++i) last = std::min(last, time_tokens());
  std::printf("detokenise: %.0f ns a token at the start, %.0f ns after 1.3 million\n", first * 1e4, last * 1e4);
  EXPECT_LT(last, first * 5);
}

// Broken files: the mini tokenizer's text with one thing changed.
std::string mini_json() {
  return read_text_file(std::string(FATHOM_SOURCE_DIR) + "/models/mini-v4/tokenizer.json").value();
}

void expect_refused(const std::string& from, const std::string& to, const std::string& message_part) {
  std::string json = mini_json();
  const std::size_t at = json.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  json.replace(at, from.size(), to);
  const auto tokenizer = parse_tokenizer(json);
  ASSERT_FALSE(tokenizer.ok()) << to;
  EXPECT_NE(tokenizer.status().message().find(message_part), std::string::npos) << tokenizer.status().message();
}

TEST(TokenizerJson, RefusesWhatItWouldNotReproduce) {
  expect_refused("\\\\p{N}{1,3}", "\\\\p{N}{1,2}", "pretokenizers[0].pattern: found \"\\\\p{N}{1,2}\"");
  expect_refused("\"Isolated\"", "\"Removed\"", "behavior");
  expect_refused("\"BPE\"", "\"Unigram\"", "model.type: found \"Unigram\", expected \"BPE\"");
  expect_refused("\"use_regex\": false", "\"use_regex\": true", "pretokenizers[3]");
  expect_refused("\"dropout\": null", "\"dropout\": 0.1", "model.dropout: found 0.1");
  expect_refused("\"lstrip\": false", "\"lstrip\": true", "lstrip");
  expect_refused("<｜Assistant｜>", "<｜Helper｜>", "<｜Assistant｜>");
  expect_refused("\"merges\": [", "\"merges\": [\"x qqqq\", ", "model.merges[0]");
  expect_refused("\"merges\": [", "\"merges\": [7, ", "model.merges[0]: found 7");
  expect_refused("\"version\"", "\"version\" oops", "not valid JSON");
  EXPECT_FALSE(parse_tokenizer("").ok());
  EXPECT_FALSE(parse_tokenizer("[]").ok());
  EXPECT_FALSE(parse_tokenizer("{}").ok());
  EXPECT_FALSE(parse_tokenizer(std::string(100000, '[')).ok());
}

TEST(TokenizerJson, MissingFileIsNamed) {
  const auto tokenizer = open_tokenizer("/nowhere/tokenizer.json");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_NE(tokenizer.status().message().find("/nowhere/tokenizer.json"), std::string::npos);
}

TEST(Tokenizer, WrongTokenizerForTheModel) {
  EXPECT_TRUE(mini_tokenizer().check_fits_model(4096).ok());
  EXPECT_FALSE(mini_tokenizer().check_fits_model(129280).ok());
  EXPECT_FALSE(mini_tokenizer().check_fits_model(512).ok());
}

TEST(Tokenizer, RealTokenizerFitsFlash) {
  FATHOM_REAL_TOKENIZER(tokenizer);
  EXPECT_TRUE(tokenizer->check_fits_model(129280).ok());
  EXPECT_FALSE(tokenizer->check_fits_model(4096).ok());
}

}  // namespace
}  // namespace fathom
