// Counts above what the grammar library makes ready masks for by itself (`[a-z]{1,200}`): kept, held whatever stands
// beside them, and of fast masks.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "base/thread_time.h"
#include "grammar/regex_counts.h"
#include "grammar/testing/grammar_checks.h"

namespace fathom {
namespace {

// An expression's other characters are handed to the library by their code points, whose digits are no count.
TEST(Grammar, CodePointsAreNoCounts) {
  const GrammarSpec spec{GrammarKind::kJsonSchema, schema_of("^[0-9]+\u2014[0-9]{1,200}$")};
  EXPECT_TRUE(accepts(spec, "\"1\u2014" + std::string(200, '2') + "\""));
  EXPECT_FALSE(accepts(spec, "\"1-2\""));
}

// Each refers to the next one twice: written out, thousands of millions.
TEST(Grammar, ReferencesThatDoubleAreNotWrittenOut) {
  std::string defs = "{";
  for (int i = 0; i < 40; ++i) {
    const std::string next = R"({"$ref": "#/$defs/a)" + std::to_string(i + 1) + "\"}";
    defs += "\"a" + std::to_string(i) + R"(": {"anyOf": [)" + next + ", " + next + "]}, ";
  }
  const GrammarSpec spec = call_spec(R"({"$ref": "#/$defs/a0"})", defs + R"("a40": {"type": "integer"}})");
  EXPECT_TRUE(accepts(spec, call_text("5", false)));
}

// Masks of large counts are ready made for the most part: at each place they hold what is taken, which the library
// finds in another way, and nothing else.
TEST(Grammar, MasksOfLargeCountsHoldWhatIsTaken) {
  const std::string in_list = R"({"type": "array", "items": )",
                    in_members = R"({"type": "object", "properties": {"a": )";
  std::vector<std::pair<GrammarSpec, std::string>> specs;  // and how the answer begins
  for (const char* pattern :
       {"^[a-z]{2,150}$", "^[a-z ]{1,140}$", "^.{130,135}$", "^[^a]{0,131}$", "^([a-z]{1,140}-){1,2}$",
        "^(ab|cd|é[x-z]){1,129}$", "^[a-z]{0,130}[0-9]{0,130}$", "^[a-y]{1,130}[a-z0-9]{1,130}$", "^x?[a-z]{150,}$",
        "^([a-y]{130}z){0,2}[0-9]?$", "^(a{1,2}){1,130}$", "^[a-z]{1,130}|[0-9 ]{131}$"}) {
    specs.push_back({{GrammarKind::kRegex, pattern}, ""});
    specs.push_back({{GrammarKind::kJsonSchema, schema_of(pattern)}, "\""});
    specs.push_back({{GrammarKind::kJsonSchema, in_list + schema_of(pattern) + "}"}, "[\""});
    specs.push_back({{GrammarKind::kJsonSchema, in_members + schema_of(pattern) + "}}"}, "{\"a\": \""});
    const std::string tags = call_text("", true);
    specs.push_back({call_spec(schema_of(pattern)), tags.substr(0, tags.find("</"))});
  }
  std::uint32_t random = 1;
  int num_ended = 0;
  for (const auto& [spec, begin] : specs) {
    const auto grammar = compiler().compile(spec, kPatience);
    ASSERT_TRUE(grammar.ok()) << spec.source << ": " << grammar.status().message();
    const auto matcher = compiler().make_matcher(*grammar);
    for (TokenId id : mini_tokenizer().encode(begin, SpecialTokens::kRecognise)) ASSERT_TRUE(matcher->accept(id).ok());
    std::string text;
    for (int place = 0; place < 180; ++place) {
      std::vector<std::uint32_t> mask(4096 / 32, ~0u);
      matcher->next_mask(mask);
      std::vector<TokenId> ways;
      for (TokenId id = 0; id < mini_tokenizer().vocab_size(); ++id) {
        if (id != mini_tokenizer().eos_id() && allowed(mask, id)) ways.push_back(id);
        if (place % 23 != 0 && text.size() < 120) continue;
        if (id == mini_tokenizer().eos_id()) {
          EXPECT_EQ(allowed(mask, id), matcher->may_end()) << spec.source << " behind " << text;
          continue;
        }
        if (place % 23 != 0 && id % 41 != place % 41) continue;
        const bool taken = matcher->accept(id).ok();
        if (taken) matcher->rollback(1);
        ASSERT_EQ(allowed(mask, id), taken)
            << spec.source << " behind " << text << ": \"" << mini_tokenizer().token_bytes(id) << "\"";
      }
      if (ways.empty()) {
        EXPECT_TRUE(matcher->may_end()) << spec.source << " behind " << text;
        ++num_ended;
        break;
      }
      random = random * 1664525 + 1013904223;
      const TokenId next = ways[(random >> 8) % ways.size()];
      ASSERT_TRUE(matcher->accept(next).ok());
      text += mini_tokenizer().token_bytes(next);
    }
  }
  EXPECT_GT(num_ended, 20);
}

TEST(Grammar, LargeCountsOfPatternsAreKept) {
  const auto repeated = [](const std::string& text, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += text;
    return out;
  };
  struct Row {
    const char *pattern, *item;
    int least, most;  // of the item
  };
  for (const Row& row : std::initializer_list<Row>{{"^[a-z]{3,200}$", "k", 3, 200},
                                                   {"^.{129,130}$", "é", 129, 130},
                                                   {"^[^<a]{150}$", "b", 150, 150},
                                                   {"^(ab|é){2,129}$", "ab", 2, 129},
                                                   {"^\\w{0,1000}$", "Z", 0, 1000}}) {
    for (const int count : {row.least - 1, row.least, row.most, row.most + 1}) {
      if (count < 0) continue;
      const bool fits = count >= row.least && count <= row.most;
      const std::string text = repeated(row.item, count);
      EXPECT_EQ(accepts({GrammarKind::kRegex, row.pattern}, text), fits) << row.pattern << count;
      EXPECT_EQ(accepts({GrammarKind::kJsonSchema, schema_of(row.pattern)}, "\"" + text + "\""), fits)
          << row.pattern << count;
      EXPECT_EQ(accepts(call_spec(schema_of(row.pattern)), call_text(text, true)), fits) << row.pattern << count;
    }
  }
  // Of a bare text, the class holds as well as the count.
  EXPECT_FALSE(accepts(call_spec(schema_of("^[a-z]{3,200}$")), call_text("abcD", true)));
  EXPECT_FALSE(accepts(call_spec(schema_of("^.{3,200}$")), call_text("ab\ncd", true)));
  EXPECT_TRUE(accepts(call_spec(schema_of("^.{3,200}$")), call_text("</p>", true)));
}

// Beside alternatives, where it may be left out, and where several follow each other.
TEST(Grammar, ALargeCountHoldsWhateverStandsBeside) {
  const std::string z131(131, 'z');
  struct Row {
    const char* pattern;
    std::vector<std::string> fit, do_not;
  };
  for (const Row& row : std::initializer_list<Row>{
           {"^([a-z]{1,200}-){1,3}$", {"abc-", "a-b-", "a-b-c-"}, {"abc-d", "abc", "a-b-c-d-", ""}},
           {"^[a-z]{1,200}|[0-9]{1,200}$", {"abc", "123"}, {"a1", "1a", "ab12", ""}},
           {"^([a-z]{130}z){0,2}[0-9]?$",
            {"", "5", z131, z131 + z131 + "7"},
            {"abc", "abc5", z131 + "z", z131 + "abc"}},
           {"^x(b{1,200}|c{1,200}y?)z$", {"xbbz", "xccz", "xccyz"}, {"xbcz", "xbyz", "xz", "xbb"}},
           {"^(a[0-9]{2,200})?(b[0-9]{0,200})?$", {"", "a12", "a12b", "b", "a12b3"}, {"a1", "a1b", "b1a22"}},
           {"^([a-z]{2,200},){0,3}[a-z]{2,200}$", {"ab", "ab,cd", "ab,cd,ef,gh"}, {"a", "ab,", "ab,c", "a,bc"}}}) {
    for (const bool is_fit : {true, false}) {
      for (const std::string& text : is_fit ? row.fit : row.do_not) {
        EXPECT_EQ(accepts({GrammarKind::kRegex, row.pattern}, text), is_fit) << row.pattern << " " << text;
        EXPECT_EQ(accepts({GrammarKind::kJsonSchema, schema_of(row.pattern)}, "\"" + text + "\""), is_fit)
            << row.pattern << " " << text;
        EXPECT_EQ(accepts(call_spec(schema_of(row.pattern)), call_text(text, true)), is_fit)
            << row.pattern << " " << text;
      }
    }
  }
}

TEST(Grammar, MasksOfLargeCountsOnTheRealVocabularyAreFast) {
  const std::string path = real_tokenizer_path();
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "../shared is absent: the real tokenizer is not in the project";
  const Tokenizer tokenizer = open_tokenizer(path).value();
  const auto real = make_grammar_compiler(vocabulary_of(tokenizer, 129280)).value();
  const std::string tags = call_text("", true);
  for (const char* pattern : {"^[a-z]{1,200}$", "^.{1,300}$", "^[a-z]{1,200}[0-9]{1,200}$", "^([a-z]{1,200}-){1,3}$",
                              "^[a-z]{1,200}|[0-9]{1,300}$"}) {
    std::vector<std::tuple<const char*, GrammarSpec, std::string>> specs{
        {"regex", {GrammarKind::kRegex, pattern}, ""},
        {"schema", {GrammarKind::kJsonSchema, schema_of(pattern)}, "\""}};
    // Bare texts count one class, and have other counts written out.
    if (counted_class(pattern))
      specs.emplace_back("strict call", call_spec(schema_of(pattern)), tags.substr(0, tags.find("</")));
    for (const auto& [what, spec, begin] : specs) {
      const auto compile_begin = std::chrono::steady_clock::now();
      const auto grammar = real->compile(spec, kPatience);
      const std::chrono::duration<double, std::milli> compile_time = std::chrono::steady_clock::now() - compile_begin;
      ASSERT_TRUE(grammar.ok()) << spec.source << ": " << grammar.status().message();
      const auto matcher = real->make_matcher(*grammar);
      for (TokenId id : tokenizer.encode(begin, SpecialTokens::kRecognise)) ASSERT_TRUE(matcher->accept(id).ok());
      std::vector<double> times_us;
      std::uint32_t random = 1;
      while (times_us.size() < 30) {
        std::vector<std::uint32_t> mask(129280 / 32, ~0u);
        const double begin_us = thread_time_us();
        matcher->next_mask(mask);
        times_us.push_back(thread_time_us() - begin_us);
        std::vector<TokenId> ways;
        for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
          const std::size_t size = tokenizer.token_bytes(id).size();
          if (id != tokenizer.eos_id() && size > 0 && size < 4 && allowed(mask, id)) ways.push_back(id);
        }
        if (ways.empty()) break;
        random = random * 1664525 + 1013904223;
        ASSERT_TRUE(matcher->accept(ways[(random >> 8) % ways.size()]).ok());
      }
      std::sort(times_us.begin(), times_us.end());
      const double median_us = times_us[times_us.size() / 2];
      std::printf("grammar: %-11s %-27s compiled in %5.1f ms; mask p50 %6.1f us, max %6.1f us over %zu tokens\n", what,
                  pattern, compile_time.count(), median_us, times_us.back(), times_us.size());
      if (std::getenv("FATHOM_SLOW_BUILD") == nullptr) {
        EXPECT_LE(median_us, 1000.0);
      }
    }
  }
}

}  // namespace
}  // namespace fathom
