#include "engine/scripted_executor.h"

#include <gtest/gtest.h>

#include "engine/scheduler_bench.h"

namespace fathom {
namespace {

// The checks of the other tests rest on this executor: here it is shown to notice what breaks its rules.

struct Hand {
  ScriptedExecutor executor{ScriptedOptions{}};
  StepPlan plan;
  std::int64_t steps = 0;

  void clear() {
    plan = StepPlan{};
    plan.step = ++steps;
  }
  void create(std::int64_t id, std::vector<std::int32_t> context, std::vector<std::int32_t> window) {
    BlockTableDelta delta;
    delta.id = SequenceId(id);
    delta.created = true;
    delta.state_slot = StateSlot(static_cast<std::int32_t>(id));
    for (std::int32_t block : context) delta.appended_context.emplace_back(block);
    for (std::int32_t block : window) delta.appended_window.emplace_back(block);
    plan.deltas.push_back(delta);
  }
  void rows(std::int64_t id, std::int64_t start, const std::vector<TokenId>& tokens, bool logits = true) {
    SequenceStep step;
    step.id = SequenceId(id);
    step.start = start;
    step.num_tokens = static_cast<std::int32_t>(tokens.size());
    step.num_logits = logits ? 1 : 0;
    plan.sequences.push_back(step);
    for (TokenId token : tokens) plan.tokens.push_back(TokenRef::of_id(token));
    if (!logits) return;
    SampleSpec spec;
    spec.temperature = 0;
    plan.samples.push_back(spec);
  }
  TokenId run() {
    EXPECT_TRUE(executor.launch(plan).ok());
    const auto result = executor.wait();
    EXPECT_TRUE(result.ok());
    return result->sequences.empty() ? -1 : result->sequences[0].tokens[0].token;
  }
};

TEST(ScriptedExecutor, TheTokenIsAFunctionOfTheContext) {
  const std::vector<TokenId> prompt = scripted_prompt(1, 200);
  Hand whole;
  whole.clear();
  whole.create(0, {5, 9}, {3, 1});
  whole.rows(0, 0, prompt);
  const TokenId expected = whole.run();
  Hand parts;
  parts.clear();
  parts.create(3, {1, 2}, {8, 7});
  parts.rows(3, 0, {prompt.begin(), prompt.begin() + 77}, false);
  parts.run();
  parts.clear();
  parts.rows(3, 77, {prompt.begin() + 77, prompt.end()});
  EXPECT_EQ(parts.run(), expected);
  EXPECT_EQ(parts.executor.num_mismatches(), 0);
  std::vector<TokenId> other = prompt;
  other[3] ^= 1;
  Hand changed;
  changed.clear();
  changed.create(0, {5, 9}, {3, 1});
  changed.rows(0, 0, other);
  EXPECT_NE(changed.run(), expected);
}

TEST(ScriptedExecutor, AForeignRowChangesTheTextAndIsCounted) {
  const std::vector<TokenId> prompt = scripted_prompt(1, 100);
  Hand hand;
  hand.clear();
  hand.create(0, {0}, {0});
  hand.rows(0, 0, prompt);
  const TokenId next = hand.run();
  // Another sequence comes to own the block while the first still reads it.
  hand.clear();
  BlockTableDelta released;
  released.id = SequenceId(0);
  released.released = true;
  hand.plan.deltas.push_back(released);
  hand.create(1, {0}, {0});
  hand.rows(1, 0, scripted_prompt(2, 50));
  hand.run();
  // A hit that claims a block whose rows are not the ones it needs, and that restores nothing.
  hand.clear();
  hand.create(2, {1, 2}, {1, 2});
  hand.plan.deltas.back().start_length = 128;
  hand.rows(2, 128, {next});
  hand.run();
  EXPECT_GT(hand.executor.num_mismatches(), 0);
}

TEST(ScriptedExecutorDeathTest, PlansThatBreakTheRules) {
  const std::vector<TokenId> prompt = scripted_prompt(1, 100);
  const auto broken = [&](const std::function<void(Hand&)>& change) {
    Hand hand;
    hand.clear();
    hand.create(0, {0}, {0});
    hand.rows(0, 0, prompt);
    change(hand);
    hand.run();
  };
  EXPECT_DEATH(broken([](Hand& h) { h.plan.sequences[0].start = 5; }), "rows follow the committed ones");
  EXPECT_DEATH(broken([](Hand& h) { h.plan.deltas[0].appended_context.clear(); }), "context blocks cover");
  EXPECT_DEATH(broken([](Hand& h) { h.plan.deltas[0].appended_window.clear(); }), "window blocks cover");
  EXPECT_DEATH(broken([](Hand& h) { h.plan.tokens.pop_back(); }), "one token a row");
  EXPECT_DEATH(broken([](Hand& h) { h.plan.samples.clear(); }), "one sample spec");
  EXPECT_DEATH(broken([](Hand& h) {
                 h.create(1, {0}, {1});
                 h.rows(1, 0, {5});
               }),
               "a context block has one writer");
  EXPECT_DEATH(broken([](Hand& h) {
                 h.create(1, {1}, {0});
                 h.rows(1, 0, {5});
               }),
               "a window block has one writer");
  EXPECT_DEATH(broken([](Hand& h) { h.plan.tokens[0].id = 100000; }), "ids inside the vocabulary");
  EXPECT_DEATH(broken([](Hand& h) { h.rows(7, 0, {1}); }), "sequences were created");
}

}  // namespace
}  // namespace fathom
