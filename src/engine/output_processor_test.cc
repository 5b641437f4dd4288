#include "engine/output_processor.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

class OutputTest : public ::testing::Test {
 protected:
  static const Tokenizer& tokenizer() {
    static const Tokenizer instance = *open_tokenizer(FATHOM_SOURCE_DIR "/models/mini-v4");
    return instance;
  }

  struct Got {
    std::string text;
    std::vector<TokenId> tokens;
    std::optional<OutputProcessor::Stop> stop;
    std::vector<std::string> pieces;
  };

  // `ids` through a processor; ends for "length" where nothing else ends it.
  Got run(const Request& request, const std::vector<TokenId>& ids) {
    OutputProcessor output(request, &tokenizer(), tokenizer().eos_id());
    Got got;
    for (TokenId id : ids) {
      Delta delta;
      SampledToken token;
      token.token = id;
      got.stop = output.push(token, delta);
      add(got, delta);
      if (got.stop) return got;
    }
    Delta delta;
    got.stop = output.finish(delta);
    add(got, delta);
    return got;
  }
  std::vector<TokenId> encode(std::string_view text) { return tokenizer().encode(text, SpecialTokens::kPlain); }
  // A token a byte: stop strings then start inside what the tokenizer would make one token.
  std::vector<TokenId> bytes(std::string_view text) {
    std::vector<TokenId> ids;
    for (std::size_t i = 0; i < text.size(); ++i) ids.push_back(*tokenizer().find_token(text.substr(i, 1)));
    return ids;
  }

 private:
  static void add(Got& got, Delta& delta) {
    got.text += delta.text;
    if (!delta.text.empty()) got.pieces.push_back(delta.text);
    for (const OutputToken& token : delta.tokens) got.tokens.push_back(token.sampled.token);
  }
};

TEST_F(OutputTest, TextIsTheTokensText) {
  const std::string text = "Grüße, 世界! \U0001F468\u200D\U0001F469\u200D\U0001F467 e\u0301 done";
  for (const auto& ids : {encode(text), bytes(text)}) {
    const Got got = run({}, ids);
    EXPECT_EQ(got.text, text);
    EXPECT_EQ(got.tokens, ids);
    for (const std::string& piece : got.pieces) EXPECT_EQ(piece.find("\uFFFD"), std::string::npos) << piece;
  }
}

TEST_F(OutputTest, AnEndInsideACodePointIsOneReplacement) {
  auto ids = bytes("ab世");
  ids.pop_back();
  EXPECT_EQ(run({}, ids).text, "ab\uFFFD");
}

TEST_F(OutputTest, StopStringsCutTextAndTokens) {
  Request request;
  request.stop_strings = {"END", "\n\n"};
  const auto ids = bytes("some text END of it");
  const Got got = run(request, ids);
  ASSERT_TRUE(got.stop);
  EXPECT_EQ(got.stop->reason, FinishReason::kStopString);
  EXPECT_EQ(got.stop->stop_string, 0);
  EXPECT_EQ(got.text, "some text ");
  EXPECT_EQ(got.tokens, std::vector<TokenId>(ids.begin(), ids.begin() + 10));
  request.include_stop_string = true;
  EXPECT_EQ(run(request, ids).text, "some text END");
  EXPECT_EQ(run(request, bytes("a\n\nb")).text, "a\n\n");
}

TEST_F(OutputTest, AStopInsideATokenKeepsTheToken) {
  Request request;
  request.stop_strings = {"llo"};
  const auto ids = encode("Hello");
  const Got got = run(request, ids);
  EXPECT_EQ(got.text, "He");
  ASSERT_FALSE(got.tokens.empty());
  EXPECT_EQ(got.tokens[0], ids[0]);
}

TEST_F(OutputTest, TokensWaitForTheirText) {
  Request request;
  request.stop_strings = {"xyz"};
  OutputProcessor output(request, &tokenizer(), tokenizer().eos_id());
  Delta delta;
  for (TokenId id : bytes("axy")) EXPECT_FALSE(output.push({id, 0.0f, {}}, delta));
  EXPECT_EQ(delta.text, "a");
  EXPECT_EQ(delta.tokens.size(), 1u);
  EXPECT_FALSE(output.push({bytes("!")[0], 0.0f, {}}, delta));
  EXPECT_EQ(delta.text, "axy!");
  EXPECT_EQ(delta.tokens.size(), 4u);
}

TEST_F(OutputTest, ReasoningIsNotStopped) {
  const TokenId end = *tokenizer().find_added_token("</think>");
  Request request;
  request.stop_strings = {"stop"};
  request.reasoning_end = end;
  auto ids = bytes("I stop? no");
  ids.push_back(end);
  for (TokenId id : bytes("yes stop now")) ids.push_back(id);
  const Got got = run(request, ids);
  EXPECT_EQ(got.text, "I stop? no</think>yes ");
  // A match does not reach from the reasoning into the answer.
  ids = bytes("st");
  ids.push_back(end);
  for (TokenId id : bytes("op stop")) ids.push_back(id);
  EXPECT_EQ(run(request, ids).text, "st</think>op ");
}

TEST_F(OutputTest, CallsAreNotStopped) {
  const TokenId markup = *tokenizer().find_added_token("｜DSML｜");
  Request request;
  request.stop_strings = {"stop", "<｜"};
  request.calls_begin = markup;
  auto ids = bytes("I <");
  ids.push_back(markup);
  for (TokenId id : bytes("f>stop <")) ids.push_back(id);
  EXPECT_EQ(run(request, ids).text, "I <｜DSML｜f>stop <");
  auto earlier = bytes("I stop <");
  earlier.push_back(markup);
  EXPECT_EQ(run(request, earlier).text, "I ");
  request.calls_begin.reset();
  EXPECT_EQ(run(request, ids).text, "I ");
}

TEST_F(OutputTest, TheSeparatorOfCallsIsNotStopped) {
  const TokenId markup = *tokenizer().find_added_token("｜DSML｜");
  const std::vector<std::vector<std::string>> all_stops = {{"\n"}, {"\n\n"}, {"<"}, {"n\n"}, {"n\n\n<"}, {"\n<", "\n"}};
  for (const auto& stops : all_stops) {
    Request request;
    request.stop_strings = stops;
    request.calls_begin = markup;
    for (const char* separator : {"<", "\n<", "\n\n<"}) {
      for (bool whole_tokens : {false, true}) {
        const std::string before = std::string("In") + separator;
        auto ids = whole_tokens ? encode(before) : bytes(before);
        ids.push_back(markup);
        for (TokenId id : bytes("f>\nn\n\n<")) ids.push_back(id);
        const Got got = run(request, ids);
        EXPECT_FALSE(got.stop) << stops[0] << " " << separator;
        EXPECT_EQ(got.text, before + "｜DSML｜f>\nn\n\n<");
        EXPECT_EQ(got.tokens, ids);
      }
    }
  }
}

TEST_F(OutputTest, WhatLooksLikeASeparatorIsTextAndStops) {
  const TokenId markup = *tokenizer().find_added_token("｜DSML｜");
  Request request;
  request.calls_begin = markup;
  struct Case {
    const char* stop;
    const char* before;  // the markup
    const char* text;
  };
  // A third line end is text; so is what other text follows.
  for (const Case& c : {Case{"\n", "In\n\n\n<", "In"}, Case{"\n\n", "In\n\n\n<", "In\n\n\n<｜DSML｜"},
                        Case{"<", "In\n<<", "In\n"}, Case{"\n", "In\non\n\n<", "In"}, Case{"\n\n", "In\n\non", "In"},
                        Case{"<", "2 < 3", "2 "}, Case{"\n<", "a\n<b", "a"}, Case{"n\no", "In\non", "I"}}) {
    request.stop_strings = {c.stop};
    auto ids = bytes(c.before);
    ids.push_back(markup);
    const Got got = run(request, ids);
    EXPECT_EQ(got.text, c.text) << c.before;
    EXPECT_EQ(got.stop.has_value(), std::string_view(c.text).find("DSML") == std::string_view::npos) << c.before;
  }
  // The answer's end decides too, whatever it is.
  for (bool by_eos : {false, true}) {
    for (const char* end : {"\n", "\n\n", "\n<"}) {
      request.stop_strings = {"\n"};
      auto ids = bytes(std::string("In") + end);
      if (by_eos) ids.push_back(tokenizer().eos_id());
      Got got = run(request, ids);
      ASSERT_TRUE(got.stop);
      EXPECT_EQ(got.stop->reason, FinishReason::kStopString);
      EXPECT_EQ(got.text, "In");
      EXPECT_EQ(got.tokens.size(), 2u);
      request.include_stop_string = true;
      EXPECT_EQ(run(request, ids).text, "In\n");
      request.include_stop_string = false;
      request.stop_strings = {"x"};
      got = run(request, ids);
      EXPECT_EQ(got.text, std::string("In") + end);
      EXPECT_EQ(got.stop.has_value(), by_eos);
      EXPECT_EQ(got.tokens, ids);
    }
  }
}

TEST_F(OutputTest, MinTokensHoldStopsOff) {
  Request request;
  request.stop_strings = {"b"};
  request.min_tokens = 3;
  EXPECT_EQ(run(request, bytes("abab")).text, "aba");
  EXPECT_EQ(run(request, bytes("aabb")).text, "aa");
}

TEST_F(OutputTest, EosAndStopIds) {
  const TokenId eos = tokenizer().eos_id();
  auto ids = bytes("hi");
  ids.push_back(eos);
  ids.push_back(bytes("!")[0]);
  Request request;
  Got got = run(request, ids);
  EXPECT_EQ(got.text, "hi");
  EXPECT_EQ(got.stop->reason, FinishReason::kEos);
  EXPECT_EQ(got.tokens.size(), 3u);
  request.ignore_eos = true;
  got = run(request, ids);
  EXPECT_FALSE(got.stop);
  EXPECT_EQ(got.text, "hi!");
  request.stop_token_ids = {151645, bytes("i")[0]};
  got = run(request, ids);
  EXPECT_EQ(got.stop->reason, FinishReason::kStopToken);
  EXPECT_EQ(got.stop->stop_token, bytes("i")[0]);
  EXPECT_EQ(got.text, "h");
}

}  // namespace
}  // namespace fathom
