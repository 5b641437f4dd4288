#include "grammar/grammar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <thread>
#include <tuple>

#include "base/thread_time.h"
#include "grammar/testing/grammar_checks.h"

namespace fathom {
namespace {

using std::chrono::milliseconds;

TEST(Grammar, JsonObject) {
  const GrammarSpec spec{GrammarKind::kJsonObject, ""};
  EXPECT_TRUE(accepts(spec, R"({"a": [1, 2.5, {"b": null}], "c": "x\n"})"));
  EXPECT_TRUE(accepts(spec, "{}"));
  EXPECT_FALSE(accepts(spec, "[1]"));
  EXPECT_FALSE(accepts(spec, R"({"a": 1)"));
  EXPECT_FALSE(accepts(spec, R"({"a": 01})"));
}

TEST(Grammar, JsonSchema) {
  const GrammarSpec spec{GrammarKind::kJsonSchema,
                         R"({"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}},
                             "required": ["city", "n"], "additionalProperties": false})"};
  EXPECT_TRUE(accepts(spec, R"({"city": "Paris", "n": 3})"));
  EXPECT_FALSE(accepts(spec, R"({"city": "Paris"})"));
  EXPECT_FALSE(accepts(spec, R"({"city": 1, "n": 3})"));
  EXPECT_FALSE(accepts(spec, R"({"city": "Paris", "n": "3"})"));
}

TEST(Grammar, ControlTokensAreNeverPartOfAString) {
  auto grammar = compiler().compile({GrammarKind::kJsonObject, ""}, kPatience).value();
  const auto matcher = compiler().make_matcher(grammar);
  for (TokenId id : mini_tokenizer().encode("{\"a\": \"", SpecialTokens::kPlain)) ASSERT_TRUE(matcher->accept(id).ok());
  std::vector<std::uint32_t> mask(4096 / 32, ~0u);
  ASSERT_TRUE(matcher->next_mask(mask));
  for (std::string_view text : {"</think>", "<think>", "<｜User｜>", "<｜end▁of▁sentence｜>"}) {
    EXPECT_FALSE(allowed(mask, *mini_tokenizer().find_added_token(text))) << text;
  }
}

// What a mask holds is taken, and what it leaves out is not: also where a token runs over the end of a group into a
// class with code points whose last 8 bits are ASCII ("(" is 28, a separator of lines 2028).
TEST(Grammar, MasksAndAcceptanceAgreeBehindAGroup) {
  for (const auto& [expression, is_taken] : std::initializer_list<std::pair<const char*, bool>>{
           {"a( |xB)\\s[^a]", false}, {"a( |xB)[^\\s]", true}, {"a( |xB)\\S+", true}}) {
    const auto grammar = compiler().compile({GrammarKind::kRegex, expression}, kPatience).value();
    const auto matcher = compiler().make_matcher(grammar);
    ASSERT_TRUE(matcher->accept(*mini_tokenizer().find_token("a")).ok());
    std::vector<std::uint32_t> mask(4096 / 32, ~0u);
    ASSERT_TRUE(matcher->next_mask(mask));
    EXPECT_EQ(allowed(mask, *mini_tokenizer().find_token(" (")), is_taken) << expression;
    for (TokenId id = 0; id < mini_tokenizer().vocab_size(); ++id) {
      if (mini_tokenizer().is_added(id)) continue;
      const bool taken = matcher->accept(id).ok();
      if (taken) matcher->rollback(1);
      EXPECT_EQ(allowed(mask, id), taken) << expression << ": \"" << mini_tokenizer().token_bytes(id) << "\"";
    }
  }
}

TEST(Grammar, Regex) {
  const GrammarSpec spec{GrammarKind::kRegex, "(yes|no)[.!]?"};
  EXPECT_TRUE(accepts(spec, "yes"));
  EXPECT_TRUE(accepts(spec, "no!"));
  EXPECT_FALSE(accepts(spec, "maybe"));
}

// What stands beside the alternatives of a regex holds for the answer and for a string of a schema alike.
TEST(Grammar, AnchorsDotsAndLookaroundKeepTheirMeaning) {
  const auto schema_of = [](const std::string& pattern) {
    std::string quoted;
    append_json_quoted(pattern, quoted);
    return GrammarSpec{GrammarKind::kJsonSchema, R"({"type": "string", "pattern": )" + quoted + "}"};
  };
  struct Row {
    const char *pattern, *fits, *does_not;
  };
  for (const Row& row : std::initializer_list<Row>{{"^a$|^b$", "b", "ab"},
                                                   {"^(yes|no)$", "no", "noo"},
                                                   {"^x.y$", "x-y", "x\ny"},
                                                   {"^é.$", "éa", "é\n"},
                                                   {"(^a|b)c", "ac", "aac"},
                                                   {"\\x41b*", "Ab", "\xD0\x9B"}}) {
    EXPECT_TRUE(accepts({GrammarKind::kRegex, row.pattern}, row.fits)) << row.pattern;
    EXPECT_FALSE(accepts({GrammarKind::kRegex, row.pattern}, row.does_not)) << row.pattern;
    std::string fits, does_not;
    append_json_quoted(row.fits, fits);
    append_json_quoted(row.does_not, does_not);
    EXPECT_TRUE(accepts(schema_of(row.pattern), fits)) << row.pattern;
    EXPECT_FALSE(accepts(schema_of(row.pattern), does_not)) << row.pattern;
  }
  // A string's quote can not come out of a pattern bare, whichever characters stand beside.
  for (const char* pattern : {"^[^a]+$", "^é[^a]+$", "^.+$", "^😀.+$"}) {
    EXPECT_FALSE(accepts(schema_of(pattern), "\"é\"x\"")) << pattern;
    EXPECT_FALSE(accepts(schema_of(pattern), "\"é\nx\"")) << pattern;
  }
  for (const char* pattern : {"\"x\"", "a\\\\b", "\\n", "[\"]", "[^\\s\\S]", "^a[\\x00-\\x1f]$", "[a-\\d]", "a{2,1}",
                              "^(a\"x|bc)$", "^([A-Z]:\\\\.*|/.*)$"}) {
    const auto result = compiler().compile(schema_of(pattern), kPatience);
    ASSERT_FALSE(result.ok()) << pattern;
    EXPECT_NE(result.status().message().find("\"pattern\""), std::string::npos) << result.status().message();
  }
  // A branch that is cut off where others go on leaves a way.
  EXPECT_TRUE(accepts(schema_of("^(a\"x|abc)$"), "\"abc\""));
  EXPECT_TRUE(accepts({GrammarKind::kRegex, "\"x\""}, "\"x\""));
  for (const char* pattern : {"a^b", "a$b", "(^a)*", "a(?=b)", "(?!a).", "\\bword", "\\Aword"}) {
    for (const GrammarSpec& spec : {GrammarSpec{GrammarKind::kRegex, pattern}, schema_of(pattern)}) {
      const auto result = compiler().compile(spec, kPatience);
      ASSERT_FALSE(result.ok()) << pattern;
      EXPECT_NE(result.status().message().find("position"), std::string::npos) << result.status().message();
    }
    std::string quoted;
    append_json_quoted(pattern, quoted);
    const std::vector<CallableTool> tools = {
        {"f", R"({"type": "object", "patternProperties": {)" + quoted + R"(: {"type": "integer"}}})"}};
    EXPECT_FALSE(make_tool_calls_source(tools, ToolCallRule::kRequired, true).ok()) << pattern;
  }
}

TEST(Grammar, SpacesAreThoseOfEcmaScript) {
  for (const char* space : {" ", "\t", "\n", "\u00a0", "\u1680", "\u2003", "\u2028", "\u202f", "\u3000", "\ufeff"}) {
    for (const char* pattern : {"a\\s", "a[\\s]", "a[^\\S]"}) {
      EXPECT_TRUE(accepts({GrammarKind::kRegex, pattern}, std::string("a") + space)) << pattern << space;
      EXPECT_FALSE(accepts({GrammarKind::kRegex, pattern}, "ab")) << pattern;
    }
    for (const char* pattern : {"a\\S", "a[\\S]", "a[^\\s]"}) {
      EXPECT_FALSE(accepts({GrammarKind::kRegex, pattern}, std::string("a") + space)) << pattern << space;
      EXPECT_TRUE(accepts({GrammarKind::kRegex, pattern}, "aé")) << pattern;
    }
  }
}

TEST(Grammar, StringsOfBoundedLengthHoldNoControlCharacters) {
  const GrammarSpec spec{GrammarKind::kJsonSchema, R"({"type": "string", "minLength": 1, "maxLength": 3})"};
  EXPECT_TRUE(accepts(spec, "\"abc\""));
  for (const char* text : {"\"a\tb\"", "\"\x05\"", "\"a\nb\"", "\"abcd\"", "\"\""})
    EXPECT_FALSE(accepts(spec, text)) << text;
}

// The library makes an empty text of bounds between which it writes no number, and of no alternatives.
TEST(Grammar, ASchemaThatNoValueFitsIsRefused) {
  const auto is_accepted = [](const std::string& schema) {
    const auto result = compiler().compile({GrammarKind::kJsonSchema, schema}, kPatience);
    if (!result.ok()) {
      EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument) << schema;
    }
    return result.ok();
  };
  const auto number = [](const std::string& bounds) { return R"({"type": "number", )" + bounds + "}"; };
  for (const char* bounds :
       {R"("minimum": 1e-300, "maximum": 2e-300)", R"("minimum": 0.1234567891, "maximum": 0.1234567892)",
        R"("exclusiveMinimum": 0, "maximum": 1e-9)", R"("exclusiveMinimum": 0.1, "exclusiveMaximum": 0.100001)",
        R"("exclusiveMinimum": -2e-7, "exclusiveMaximum": -1e-7)", R"("minimum": 5, "maximum": 1)"}) {
    EXPECT_FALSE(is_accepted(number(bounds))) << bounds;
    EXPECT_FALSE(is_accepted(R"({"type": "array", "items": )" + number(bounds) + "}")) << bounds;
  }
  for (const char* bounds :
       {R"("minimum": 0, "maximum": 1e-9)", R"("minimum": 0.1, "maximum": 0.1)", R"("minimum": 1e-6)",
        R"("exclusiveMinimum": 0.1, "exclusiveMaximum": 0.100002)", R"("exclusiveMinimum": 1e20, "maximum": 2e20)",
        R"("minimum": -0.5, "exclusiveMaximum": -0.499999)",
        R"("minimum": 1e12, "exclusiveMaximum": 1000000000000.001)"}) {
    EXPECT_TRUE(is_accepted(number(bounds))) << bounds;
  }
  for (const char* schema : {R"({"anyOf": []})", R"({"oneOf": []})", R"({"type": []})", R"({"enum": []})",
                             R"({"type": "object", "properties": {"a": {"anyOf": []}}, "required": ["a"]})"}) {
    EXPECT_FALSE(is_accepted(schema)) << schema;
  }
}

TEST(Grammar, ArgumentsHoldToLengthAndPatternUpToTheirClosingTag) {
  const std::string bounded = R"({"type": "string", "minLength": 4, "maxLength": 9})";
  const std::string defs = R"({"s": )" + bounded + "}";
  for (const std::string& schema :
       {bounded, std::string(R"({"$ref": "#/$defs/s"})"), R"({"anyOf": [{"$ref": "#/$defs/s"}, )" + bounded + "]}"}) {
    const GrammarSpec spec = call_spec(schema, defs);
    for (const char* text : {"abcd", "a\tb\"c", "<b>\n</b>"}) EXPECT_TRUE(accepts(spec, call_text(text, true))) << text;
    for (const char* text : {"abc", "abcdefghij"}) EXPECT_FALSE(accepts(spec, call_text(text, true))) << text;
  }
  const std::string longer = R"({"type": "string", "minLength": 4, "maxLength": 900})";
  // As text of the value the tags would do.
  const std::string tags = "a</｜DSML｜parameter>\n</｜DSML｜invoke>\n";
  for (const std::string& schema : {longer, std::string(R"({"type": "string", "pattern": "^.[\\s\\S]{4,}$"})"),
                                    std::string(R"({"type": "string", "pattern": "^[^b]{4,}$"})"),
                                    std::string(R"({"type": "string", "pattern": "^\\S(.|\n){4,}$"})"),
                                    std::string(R"({"type": "string", "pattern": "^a<(\\D|\\W){4,}$"})")}) {
    EXPECT_TRUE(accepts(call_spec(schema), call_text("a</p>é\t\"" + std::string(8, 'c'), true))) << schema;
    EXPECT_FALSE(accepts(call_spec(schema), call_text(tags + tags, true))) << schema;
  }
  EXPECT_FALSE(accepts(call_spec(R"({"type": "string", "format": "rhyme"})"), call_text(tags + tags, true)));
}

// Counted, not written into the grammar: what a bound costs does not grow with it.
TEST(Grammar, LongBoundsOfArgumentsAreCounted) {
  for (const char* schema : {R"({"type": "string", "minLength": 99999, "maxLength": 100000})",
                             R"({"$ref": "#/$defs/s"})", R"({"anyOf": [{"$ref": "#/$defs/s"}, {"type": "null"}]})"}) {
    const GrammarSpec spec =
        call_spec(schema, R"({"s": {"type": ["string", "integer"], "minLength": 99999, "maxLength": 100000}})");
    const auto grammar = compiler().compile(spec, kPatience);
    ASSERT_TRUE(grammar.ok()) << grammar.status().message();
    const auto matcher = compiler().make_matcher(*grammar);
    const std::string text = call_text("", true).substr(0, call_text("", true).find("</"));
    for (TokenId id : mini_tokenizer().encode(text, SpecialTokens::kRecognise)) ASSERT_TRUE(matcher->accept(id).ok());
    const TokenId letter = *mini_tokenizer().find_token("x"), close = *mini_tokenizer().find_token("</");
    const TokenId bar = *mini_tokenizer().find_added_token("｜DSML｜");
    const auto is_allowed = [&](TokenId id) {
      std::vector<std::uint32_t> mask(4096 / 32, ~0u);
      return !matcher->next_mask(mask) || allowed(mask, id);
    };
    for (int i = 0; i < 99'998; ++i) ASSERT_TRUE(matcher->accept(letter).ok()) << i;
    for (int length = 99'998; length <= 100'000; ++length) {
      EXPECT_EQ(is_allowed(letter), length < 100'000);
      ASSERT_TRUE(matcher->accept(close).ok());
      EXPECT_EQ(is_allowed(bar), length >= 99'999) << length;
      EXPECT_EQ(matcher->accept(bar).ok(), length >= 99'999) << length;
      matcher->rollback(length >= 99'999 ? 2 : 1);
      EXPECT_EQ(matcher->accept(letter).ok(), length < 100'000);
    }
  }
  // Not where the name of a parameter does not say which bounds hold.
  for (const char* schema :
       {R"({"anyOf": [{"type": "string", "maxLength": 300}, {"type": "string", "pattern": "^a+$"}]})",
        R"({"anyOf": [{"type": "string", "maxLength": 300}, {"enum": ["b"]}]})"}) {
    const std::vector<CallableTool> tools = {
        {"f", R"({"type": "object", "properties": {"a": )" + std::string(schema) + "}}"}};
    const auto source = make_tool_calls_source(tools, ToolCallRule::kRequired, true);
    ASSERT_FALSE(source.ok()) << schema;
    EXPECT_NE(source.status().message().find("expected at most 128"), std::string::npos) << source.status().message();
  }
}

TEST(Grammar, StringsWithinArgumentsAreJson) {
  const std::string defs =
      R"({"s": {"type": "string", "maxLength": 3}, "t": {"type": "array", "items": {"$ref": "#/$defs/s"}}})";
  for (
      const char* schema :
      {R"({"type": "array", "items": {"type": "string", "maxLength": 3}})", R"({"$ref": "#/$defs/t"})",
       R"({"type": "array", "items": {"$ref": "#/$defs/s"}})",
       R"({"anyOf": [{"$ref": "#/$defs/s"}, {"$ref": "#/$defs/t"}]})",
       R"({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "array", "items": {"$ref": "#/properties/a/anyOf/0"}}]})"}) {
    const GrammarSpec spec = call_spec(schema, defs);
    EXPECT_TRUE(accepts(spec, call_text("[\"a b\", \"é\"]", false))) << schema;
    for (const char* text : {"[\"a\tb\"]", "[\"\x01\"]", "[\"a\"b\"]", "[\"abcd\"]"})
      EXPECT_FALSE(accepts(spec, call_text(text, false))) << schema << text;
  }
  // Whoever reads the answer would see the tag.
  for (const char* schema : {R"({"type": "array", "items": {"type": "string", "maxLength": 90}})",
                             R"({"type": "array", "items": {"type": "string"}})"}) {
    EXPECT_FALSE(accepts(call_spec(schema), call_text("[\"</｜DSML｜parameter>\"]", false))) << schema;
    EXPECT_TRUE(accepts(call_spec(schema), call_text("[\"</p>\"]", false))) << schema;
  }
}

TEST(Grammar, ArgumentsAreObjects) {
  const auto is_accepted = [](const std::string& schema) {
    const std::vector<CallableTool> tools = {{"f", schema}};
    return make_tool_calls_source(tools, ToolCallRule::kRequired, true).ok();
  };
  for (const char* schema :
       {R"({"type": "array", "items": {}})", R"({"type": "string"})", R"({"type": ["object", "null"]})",
        R"({"enum": ["x"]})", R"({"const": 1})", R"({"anyOf": [{"type": "object"}, {"type": "integer"}]})",
        R"({"anyOf": [{}]})", R"({"items": {}})", R"({"$defs": {"a": {"type": "null"}}, "$ref": "#/$defs/a"})"}) {
    EXPECT_FALSE(is_accepted(schema)) << schema;
  }
  for (const char* schema :
       {"", "{}", "true", R"({"type": "object"})", R"({"properties": {}})", R"({"enum": [{"a": 1}]})",
        R"({"description": "any"})", R"({"anyOf": [{"type": "object"}, {"properties": {}}]})",
        R"({"$defs": {"a": {"type": "object"}}, "$ref": "#/$defs/a"})"}) {
    EXPECT_TRUE(is_accepted(schema)) << schema;
  }
}

// The library tells its log what it leaves out; that is an error here, also the second time.
TEST(Grammar, WhatTheLibraryWarnsOfIsRefused) {
  for (const char* schema : {
           R"({"$ref": "http://example.com/schema"})",
           R"({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 3}]})",
       }) {
    for (int time = 0; time < 2; ++time) {
      const auto result = compiler().compile({GrammarKind::kJsonSchema, schema}, kPatience);
      ASSERT_FALSE(result.ok()) << schema;
      EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
      EXPECT_NE(result.status().message().find("leave out"), std::string::npos) << result.status().message();
    }
  }
  const std::vector<CallableTool> tools = {
      {"f", R"({"type": "object", "properties": {"s": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}})"}};
  const auto source = make_tool_calls_source(tools, ToolCallRule::kRequired, true);
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_FALSE(compiler().compile({GrammarKind::kToolCalls, *source}, kPatience).ok());
}

TEST(Grammar, RequiredToolCall) {
  const std::vector<CallableTool> tools = {
      {"get_weather", R"({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})"},
      {"f", R"({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})"}};
  const GrammarSpec spec{GrammarKind::kToolCalls, make_tool_calls_source(tools, ToolCallRule::kRequired, true).value()};
  const std::string begin = "\n\n<｜DSML｜tool_calls>\n";
  const std::string end = "</｜DSML｜tool_calls>";
  const std::string weather =
      "<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">New "
      "York</｜DSML｜parameter>\n</｜DSML｜invoke>\n";
  const std::string number =
      "<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"n\" "
      "string=\"false\">5</｜DSML｜parameter>\n</｜DSML｜invoke>\n";
  EXPECT_TRUE(accepts(spec, begin + weather + end));
  EXPECT_TRUE(accepts(spec, begin + number + weather + end));
  EXPECT_FALSE(accepts(spec, "Sunny."));
  EXPECT_FALSE(accepts(spec, begin + end));
  EXPECT_FALSE(accepts(spec, begin + "<｜DSML｜invoke name=\"g\">\n"));
  std::string wrong_type = number;
  wrong_type.replace(wrong_type.find(">5<"), 3, ">x<");
  EXPECT_FALSE(accepts(spec, begin + wrong_type + end));
}

TEST(Grammar, OptionalToolCallLeavesTextFree) {
  const std::vector<CallableTool> tools = {{"f", ""}};
  const GrammarSpec spec{GrammarKind::kToolCalls, make_tool_calls_source(tools, ToolCallRule::kOptional, true).value()};
  EXPECT_TRUE(accepts(spec, "It is < 5 degrees."));
  EXPECT_FALSE(accepts(spec, "x\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"g\">\n"));
}

TEST(Grammar, RollbackRestoresTheMask) {
  auto grammar = compiler().compile({GrammarKind::kRegex, "[a-z]+[0-9]"}, kPatience).value();
  const auto matcher = compiler().make_matcher(grammar);
  std::vector<std::uint32_t> before(4096 / 32, ~0u), after(4096 / 32, ~0u);
  matcher->next_mask(before);
  const TokenId letter = *mini_tokenizer().find_token("a");
  ASSERT_TRUE(matcher->accept(letter).ok());
  ASSERT_TRUE(matcher->accept(*mini_tokenizer().find_token("1")).ok());
  EXPECT_TRUE(matcher->may_end());
  matcher->rollback(2);
  matcher->next_mask(after);
  EXPECT_EQ(before, after);
}

TEST(Grammar, BadSourcesAreRefusedWithAReason) {
  const auto refused = [](GrammarKind kind, std::string source) {
    const auto result = compiler().compile({kind, std::move(source)}, kPatience);
    EXPECT_FALSE(result.ok());
    if (result.ok()) return std::string();
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument) << result.status().message();
    return result.status().message();
  };
  EXPECT_NE(refused(GrammarKind::kJsonSchema, "{").find("not JSON"), std::string::npos);
  EXPECT_NE(refused(GrammarKind::kJsonSchema, "3").find("expected an object"), std::string::npos);
  refused(GrammarKind::kJsonSchema, R"({"type": "no-such-type"})");
  refused(GrammarKind::kJsonSchema, R"({"$ref": "#/definitions/missing"})");
  refused(GrammarKind::kRegex, "(");
  refused(GrammarKind::kRegex, "");
  EXPECT_NE(refused(GrammarKind::kJsonSchema, std::string(10000, '[') + std::string(10000, ']')).find("nests"),
            std::string::npos);
  EXPECT_NE(refused(GrammarKind::kJsonSchema, "\"" + std::string(300 * 1024, 'x') + "\"").find("at most"),
            std::string::npos);
  EXPECT_FALSE(make_tool_calls_source({}, ToolCallRule::kRequired, true).ok());
  const std::vector<CallableTool> bad_name = {{"a\"b", ""}};
  EXPECT_FALSE(make_tool_calls_source(bad_name, ToolCallRule::kRequired, true).ok());
}

TEST(Grammar, RecursiveSchemasAreRefused) {
  const auto message = [](const std::string& schema) {
    const auto result = compiler().compile({GrammarKind::kJsonSchema, schema}, kPatience);
    return result.ok() ? std::string() : result.status().message();
  };
  // Of the schema itself, directly, by a definition, by two that name each other, inside a list of choices.
  for (const char* schema : {
           R"({"$ref": "#"})",
           R"({"type": "object", "properties": {"child": {"$ref": "#"}}})",
           R"({"type": "object", "properties": {"next": {"$ref": "#/properties/next"}}})",
           R"({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}}}})",
           R"({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "array", "items":
               {"$ref": "#/$defs/b"}}, "b": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}}}})",
       }) {
    EXPECT_NE(message(schema).find("recursive"), std::string::npos) << schema;
  }
  // Shared definitions, names that look like keywords and data that looks like a reference are none.
  for (const char* schema : {
           R"({"type": "object", "properties": {"a": {"$ref": "#/$defs/p"}, "b": {"$ref": "#/$defs/p"}},
               "$defs": {"p": {"type": "object", "properties": {"x": {"type": "number"}}}}})",
           R"({"type": "object", "properties": {"enum": {"type": "string"}, "$ref": {"type": "string"}}})",
           R"({"enum": [{"$ref": "#"}, 1]})",
       }) {
    EXPECT_EQ(message(schema), "") << schema;
  }
  std::string chain = R"({"$ref": "#/$defs/d0", "$defs": {)";
  for (int i = 0; i < 2000; ++i) {
    chain += "\"d" + std::to_string(i) + R"(": {"$ref": "#/$defs/d)" + std::to_string(i + 1) + "\"}, ";
  }
  EXPECT_NE(message(chain + R"("d2000": {"$ref": "#/$defs/d0"}}})").find("recursive"), std::string::npos);
  const std::vector<CallableTool> tools = {{"f", R"({"type": "object", "properties": {"child": {"$ref": "#"}}})"}};
  const auto source = make_tool_calls_source(tools, ToolCallRule::kRequired, true);
  ASSERT_FALSE(source.ok());
  EXPECT_NE(source.status().message().find("tool f"), std::string::npos) << source.status().message();
}

TEST(Grammar, ConditionsThatTheGrammarLeavesOutAreRefused) {
  const auto message = [](const std::string& schema) {
    const auto result = compiler().compile({GrammarKind::kJsonSchema, schema}, kPatience);
    return result.ok() ? std::string() : result.status().message();
  };
  const std::pair<const char*, const char*> refused[] = {
      {R"({"allOf": [{"type": "integer"}, {"minimum": 900}]})", "\"allOf\""},
      {R"({"anyOf": [{"type": "integer"}], "minimum": 900})", "\"minimum\""},
      {R"({"$ref": "#/$defs/i", "minimum": 900, "$defs": {"i": {"type": "integer"}}})", "\"minimum\""},
      {R"({"not": {"type": "integer"}})", "\"not\""},
      {R"({"type": "integer", "not": {"const": 12}})", "\"not\""},
      {R"({"if": {"minimum": 0}, "then": {"minimum": 900}})", "\"if\""},
      {R"({"type": "string", "enum": [1, "a"]})", "\"type\""},
      {R"({"const": 5, "minimum": 900})", "\"minimum\""},
      {R"({"minimum": 900})", "\"minimum\""},
      {R"({"type": "object", "required": ["zz"], "properties": {"a": {"type": "integer"}}})", "\"zz\""},
      {R"({"required": ["zz"]})", "\"required\""},
      {R"({"type": "array", "items": {"type": "integer"}, "uniqueItems": true})", "\"uniqueItems\""},
      {R"({"type": "array", "contains": {"const": 2}})", "\"contains\""},
      {R"({"type": "string", "pattern": "a+", "maxLength": 7})", "\"pattern\""},
      {R"({"type": "string", "format": "email", "maxLength": 3})", "\"format\""},
      {R"({"type": "number", "multipleOf": 2})", "\"multipleOf\""},
      {R"({"type": "integer", "multipleOf": 2, "minimum": 1})", "\"multipleOf\""},
      {R"({"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, {"not": {}}]}}})",
       "#/properties/a/anyOf/1"},
  };
  for (const auto& [schema, named] : refused) EXPECT_NE(message(schema).find(named), std::string::npos) << schema;
  // Conditions that hold, that concern another type, annotations, and names that look like keywords.
  for (const char* schema : {
           R"({"allOf": [{"type": "integer", "minimum": 1}]})",
           R"({"type": "string", "enum": ["a", "b"], "title": "t", "default": "a"})",
           R"({"type": "integer", "const": 5, "description": "d"})",
           R"({"type": "integer", "minLength": 3, "uniqueItems": true, "multipleOf": 3})",
           R"({"type": ["string", "null"], "maxLength": 3, "minimum": 4})",
           R"({"type": "array", "items": {"type": "integer"}, "uniqueItems": false, "maxItems": 3})",
           R"({"type": "object", "properties": {"not": {"type": "integer"}, "if": {"type": "string"}},
               "required": ["not"], "additionalProperties": false, "x-note": {"not": 1}})",
           R"({"$ref": "#/$defs/i", "default": 3, "$defs": {"i": {"type": "integer", "minimum": 900}}})",
       }) {
    EXPECT_EQ(message(schema), "") << schema;
  }
  const std::vector<CallableTool> tools = {{"f", R"({"type": "object", "properties": {"n": {"not": {}}}})"}};
  const auto source = make_tool_calls_source(tools, ToolCallRule::kRequired, true);
  ASSERT_FALSE(source.ok());
  EXPECT_NE(source.status().message().find("tool f"), std::string::npos) << source.status().message();
}

TEST(Grammar, ManyThreadsCompileTheSameAndDifferentGrammars) {
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&failures, i] {
      const GrammarSpec spec{GrammarKind::kRegex, "[a-z]{" + std::to_string(i % 4 + 1) + "}"};
      if (!compiler().compile(spec, kPatience).ok()) ++failures;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
}

TEST(Grammar, KeptGrammarsAreBoundedByTheirBytes) {
  const auto is_let_go = [](std::int64_t cache_bytes) {
    GrammarLimits limits;
    limits.cache_bytes = cache_bytes;
    const auto compiler = make_grammar_compiler(vocabulary_of(mini_tokenizer(), 4096), limits).value();
    const std::weak_ptr<const CompiledGrammar> first =
        compiler->compile({GrammarKind::kRegex, "a+"}, kPatience).value();
    const auto end = std::chrono::steady_clock::now() + (cache_bytes < 100 ? kPatience : milliseconds(50));
    while (!first.expired() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(milliseconds(1));
    return first.expired();
  };
  EXPECT_TRUE(is_let_go(2));
  EXPECT_FALSE(is_let_go(1 << 30));
}

TEST(Grammar, ATimeOutIsAnErrorAndTheWorkIsKept) {
  std::string choices;
  for (int i = 0; i < 400; ++i) choices += (i == 0 ? "" : "|") + std::string("word") + std::to_string(i * 7919);
  const GrammarSpec spec{GrammarKind::kRegex, "(" + choices + ")+"};
  // One that has compiled nothing yet. Where this thread is held up, it may be done all the same: again, then.
  bool was_hurried = false;
  for (int attempt = 0; attempt < 20 && !was_hurried; ++attempt) {
    const auto fresh = make_grammar_compiler(vocabulary_of(mini_tokenizer(), 4096)).value();
    const auto hurried = fresh->compile(spec, milliseconds(0));
    was_hurried = !hurried.ok();
    EXPECT_TRUE(hurried.ok() || hurried.status().code() == StatusCode::kResourceExhausted)
        << hurried.status().message();
    EXPECT_TRUE(fresh->compile(spec, kPatience).ok());
  }
  EXPECT_TRUE(was_hurried);
}

// The whole real vocabulary, no model: a mask takes at most 1 ms of its thread at the 99th percentile.
TEST(Grammar, MasksOnTheRealVocabularyAreFast) {
  const std::string path = real_tokenizer_path();
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "../shared is absent: the real tokenizer is not in the project";
  const Tokenizer tokenizer = open_tokenizer(path).value();
  const auto real = make_grammar_compiler(vocabulary_of(tokenizer, 129280)).value();
  const GrammarSpec spec{GrammarKind::kJsonSchema,
                         R"({"type": "object", "properties": {"name": {"type": "string"}, "tags": {"type": "array",
                             "items": {"type": "string"}}, "size": {"type": "number"}, "kind": {"enum": ["a", "b"]}},
                             "required": ["name", "tags", "size", "kind"]})"};
  const auto compile_begin = std::chrono::steady_clock::now();
  const auto grammar = real->compile(spec, kPatience).value();
  const std::chrono::duration<double, std::milli> compile_time = std::chrono::steady_clock::now() - compile_begin;
  const std::string text =
      R"({"name": "A longer name, with punctuation: 'x' & \"y\" — und Ümlaute", "tags": ["red", "green", "blue sky"], )"
      R"("size": 12.75, "kind": "b"})";
  std::vector<double> times_us;
  for (int round = 0; round < 5; ++round) {
    const auto matcher = real->make_matcher(grammar);
    for (TokenId id : tokenizer.encode(text, SpecialTokens::kPlain)) {
      std::vector<std::uint32_t> mask(129280 / 32, ~0u);
      const double begin_us = thread_time_us();
      const bool constrained = matcher->next_mask(mask);
      times_us.push_back(thread_time_us() - begin_us);
      ASSERT_TRUE(!constrained || allowed(mask, id)) << tokenizer.token_bytes(id);
      ASSERT_TRUE(matcher->accept(id).ok());
    }
    EXPECT_TRUE(matcher->may_end());
  }
  std::sort(times_us.begin(), times_us.end());
  const double p99_us = times_us[times_us.size() * 99 / 100];
  std::printf("grammar: compiled in %.1f ms; mask p50 %.1f us, p99 %.1f us, max %.1f us over %zu tokens\n",
              compile_time.count(), times_us[times_us.size() / 2], p99_us, times_us.back(), times_us.size());
  if (std::getenv("FATHOM_SLOW_BUILD") == nullptr) {
    EXPECT_LE(p99_us, 1000.0);
  }
}

}  // namespace
}  // namespace fathom
