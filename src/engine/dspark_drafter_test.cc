// Drafting with the DSpark stages through the engine (the tiny model: untrained, so little is accepted).
#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint/catalog.h"
#include "engine/engine.h"
#include "engine/load_model.h"
#include "engine/model_executor.h"
#include "engine/scheduler.h"
#include "engine/scripted_answer.h"

namespace fathom {
namespace {

class DsparkDrafting : public ::testing::Test {
 protected:
  static LoadedModel load(const Numerics& numerics) {
    LoadOptions options;
    options.numerics = numerics;
    options.num_threads = 2;
    options.max_logit_rows = 128;
    auto loaded = load_model(FATHOM_SOURCE_DIR "/tests/data/models/tiny-dspark", options);
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    return std::move(*loaded);
  }
  static std::unique_ptr<ModelExecutor> make_executor(Model& model, std::int32_t max_proposals) {
    ModelExecutorOptions options;
    options.max_length_tokens = 1024;
    options.max_sequences = 16;
    options.num_context_blocks = 64;
    options.num_window_blocks = 64;
    options.num_state_slots = 16;
    options.num_resume_slots = 8;
    options.max_proposals = max_proposals;
    auto executor = ModelExecutor::make(model, options);
    EXPECT_TRUE(executor.ok()) << executor.status().message();
    return std::move(*executor);
  }
};

// The six golden steps: fed tokens in, the five greedy drafts out.
TEST_F(DsparkDrafting, ProposesTheGoldenDrafts) {
  const LoadedModel loaded = load(Numerics::plain());
  auto goldens = open_catalog(FATHOM_SOURCE_DIR "/tests/data/golden/tiny-dspark/goldens.safetensors");
  ASSERT_TRUE(goldens.ok());
  const auto ints = [&](const std::string& name) {
    const TensorInfo* tensor = goldens->find(name);
    std::vector<std::int32_t> values(static_cast<std::size_t>(tensor->shape.num_elements()));
    std::memcpy(values.data(), goldens->bytes(*tensor).data(), values.size() * 4);
    return values;
  };
  for (const std::string prompt : {"n5", "n131"}) {
    const auto executor = make_executor(*loaded.model, 5);
    const std::vector<TokenId> ids = ints(prompt + ".ids");
    const std::vector<TokenId> fed = ints(prompt + ".fed");
    const std::vector<TokenId> drafts = ints(prompt + ".draft_ids");
    StepPlan plan;
    SequenceStep step;
    step.id = SequenceId(1);
    step.num_logits = 1;
    step.num_proposals = 5;
    plan.samples.emplace_back().temperature = 0.0f;
    for (std::size_t i = 0; i <= fed.size(); ++i) {
      plan.step = static_cast<std::int64_t>(i) + 1;
      plan.deltas.clear();
      plan.tokens.clear();
      if (i == 0) {
        BlockTableDelta& delta = plan.deltas.emplace_back();
        delta.id = step.id;
        delta.created = true;
        for (int b = 0; b < 3; ++b) {
          delta.appended_context.push_back(BlockId(b));
          delta.appended_window.push_back(WindowBlockId(b));
        }
        for (const TokenId id : ids) plan.tokens.push_back(TokenRef::of_id(id));
      } else {
        plan.tokens.push_back(TokenRef::of_id(fed[i - 1]));
      }
      step.num_tokens = static_cast<std::int32_t>(plan.tokens.size());
      plan.sequences = {step};
      ASSERT_TRUE(executor->launch(plan).ok());
      const auto result = executor->wait();
      ASSERT_TRUE(result.ok());
      step.start += step.num_tokens;
      executor->commit(step.id, step.start);
      if (i == 0) continue;
      std::vector<TokenId> found = {result->sequences[0].tokens[0].token};
      found.insert(found.end(), result->sequences[0].proposals.begin(), result->sequences[0].proposals.end());
      const auto golden = std::span(drafts).subspan((i - 1) * 6, 6);
      EXPECT_EQ(found, std::vector<TokenId>(golden.begin(), golden.end())) << prompt << " step " << i - 1;
    }
  }
}

TEST_F(DsparkDrafting, SameTokensAtEveryDepth) {
  const LoadedModel loaded = load(Numerics::serve());
  std::vector<Request> requests;
  for (const std::int64_t length : {1, 121, 250}) {
    for (const float temperature : {0.0f, 1.0f}) {
      Request request;
      request.prompt = scripted_prompt(static_cast<std::uint64_t>(length), length, 0, 380);
      request.sampling.temperature = temperature;
      request.sampling.seed = 5;
      request.ignore_eos = true;
      request.max_tokens = 12;
      requests.push_back(std::move(request));
    }
  }
  std::vector<std::vector<TokenId>> plain;
  for (const std::int32_t depth : {0, 2, 5}) {
    EngineOptions options;
    options.eos_id = 1;
    options.num_drafts = depth;
    auto engine = Engine::make(options, make_executor(*loaded.model, depth), nullptr);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    for (int time = 0; time < 2; ++time) {
      std::vector<std::unique_ptr<Stream>> streams;
      for (const Request& request : requests) streams.push_back(std::move(*(*engine)->submit(request)));
      for (std::size_t i = 0; i < streams.size(); ++i) {
        const auto tokens = read_all(*streams[i], std::chrono::seconds(300)).at(0).tokens;
        if (depth == 0 && time == 0) plain.push_back(tokens);
        EXPECT_EQ(tokens, plain[i]) << "request " << i << " at depth " << depth << " time " << time;
      }
    }
    EXPECT_TRUE((*engine)->drain(std::chrono::seconds(60)));
    if (depth > 0) {
      EXPECT_GT((*engine)->stats().drafted_tokens, 0);
    }
  }
}

// Keys are written for every committed position, however many a step commits: behind drafts that were right it proposes
// what it does token by token, and behind wrong ones too. The prompt ends before a block's end.
TEST_F(DsparkDrafting, ProposesTheSameHoweverManyTokensAStepCommits) {
  const LoadedModel loaded = load(Numerics::serve());
  constexpr std::int64_t kTokens = 40;
  std::vector<TokenId> truth;
  std::map<std::size_t, std::vector<TokenId>> expected;  // by the tokens drawn before
  for (const int num_right : {-1, 1, 3, 5}) {            // of five drafts; -1: none are made
    const auto executor = make_executor(*loaded.model, 5);
    Scheduler scheduler({}, executor->limits());
    SequenceSpec sequence;
    sequence.id = SequenceId(1);
    sequence.prompt = scripted_prompt(4, 110, 0, 380);
    scheduler.add(sequence);
    SampleSpec greedy;
    greedy.temperature = 0.0f;
    std::vector<TokenId> answer;
    std::size_t num_compared = 0;
    while (std::cmp_less(answer.size(), kTokens)) {
      StepPlan& plan = scheduler.plan();
      SequenceStep& step = plan.sequences.at(0);
      step.num_proposals = 5;
      plan.samples.push_back(greedy);
      ASSERT_TRUE(executor->launch(plan).ok());
      const auto result = executor->wait();
      ASSERT_TRUE(result.ok());
      const SequenceResult& got = result->sequences.at(0);
      std::vector<TokenId> ids;
      for (std::int32_t i = 0; i <= got.accepted; ++i) ids.push_back(got.tokens[static_cast<std::size_t>(i)].token);
      answer.insert(answer.end(), ids.begin(), ids.end());
      executor->commit(step.id, scheduler.commit(step, ids));
      if (num_right < 0) {
        expected[answer.size()] = got.proposals;
        continue;
      }
      if (const auto found = expected.find(answer.size()); found != expected.end()) {
        EXPECT_EQ(got.proposals, found->second) << num_right << " right, behind token " << answer.size();
        ++num_compared;
      }
      std::vector<TokenId> drafts;
      for (std::size_t k = 0; k < 5; ++k) {
        const std::size_t place = answer.size() + k;
        const TokenId next = place < truth.size() ? truth[place] : 0;
        drafts.push_back(std::cmp_less(k, num_right) ? next : (next + 1) % 380);
      }
      scheduler.set_drafts(step.id, drafts);
    }
    if (num_right < 0) {
      truth = answer;
      continue;
    }
    answer.resize(truth.size());
    EXPECT_EQ(answer, truth);
    EXPECT_GE(num_compared, 6u);
  }
  EXPECT_EQ(expected.begin()->second.size(), 5u);
}

}  // namespace
}  // namespace fathom
