// For tests of grammars: the mini model's vocabulary, one compiler for all, texts fed token by token.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"
#include "text/json_value.h"
#include "text/tokenizer.h"

namespace fathom {

inline constexpr std::chrono::milliseconds kPatience{120'000};  // for what must come, however busy the machine is

inline GrammarVocabulary vocabulary_of(const Tokenizer& tokenizer, std::int64_t vocab_size) {
  GrammarVocabulary vocabulary;
  vocabulary.token_bytes.resize(static_cast<std::size_t>(vocab_size));
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.is_added(id) && tokenizer.token_bytes(id) != "｜DSML｜") continue;
    vocabulary.token_bytes[static_cast<std::size_t>(id)] = std::string(tokenizer.token_bytes(id));
  }
  vocabulary.stop_ids = {tokenizer.eos_id()};
  return vocabulary;
}

inline const Tokenizer& mini_tokenizer() {
  static const Tokenizer tokenizer = open_tokenizer(FATHOM_SOURCE_DIR "/models/mini-v4").value();
  return tokenizer;
}

inline GrammarCompiler& compiler() {
  static const std::unique_ptr<GrammarCompiler> instance =
      make_grammar_compiler(vocabulary_of(mini_tokenizer(), 4096)).value();
  return *instance;
}

inline bool allowed(const std::vector<std::uint32_t>& mask, TokenId id) {
  return (mask[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1u) != 0;
}

// Feeds the text's tokens; true when each was allowed and the text may end there.
inline bool accepts(const GrammarSpec& spec, std::string_view text) {
  auto grammar = compiler().compile(spec, kPatience);
  EXPECT_TRUE(grammar.ok()) << grammar.status().message();
  if (!grammar.ok()) return false;
  const auto matcher = compiler().make_matcher(*grammar);
  for (TokenId id : mini_tokenizer().encode(text, SpecialTokens::kRecognise)) {
    std::vector<std::uint32_t> mask(4096 / 32, ~0u);
    if (matcher->next_mask(mask) && !allowed(mask, id)) {
      EXPECT_FALSE(matcher->accept(id).ok());  // the mask and accept agree
      return false;
    }
    EXPECT_TRUE(matcher->accept(id).ok());
  }
  std::vector<std::uint32_t> mask(4096 / 32, ~0u);
  const bool end_allowed = !matcher->next_mask(mask) || allowed(mask, mini_tokenizer().eos_id());
  EXPECT_EQ(end_allowed, matcher->may_end());
  return end_allowed;
}

// A call of f whose argument a is that text, as a string or as JSON.
inline std::string call_text(std::string_view value, bool is_string) {
  return "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"" +
         std::string(is_string ? "true" : "false") + "\">" + std::string(value) +
         "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
}
inline GrammarSpec call_spec(const std::string& schema_of_a, const std::string& defs = "{}") {
  const std::vector<CallableTool> tools = {{"f", R"({"type": "object", "required": ["a"], "properties": {"a": )" +
                                                     schema_of_a + R"(}, "$defs": )" + defs + "}"}};
  auto source = make_tool_calls_source(tools, ToolCallRule::kRequired, true);
  EXPECT_TRUE(source.ok()) << source.status().message();
  return {GrammarKind::kToolCalls, source.ok() ? *source : ""};
}

inline std::string schema_of(const std::string& pattern) {
  std::string quoted;
  append_json_quoted(pattern, quoted);
  return R"({"type": "string", "pattern": )" + quoted + "}";
}

inline std::string real_tokenizer_path() {
  const char* shared = std::getenv("FATHOM_SHARED");
  return (shared != nullptr ? std::string(shared) : FATHOM_SOURCE_DIR "/../shared") + "/data/tokenizer/tokenizer.json";
}

}  // namespace fathom
