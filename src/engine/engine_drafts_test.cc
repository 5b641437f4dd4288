// Masks where drafts cross the place from which they are others: scripted answers, whose drafts are all right.
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/scripted_answer.h"

namespace fathom {
namespace {

constexpr std::int64_t kPrompt = 10;
constexpr TokenId kEos = 1, kStop = 9;

// The token at place `place` of the answer is `token`; the hash decides the others.
ScriptedOptions with_token_at(std::int64_t place, TokenId token) {
  ScriptedOptions scripted;
  scripted.acceptance = 1.0;
  scripted.next_token = [place, token](std::span<const TokenId> context) -> std::optional<TokenId> {
    return std::ssize(context) == kPrompt + place ? token : std::optional<TokenId>();
  };
  return scripted;
}

CollectedChoice answer(const ScriptedOptions& scripted, std::int32_t num_drafts, const Request& request) {
  EngineOptions options;
  options.eos_id = kEos;
  options.num_drafts = num_drafts;
  auto engine = Engine::make(options, std::make_unique<ScriptedExecutor>(scripted), nullptr);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  auto stream = (*engine)->submit(request);
  EXPECT_TRUE(stream.ok()) << stream.status().message();
  return read_all(**stream).at(0);
}

Request greedy_request() {
  Request request;
  request.prompt = scripted_prompt(1, kPrompt);
  request.sampling.temperature = 0.0f;
  request.max_tokens = 24;
  return request;
}

// The answer's end is drafted in a block that begins before it is allowed.
TEST(EngineDrafts, AnEndAtMinTokensIsDrawnWhereverTheDraftsBegin) {
  for (const TokenId token : {kEos, kStop}) {
    for (std::int64_t place = 1; place <= 12; ++place) {
      Request request = greedy_request();
      request.min_tokens = place;
      if (token == kStop) request.stop_token_ids = {kStop};
      const ScriptedOptions scripted = with_token_at(place, token);
      const CollectedChoice plain = answer(scripted, 0, request);
      ASSERT_TRUE(plain.finish);
      EXPECT_EQ(std::ssize(plain.tokens), place + 1);
      EXPECT_EQ(plain.finish->reason, token == kEos ? FinishReason::kEos : FinishReason::kStopToken);
      const CollectedChoice drafted = answer(scripted, 5, request);
      EXPECT_EQ(drafted.tokens, plain.tokens) << "the end at " << place;
      // One place sooner it is not allowed.
      request.min_tokens = place + 1;
      const CollectedChoice longer = answer(scripted, 0, request);
      EXPECT_NE(longer.tokens.at(static_cast<std::size_t>(place)), token);
      EXPECT_EQ(answer(scripted, 5, request).tokens, longer.tokens) << "barred at " << place;
    }
  }
}

class EvenIds final : public TokenConstraint {
 public:
  bool next_mask(std::span<std::uint32_t> mask) override {
    for (std::uint32_t& word : mask) word &= 0x55555555u;
    return true;
  }
  Status accept(TokenId token) override { return token % 2 == 0 ? Status() : internal_error("a masked token came"); }
  void rollback(std::int32_t) override {}
};

// The reasoning's end is drafted, and what follows it in the same block.
TEST(EngineDrafts, AConstraintBeginsBehindADraftedEndOfReasoning) {
  constexpr TokenId kReasoningEnd = 7;
  for (std::int64_t place = 0; place <= 9; ++place) {
    Request request = greedy_request();
    request.ignore_eos = true;
    request.reasoning_end = kReasoningEnd;
    request.make_constraint = [] { return std::make_unique<EvenIds>(); };
    const ScriptedOptions scripted = with_token_at(place, kReasoningEnd);
    const CollectedChoice plain = answer(scripted, 0, request);
    ASSERT_EQ(std::ssize(plain.tokens), 24);
    EXPECT_EQ(plain.tokens.at(static_cast<std::size_t>(place)), kReasoningEnd);
    EXPECT_EQ(answer(scripted, 5, request).tokens, plain.tokens) << "the end at " << place;
  }
}

}  // namespace
}  // namespace fathom
