// Speculation on the mini model: the same tokens at every depth and batch, with drafters that are always wrong or
// always right, at block and group ends, under pressure, and with everything a request may ask for.
#include <bit>
#include <cstdlib>

#include "engine/model_determinism.h"
#include "text/tokenizer.h"

namespace fathom {
namespace {

ModelBench& bench() {
  static ModelBench instance;
  return instance;
}
std::vector<TokenId> task(const Tokenizer& tokenizer, std::string_view text) {
  return tokenizer.encode("<｜begin▁of▁sentence｜><｜User｜>" + std::string(text) + "<｜Assistant｜></think>",
                          SpecialTokens::kRecognise);
}

// The model's own tasks, whose drafts are mostly right, and short random prompts, whose are not: some with a common
// first block, some around its end. A fourth is drawn at temperature 1.
std::vector<ModelCase> make_cases() {
  auto tokenizer = open_tokenizer(FATHOM_SOURCE_DIR "/models/mini-v4");
  EXPECT_TRUE(tokenizer.ok());
  constexpr const char* kTasks[] = {"17*23?",       "Tell me a story about a cat.", "Say castle 8 times.",
                                    "Spell lemon.", "capital of Guatemala",         "Tell me a story about a dog."};
  SessionOptions alone;
  alone.max_context_tokens = 1024;
  auto session = Session::make(bench().model(), alone);
  EXPECT_TRUE(session.ok());
  std::vector<ModelCase> cases;
  for (int i = 0; i < 40; ++i) {
    ModelCase& made = cases.emplace_back();
    const auto seed = static_cast<std::uint64_t>(i);
    switch (i % 4) {
      case 0:
        made.request.prompt = task(*tokenizer, kTasks[static_cast<std::size_t>(i / 4) % std::size(kTasks)]);
        break;
      case 1: made.request.prompt = scripted_prompt(seed, 1 + i * 2, 0, 4000); break;
      case 2: made.request.prompt = scripted_prompt(seed, 129 + i, 128, 4000); break;
      default: made.request.prompt = scripted_prompt(seed, 100 + i, 0, 4000);
    }
    made.request.sampling.temperature = i % 8 >= 6 || i % 16 == 4 ? 1.0f : 0.0f;
    made.request.sampling.seed = seed;
    made.request.ignore_eos = i % 4 != 0;
    made.request.max_tokens = i % 4 == 0 ? 40 : 8 + i % 9;
    made.expected = ModelBench::answer_alone(**session, made.request);
  }
  return cases;
}
const std::vector<ModelCase>& cases() {
  static const std::vector<ModelCase> made = make_cases();
  return made;
}

// Proposes what the cases say comes next, or never that. Cases are told apart by their seeds.
class DoctoredExecutor final : public Executor {
 public:
  DoctoredExecutor(std::unique_ptr<ModelExecutor> inner, const std::vector<ModelCase>& cases, bool right,
                   std::int32_t most)
      : inner_(std::move(inner)), limits_(inner_->limits()), right_(right) {
    limits_.max_proposals = most;
    for (const ModelCase& one : cases) answers_[*one.request.sampling.seed] = one.expected;
  }

  const ExecutorLimits& limits() const override { return limits_; }
  void commit(SequenceId id, std::int64_t length) override { inner_->commit(id, length); }
  Status launch(const StepPlan& plan) override {
    asked_.clear();
    std::size_t next = 0;
    for (const SequenceStep& step : plan.sequences) {
      if (step.num_logits == 0) continue;
      const SampleSpec& spec = plan.samples[next++];
      asked_.push_back(
          {spec.seed, static_cast<std::int64_t>(spec.output_ids.size()) - step.num_drafts, step.num_proposals});
    }
    return inner_->launch(plan);
  }
  Result<StepResult> wait() override {
    auto result = inner_->wait();
    for (std::size_t i = 0; result.ok() && i < result->sequences.size(); ++i) {
      SequenceResult& got = result->sequences[i];
      const std::vector<TokenId>& answer = answers_.at(asked_[i].seed);
      got.proposals.clear();
      const std::int64_t first = asked_[i].num_output + got.accepted + 1;
      for (std::int64_t k = first; k < first + asked_[i].num_proposals; ++k) {
        const TokenId truth = std::cmp_less(k, answer.size()) ? answer[static_cast<std::size_t>(k)] : 7;
        got.proposals.push_back(right_ ? truth : (truth + 1) % limits_.vocab_size);
      }
    }
    return result;
  }

 private:
  struct Asked {
    std::uint64_t seed;
    std::int64_t num_output;  // before the step
    std::int32_t num_proposals;
  };
  std::unique_ptr<ModelExecutor> inner_;
  ExecutorLimits limits_;
  bool right_;
  std::map<std::uint64_t, std::vector<TokenId>> answers_;
  std::vector<Asked> asked_;
};

auto doctored(const std::vector<ModelCase>& cases, bool right, std::int32_t most) {
  return [&cases, right, most](std::unique_ptr<ModelExecutor> inner) -> std::unique_ptr<Executor> {
    return std::make_unique<DoctoredExecutor>(std::move(inner), cases, right, most);
  };
}

TEST(Drafts, EveryDepthColdAndWarmInABatch) {
  for (const std::int32_t depth : {1, 2, 3, 4, 5, 6, 7}) {
    ModelBench::Run run;
    run.num_drafts = depth;
    run.num_sequences = 64;
    run.times = depth == 3 || depth == 7 ? 2 : 1;
    const EngineStats stats = bench().expect_answers(cases(), run);
    EXPECT_GT(stats.drafted_tokens, 100) << depth;
    EXPECT_GT(stats.accepted_tokens, 20) << depth;
    if (run.times == 2) {
      EXPECT_GT(stats.prefix_hits, 8) << depth;
    }
  }
}

TEST(Drafts, AdaptiveAloneAndInABatchOf64) {
  ModelBench::Run run;
  run.num_drafts = 5;
  run.adaptive = true;
  run.num_sequences = 64;
  std::vector<ModelCase> twice = cases();
  twice.insert(twice.end(), cases().begin(), cases().end());
  bench().expect_answers(twice, run);
  run.together = false;
  bench().expect_answers(cases(), run);
}

TEST(Drafts, AloneAtTwoDepths) {
  for (const std::int32_t depth : {1, 7}) {
    ModelBench::Run run;
    run.num_drafts = depth;
    run.together = false;
    bench().expect_answers(cases(), run);
  }
}

TEST(Drafts, AlwaysWrongAndAlwaysRight) {
  for (const std::int32_t depth : {1, 4, 7}) {
    for (const bool right : {false, true}) {
      ModelBench::Run run;
      run.num_drafts = depth;
      run.num_sequences = 64;
      run.wrap = doctored(cases(), right, depth);
      const EngineStats stats = bench().expect_answers(cases(), run);
      EXPECT_GT(stats.drafted_tokens, 100);
      if (right) {
        // Wrong are only those behind an answer's end.
        EXPECT_GT(stats.accepted_tokens, stats.drafted_tokens / 3) << depth;
      } else {
        EXPECT_EQ(stats.accepted_tokens, 0) << depth;
      }
    }
  }
}

// Prompts that end at every position around the window, and so around ends of ratio-4 and ratio-128 groups; each step
// computes seven drafted rows behind them that are rejected.
TEST(Drafts, EveryPositionAroundBlockAndGroupEnds) {
  std::vector<ModelCase> around;
  SessionOptions alone;
  alone.max_context_tokens = 1024;
  auto session = Session::make(bench().model(), alone);
  ASSERT_TRUE(session.ok());
  for (const std::int64_t middle : {128, 256}) {
    for (std::int64_t length = middle - 9; length <= middle + 5; ++length) {
      ModelCase& made = around.emplace_back();
      made.request.prompt = scripted_prompt(static_cast<std::uint64_t>(middle), length, 0, 4000);
      made.request.sampling.temperature = length % 3 == 0 ? 1.0f : 0.0f;
      made.request.sampling.seed = 1000 + static_cast<std::uint64_t>(around.size());
      made.request.ignore_eos = true;
      made.request.max_tokens = 10;
      made.expected = ModelBench::answer_alone(**session, made.request);
    }
  }
  for (const bool wrong : {true, false}) {
    ModelBench::Run run;
    run.num_drafts = 7;
    run.num_sequences = 64;
    run.times = 2;
    if (wrong) run.wrap = doctored(around, false, 7);
    const EngineStats stats = bench().expect_answers(around, run);
    EXPECT_GT(stats.drafted_tokens - stats.accepted_tokens, 500);
    EXPECT_GT(stats.prefix_hits, 10) << "nothing rejected is ever found by another";
  }
}

TEST(Drafts, CancelsPreemptionAndEviction) {
  for (const bool adaptive : {false, true}) {
    ModelBench::Run run;
    run.num_drafts = adaptive ? 5 : 6;
    run.adaptive = adaptive;
    run.cancels = true;
    run.num_context_blocks = 10;
    run.num_resume_slots = 3;
    const EngineStats stats = bench().expect_answers(cases(), run);
    EXPECT_GT(stats.evicted_blocks, 0);
    if (!adaptive) {
      EXPECT_GT(stats.preemptions, 0);
      EXPECT_GT(stats.drafted_tokens, 100);
    }
  }
}

// Lets even and odd ids come by turns: a mask that depends on what was accepted.
class ByTurns final : public TokenConstraint {
 public:
  bool next_mask(std::span<std::uint32_t> mask) override {
    for (std::uint32_t& word : mask) word &= count_ % 2 == 0 ? 0x55555555u : 0xaaaaaaaau;
    return true;
  }
  Status accept(TokenId token) override {
    if (token % 2 != count_ % 2) return internal_error("a masked token came");
    ++count_;
    return {};
  }
  void rollback(std::int32_t num_tokens) override { count_ -= num_tokens; }

 private:
  std::int32_t count_ = 0;
};

std::vector<Request> requests_with_everything(const Tokenizer& tokenizer) {
  const auto ask = [&](std::string_view text) {
    Request request;
    request.prompt = task(tokenizer, text);
    request.sampling.temperature = 0.0f;
    request.sampling.seed = 11;
    request.max_tokens = 40;
    request.num_logprobs = 3;
    return request;
  };
  std::vector<Request> requests;
  requests.push_back(ask("17*23?"));
  requests.push_back(ask("Tell me a story about a cat."));
  requests.push_back(ask("Tell me a story about a dog."));
  requests.back().sampling.temperature = 1.0f;
  requests.back().num_choices = 3;
  requests.push_back(ask("Tell me a story about a cat."));
  requests.back().stop_strings = {"named", "a time, th"};
  requests.push_back(ask("Tell me a story about a bird."));
  requests.back().stop_strings = {"."};
  requests.back().include_stop_string = true;
  requests.back().min_tokens = 20;
  requests.push_back(ask("Say castle 12 times."));
  requests.back().sampling.frequency_penalty = 0.6f;
  requests.back().sampling.presence_penalty = 0.2f;
  requests.push_back(ask("Say castle 12 times."));
  requests.back().sampling.repetition_penalty = 1.3f;
  requests.back().sampling.temperature = 1.0f;
  requests.push_back(ask("Tell me a story about a fish."));
  for (TokenId id = 1400; id < 1500; ++id)
    requests.back().sampling.logit_bias.emplace_back(id, id % 2 == 0 ? 6.0f : -100.0f);
  requests.push_back(ask("17*23?"));
  requests.back().min_tokens = 25;  // EOS is masked at first
  requests.push_back(ask("Tell me a story about a cat."));
  requests.back().stop_token_ids = {tokenizer.encode(" named", SpecialTokens::kRecognise).back()};
  requests.push_back(ask("Tell me a story about a frog."));
  requests.back().make_constraint = [] { return std::make_unique<ByTurns>(); };
  requests.back().ignore_eos = true;
  requests.push_back(ask("Tell me a story about a cow."));
  requests.back().make_constraint = [] { return std::make_unique<ByTurns>(); };
  requests.back().ignore_eos = true;
  requests.back().sampling.temperature = 1.0f;
  requests.back().num_choices = 2;
  requests.back().num_prompt_logprobs = 1;
  requests.push_back(ask("capital of France"));
  requests.back().max_tokens = 1;
  return requests;
}

void expect_same(const SampledToken& a, const SampledToken& b, const std::string& where) {
  EXPECT_EQ(a.token, b.token) << where;
  EXPECT_EQ(std::bit_cast<std::uint32_t>(a.logprob), std::bit_cast<std::uint32_t>(b.logprob)) << where;
  ASSERT_EQ(a.top.size(), b.top.size()) << where;
  EXPECT_EQ(std::memcmp(a.top.data(), b.top.data(), a.top.size() * sizeof(a.top[0])), 0) << where;
}

TEST(Drafts, EverythingARequestMayAskFor) {
  auto opened = open_tokenizer(FATHOM_SOURCE_DIR "/models/mini-v4");
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const auto tokenizer = std::make_shared<const Tokenizer>(std::move(*opened));
  const std::vector<Request> requests = requests_with_everything(*tokenizer);
  std::vector<std::map<std::int32_t, CollectedChoice>> expected;
  for (const std::int32_t depth : {0, 1, 4, -1}) {
    EngineOptions options;
    options.eos_id = 1;
    options.num_drafts = depth < 0 ? 5 : depth;
    options.adaptive_drafts = depth < 0;
    auto engine = Engine::make(options, bench().make_executor(256, 64, options.num_drafts), tokenizer);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    std::vector<std::unique_ptr<Stream>> streams;
    for (const Request& request : requests) {
      auto stream = (*engine)->submit(request);
      ASSERT_TRUE(stream.ok()) << stream.status().message();
      streams.push_back(std::move(*stream));
    }
    for (std::size_t i = 0; i < streams.size(); ++i) {
      const auto choices = read_all(*streams[i], std::chrono::seconds(300));
      if (depth == 0) {
        expected.push_back(choices);
        continue;
      }
      ASSERT_EQ(choices.size(), expected[i].size());
      for (const auto& [index, choice] : choices) {
        const CollectedChoice& other = expected[i].at(index);
        const std::string where =
            "request " + std::to_string(i) + " choice " + std::to_string(index) + " depth " + std::to_string(depth);
        EXPECT_EQ(choice.tokens, other.tokens) << where;
        EXPECT_EQ(choice.text, other.text) << where;
        ASSERT_TRUE(choice.finish && other.finish) << where;
        EXPECT_EQ(choice.finish->reason, other.finish->reason) << where;
        EXPECT_EQ(choice.finish->stop_string, other.finish->stop_string) << where;
        EXPECT_EQ(choice.finish->usage.completion_tokens, other.finish->usage.completion_tokens) << where;
        ASSERT_EQ(choice.details.size(), other.details.size()) << where;
        for (std::size_t t = 0; t < choice.details.size(); ++t) {
          expect_same(choice.details[t].sampled, other.details[t].sampled, where + " token " + std::to_string(t));
        }
        ASSERT_EQ(choice.prompt_logprobs.size(), other.prompt_logprobs.size()) << where;
        for (std::size_t t = 0; t < choice.prompt_logprobs.size(); ++t) {
          expect_same(choice.prompt_logprobs[t], other.prompt_logprobs[t], where + " prompt token");
        }
      }
    }
    EXPECT_TRUE((*engine)->drain(std::chrono::seconds(60)));
    if (depth > 0) {
      EXPECT_GT((*engine)->stats().accepted_tokens, 50) << depth;
    }
  }
}

// NVFP4 trunk, MXFP4 draft experts: the same values as its MXFP4 twin, so the same answers and the same drafts.
TEST(Drafts, Nvfp4TrunkWithMxfp4DraftExperts) {
  const char* shared = std::getenv("FATHOM_SHARED");
  const std::string twin =
      std::string(shared != nullptr ? shared : FATHOM_SOURCE_DIR "/../shared") + "/models/tiny-random-nvfp4";
  if (!open_checkpoint(twin).ok()) GTEST_SKIP() << "../shared is absent: " << twin;
  std::vector<std::vector<TokenId>> answers;
  std::vector<std::int64_t> accepted;
  for (const std::string& path : {std::string(FATHOM_SOURCE_DIR "/tests/data/models/tiny-random"), twin}) {
    for (const std::int32_t depth : {0, 4}) {
      LoadOptions load;
      load.max_logit_rows = 64;
      auto loaded = load_model(path, load);
      ASSERT_TRUE(loaded.ok()) << loaded.status().message();
      EXPECT_EQ(loaded->model->draft_kind(), DraftKind::kMtp);
      ModelExecutorOptions pools;
      pools.max_length_tokens = 1024;
      pools.max_sequences = pools.num_state_slots = 8;
      pools.num_context_blocks = pools.num_window_blocks = 64;
      pools.max_proposals = depth;
      auto executor = ModelExecutor::make(*loaded->model, pools);
      ASSERT_TRUE(executor.ok());
      EngineOptions options;
      options.eos_id = 1;
      options.num_drafts = depth;
      auto engine = Engine::make(options, std::move(*executor), nullptr);
      ASSERT_TRUE(engine.ok());
      std::vector<TokenId> all;
      for (const std::int64_t length : {3, 60, 126}) {
        Request request;
        request.prompt = scripted_prompt(9, length, 0, 380);
        request.sampling.temperature = 0.0f;
        request.ignore_eos = true;
        request.max_tokens = 24;
        auto stream = (*engine)->submit(request);
        ASSERT_TRUE(stream.ok());
        const auto tokens = read_all(**stream, std::chrono::seconds(300)).at(0).tokens;
        all.insert(all.end(), tokens.begin(), tokens.end());
      }
      answers.push_back(all);
      EXPECT_TRUE((*engine)->drain(std::chrono::seconds(120)));
      if (depth > 0) accepted.push_back((*engine)->stats().accepted_tokens);
    }
  }
  for (const auto& one : answers) EXPECT_EQ(one, answers[0]);
  EXPECT_EQ(accepted[0], accepted[1]);
}

}  // namespace
}  // namespace fathom
