#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "engine/engine_bench.h"

namespace fathom {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kPatience{120};  // for what must come, however busy the machine is

TEST(Engine, AnswersAsTheModelDoes) {
  ScriptedOptions scripted;
  scripted.eos_share = 0.01;
  Bench bench = make_bench(scripted);
  for (std::int64_t length : {1, 2, 3, 4, 5, 127, 128, 129, 255, 256, 257, 1000}) {
    Request request = make_request(scripted_prompt(static_cast<std::uint64_t>(length), length), 200);
    const auto expected = scripted_answer(scripted, request.prompt, request.sampling, 200);
    auto stream = bench.engine->submit(std::move(request));
    ASSERT_TRUE(stream.ok()) << stream.status().message();
    const auto choices = read_all(**stream);
    ASSERT_TRUE(choices.at(0).finish) << length;
    EXPECT_EQ(choices.at(0).tokens, expected) << length;
    const Finish& finish = *choices.at(0).finish;
    EXPECT_EQ(finish.reason, expected.back() == scripted.eos_id ? FinishReason::kEos : FinishReason::kLength);
    EXPECT_EQ(finish.usage.completion_tokens, static_cast<std::int64_t>(expected.size()));
    EXPECT_EQ(finish.usage.prompt_tokens, length);
    EXPECT_GT(finish.times.first_token_us, 0);
    EXPECT_LE(finish.times.submitted_us, finish.times.admitted_us);
    EXPECT_LE(finish.times.first_token_us, finish.times.finished_us);
  }
  EXPECT_EQ(bench.executor->num_mismatches(), 0);
}

TEST(Engine, RefusesWhatIsWrongAndNamesTheField) {
  Bench bench = make_bench();
  const auto refusal = [&](const std::function<void(Request&)>& change) {
    Request request = make_request({5, 6, 7}, 4);
    change(request);
    const auto stream = bench.engine->submit(std::move(request));
    EXPECT_FALSE(stream.ok());
    EXPECT_EQ(stream.status().code(), StatusCode::kInvalidArgument);
    const std::string message = stream.status().message();
    // Whatever was refused, the next plain request is right.
    EXPECT_EQ(run(*bench.engine, make_request({5, 6, 7}, 4)).at(0).tokens,
              scripted_answer({}, {5, 6, 7}, make_request({}, 0).sampling, 4));
    return message.substr(0, message.find(':'));
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(refusal([](Request& r) { r.prompt.clear(); }), "prompt");
  EXPECT_EQ(refusal([](Request& r) { r.prompt = {512}; }), "prompt");
  EXPECT_EQ(refusal([](Request& r) { r.prompt = {-1}; }), "prompt");
  EXPECT_EQ(refusal([](Request& r) { r.prompt.assign(16384, 5); }), "prompt");
  EXPECT_EQ(refusal([](Request& r) { r.sampling.temperature = -1; }), "temperature");
  EXPECT_EQ(refusal([&](Request& r) { r.sampling.temperature = nan; }), "temperature");
  EXPECT_EQ(refusal([](Request& r) { r.sampling.top_p = 0; }), "top_p");
  EXPECT_EQ(refusal([](Request& r) { r.sampling.top_p = 1.5f; }), "top_p");
  EXPECT_EQ(refusal([&](Request& r) { r.sampling.top_p = nan; }), "top_p");
  EXPECT_EQ(refusal([](Request& r) { r.sampling.min_p = 2; }), "min_p");
  EXPECT_EQ(refusal([](Request& r) { r.sampling.top_k = -2; }), "top_k");
  EXPECT_EQ(refusal([](Request& r) { r.sampling.frequency_penalty = 100; }), "frequency_penalty");
  EXPECT_EQ(refusal([](Request& r) { r.sampling.presence_penalty = -3; }), "presence_penalty");
  EXPECT_EQ(refusal([](Request& r) { r.sampling.repetition_penalty = 0; }), "repetition_penalty");
  EXPECT_EQ(refusal([](Request& r) { r.sampling.logit_bias = {{1, 101.0f}}; }), "logit_bias");
  EXPECT_EQ(refusal([](Request& r) { r.num_choices = 0; }), "n");
  EXPECT_EQ(refusal([](Request& r) { r.num_choices = 129; }), "n");
  EXPECT_EQ(refusal([](Request& r) { r.max_tokens = -2; }), "max_tokens");
  EXPECT_EQ(refusal([](Request& r) { r.min_tokens = 5; }), "min_tokens");
  EXPECT_EQ(refusal([](Request& r) { r.num_logprobs = 21; }), "logprobs");
  EXPECT_EQ(refusal([](Request& r) { r.num_prompt_logprobs = 21; }), "prompt_logprobs");
  EXPECT_EQ(refusal([](Request& r) { r.stop_strings = {""}; }), "stop");
}

TEST(Engine, ContextAndCacheBounds) {
  ScriptedOptions scripted;
  scripted.limits.max_length_tokens = 300;
  Bench bench = make_bench(scripted);
  // One token of room: it comes, then the end for length. -1 asks for as many as fit.
  for (std::int64_t length : {299, 298, 200}) {
    const auto choices = run(*bench.engine, make_request(scripted_prompt(1, length), -1));
    EXPECT_EQ(choices.at(0).tokens.size(), static_cast<std::size_t>(300 - length));
    EXPECT_EQ(choices.at(0).finish->reason, FinishReason::kLength);
  }
  scripted.limits.num_context_blocks = 2;  // 256 tokens, fewer than the model takes
  bench = make_bench(scripted);
  EXPECT_EQ(run(*bench.engine, make_request(scripted_prompt(1, 200), -1)).at(0).tokens.size(), 56u);
  const auto refused = bench.engine->submit(make_request(scripted_prompt(1, 256), 1));
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
}

TEST(Engine, ChoicesShareThePromptAndDiffer) {
  ScriptedOptions scripted;
  scripted.eos_share = 0.02;
  Bench bench = make_bench(scripted);
  Request request = make_request(scripted_prompt(1, 400), 30);
  request.num_choices = 5;
  const auto expected_prompt = request.prompt;
  const SamplingOptions sampling = request.sampling;
  const auto choices = run(*bench.engine, std::move(request));
  ASSERT_EQ(choices.size(), 5u);
  for (const auto& [index, choice] : choices) {
    EXPECT_EQ(choice.tokens,
              scripted_answer(scripted, expected_prompt, sampling, 30, static_cast<std::uint32_t>(index)));
    EXPECT_EQ(choice.finish->usage.cached_tokens, index == 0 ? 0 : 384);
    for (const std::int64_t told : choice.cached_tokens) EXPECT_EQ(told, index == 0 ? 0 : 384);
  }
  EXPECT_NE(choices.at(0).tokens, choices.at(1).tokens);
}

TEST(Engine, SeedsRepeatAndAreReported) {
  Bench bench = make_bench();
  Request request = make_request(scripted_prompt(1, 20), 20);
  request.sampling.seed.reset();
  const auto first = run(*bench.engine, request);
  const auto second = run(*bench.engine, request);
  EXPECT_NE(first.at(0).tokens, second.at(0).tokens);
  request.sampling.seed = first.at(0).finish->usage.seed;
  EXPECT_EQ(run(*bench.engine, request).at(0).tokens, first.at(0).tokens);
}

TEST(Engine, Logprobs) {
  Bench bench = make_bench();
  Request request = make_request(scripted_prompt(1, 10), 5);
  request.num_logprobs = 3;
  const auto choices = run(*bench.engine, request);
  std::vector<TokenId> context = request.prompt;
  for (const OutputToken& token : choices.at(0).details) {
    std::vector<float> logits;
    bench.executor->logits_after(context, logits);
    SampleWorkspace workspace;
    SampleSpec spec;
    const std::vector<TokenId> forced = {token.sampled.token};
    spec.forced = forced;
    spec.num_logprobs = 3;
    const SampledToken expected = sample_token(logits, 0, spec, workspace);
    EXPECT_EQ(token.sampled.logprob, expected.logprob);
    ASSERT_EQ(token.sampled.top.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(token.sampled.top[i].token, expected.top[i].token);
    context.push_back(token.sampled.token);
  }
}

TEST(Engine, PromptLogprobs) {
  ScriptedOptions scripted;
  scripted.limits.max_logits_rows = 40;  // a chunk is cut where its rows' logits do not fit
  Bench bench = make_bench(scripted);
  run(*bench.engine, make_request(scripted_prompt(1, 300), 1));  // a prefix hit would leave rows out
  for (std::int64_t max_tokens : {0, 3}) {
    Request request = make_request(scripted_prompt(1, 300), max_tokens);
    request.num_prompt_logprobs = 2;
    const auto choices = run(*bench.engine, request);
    const CollectedChoice& choice = choices.at(0);
    EXPECT_EQ(choice.tokens.size(), static_cast<std::size_t>(max_tokens));
    EXPECT_EQ(choice.finish->reason, FinishReason::kLength);
    EXPECT_EQ(choice.finish->usage.cached_tokens, 0);
    ASSERT_EQ(choice.prompt_logprobs.size(), 299u);
    for (std::size_t i = 0; i < 299; ++i) {
      std::vector<float> logits;
      bench.executor->logits_after(std::span(request.prompt).first(i + 1), logits);
      SampleWorkspace workspace;
      SampleSpec spec;
      const std::vector<TokenId> forced = {request.prompt[i + 1]};
      spec.forced = forced;
      spec.num_logprobs = 2;
      const SampledToken expected = sample_token(logits, 0, spec, workspace);
      EXPECT_EQ(choice.prompt_logprobs[i].token, request.prompt[i + 1]);
      EXPECT_EQ(choice.prompt_logprobs[i].logprob, expected.logprob) << i;
      ASSERT_EQ(choice.prompt_logprobs[i].top.size(), 2u);
    }
  }
}

TEST(Engine, MinTokensAndIgnoreEos) {
  ScriptedOptions scripted;
  scripted.eos_share = 0.5;
  Bench bench = make_bench(scripted);
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    Request request = make_request(scripted_prompt(seed, 10), 40);
    request.sampling.temperature = 0;
    request.min_tokens = 12;
    const auto choices = run(*bench.engine, request);
    EXPECT_GT(choices.at(0).tokens.size(), 12u);
    for (std::size_t i = 0; i < 12; ++i) EXPECT_NE(choices.at(0).tokens[i], scripted.eos_id);
    request.ignore_eos = true;
    EXPECT_EQ(run(*bench.engine, request).at(0).tokens.size(), 40u);
  }
}

// Allows even ids only, and EOS after `length` of them.
class EvenIds final : public TokenConstraint {
 public:
  EvenIds(int length, int& most_rolled_back) : length_(length), most_rolled_back_(most_rolled_back) {}
  bool next_mask(std::span<std::uint32_t> mask) override {
    for (std::uint32_t& word : mask) word = num_ < length_ ? 0x55555555 : 0;
    if (num_ >= length_) mask[0] = 2;  // EOS is id 1
    if (num_ < length_) mask[0] &= ~3u;
    return true;
  }
  Status accept(TokenId token) override {
    if (token % 2 != 0) return invalid_argument("an odd id");
    ++num_;
    return {};
  }
  void rollback(std::int32_t num_tokens) override {
    num_ -= num_tokens;
    most_rolled_back_ = std::max(most_rolled_back_, num_tokens);
  }

 private:
  int num_ = 0;
  int length_;
  int& most_rolled_back_;
};

TEST(Engine, ConstraintsHoldAlsoUnderDrafts) {
  std::vector<TokenId> undrafted;
  for (std::int32_t drafts : {0, 4}) {
    ScriptedOptions scripted;
    scripted.acceptance = 1.0;
    scripted.next_token = [](std::span<const TokenId> context) -> std::optional<TokenId> {
      return context.size() % 5 == 0 ? 4 : std::optional<TokenId>();
    };
    EngineOptions options;
    options.num_drafts = drafts;
    Bench bench = make_bench(scripted, options);
    int rolled_back = 0;
    Request request = make_request(scripted_prompt(1, 10), 100);
    request.make_constraint = [&] { return std::make_unique<EvenIds>(30, rolled_back); };
    const auto choices = run(*bench.engine, request);
    EXPECT_EQ(choices.at(0).finish->reason, FinishReason::kEos);
    ASSERT_EQ(choices.at(0).tokens.size(), 31u);
    for (std::size_t i = 0; i < 30; ++i) EXPECT_EQ(choices.at(0).tokens[i] % 2, 0);
    if (drafts == 0) {
      undrafted = choices.at(0).tokens;
    } else {
      EXPECT_EQ(choices.at(0).tokens, undrafted);
      EXPECT_GT(rolled_back, 0);
    }
  }
}

class Shut final : public TokenConstraint {
 public:
  bool next_mask(std::span<std::uint32_t> mask) override {
    std::fill(mask.begin(), mask.end(), 0u);
    return true;
  }
  Status accept(TokenId) override { return {}; }
  void rollback(std::int32_t) override {}
};

TEST(Engine, AConstraintThatAllowsNothingFailsClosed) {
  Bench bench = make_bench();
  Request request = make_request({5, 6}, 10);
  request.make_constraint = [] { return std::make_unique<Shut>(); };
  const auto choices = run(*bench.engine, request);
  EXPECT_EQ(choices.at(0).finish->reason, FinishReason::kError);
  EXPECT_TRUE(choices.at(0).tokens.empty());
  EXPECT_EQ(run(*bench.engine, make_request({5, 6}, 10)).at(0).tokens.size(), 10u);
  EXPECT_TRUE(bench.engine->health().ok);
}

TEST(Engine, AReasoningPartIsFreeOfTheConstraint) {
  ScriptedOptions scripted;
  scripted.next_token = [](std::span<const TokenId> context) -> std::optional<TokenId> {
    return context.size() == 20 ? 9 : std::optional<TokenId>(context.size() < 20 ? 33 : 35);
  };
  Bench bench = make_bench(scripted);
  Request request = make_request(scripted_prompt(1, 10), 100);
  request.reasoning_end = 9;
  int rolled_back = 0;
  request.make_constraint = [&] { return std::make_unique<EvenIds>(5, rolled_back); };
  const auto choices = run(*bench.engine, request);
  const CollectedChoice& choice = choices.at(0);
  ASSERT_EQ(choice.tokens.size(), 17u);  // ten odd, the end of reasoning, five even, EOS
  EXPECT_EQ(choice.tokens[9], 33);
  EXPECT_EQ(choice.tokens[10], 9);
  EXPECT_EQ(choice.tokens[11] % 2, 0);
  EXPECT_TRUE(choice.details[10].in_reasoning);
  EXPECT_FALSE(choice.details[11].in_reasoning);
  EXPECT_EQ(choice.finish->usage.reasoning_tokens, 11);
}

TEST(Engine, CancelLeavesBeforeTheNextStep) {
  ScriptedOptions scripted;
  scripted.wait_for_real = true;
  scripted.step_us = 2000;
  scripted.row_us = 0;
  EngineOptions options;
  options.prefill_chunk_alone_tokens = 64;
  Bench bench = make_bench(scripted, options);
  // 125 steps of prefill, and more of decoding than any delay of this thread takes.
  auto stream = bench.engine->submit(make_request(scripted_prompt(1, 8000), 8000));
  ASSERT_TRUE(stream.ok());
  while (bench.engine->stats().num_steps < 3) std::this_thread::sleep_for(milliseconds(1));
  (*stream)->cancel();
  const std::int64_t at_cancel = bench.executor->num_steps();
  const auto choices = read_all(**stream);
  EXPECT_EQ(choices.at(0).finish->reason, FinishReason::kCancelled);
  EXPECT_LE(bench.executor->num_steps(), at_cancel + 1);
  EXPECT_TRUE(bench.engine->drain(kPatience));
  EXPECT_EQ(bench.engine->stats().choices_finished[static_cast<std::size_t>(FinishReason::kCancelled)], 1);
}

TEST(Engine, TimeOuts) {
  VirtualClock clock;
  ScriptedOptions scripted;
  EngineOptions options;
  options.clock = scripted.clock = &clock;  // 1.05 ms a token
  Bench bench = make_bench(scripted, options);
  Request request = make_request(scripted_prompt(1, 10), 10000);
  request.timeout_us = 500'000;
  const auto choices = run(*bench.engine, std::move(request));
  EXPECT_EQ(choices.at(0).finish->reason, FinishReason::kTimeout);
  EXPECT_GT(choices.at(0).tokens.size(), 470u);
  EXPECT_LT(choices.at(0).tokens.size(), 480u);
}

TEST(Engine, FaultsEndAllStreamsAndHealth) {
  for (bool at_launch : {true, false}) {
    ScriptedOptions scripted;
    (at_launch ? scripted.launch_fault_at_step : scripted.wait_fault_at_step) = 5;
    Bench bench = make_bench(scripted);
    auto first = bench.engine->submit(make_request(scripted_prompt(1, 10), 1000));
    auto second = bench.engine->submit(make_request(scripted_prompt(2, 10), 1000));
    for (auto* stream : {&first, &second}) {
      if (!stream->ok()) continue;  // the fault was faster
      const auto choices = read_all(***stream);
      EXPECT_EQ(choices.at(0).finish->reason, FinishReason::kError);
      EXPECT_EQ(choices.at(0).finish->error.code(), StatusCode::kUnavailable);
    }
    const EngineHealth health = bench.engine->health();
    EXPECT_FALSE(health.ok);
    EXPECT_THAT(health.reason, ::testing::HasSubstr("scripted fault"));
    EXPECT_EQ(bench.engine->submit(make_request({5}, 1)).status().code(), StatusCode::kUnavailable);
  }
}

TEST(Engine, AStepThatHangsFailsHealth) {
  ScriptedOptions scripted;
  scripted.hang_at_step = 3;
  EngineOptions options;
  options.step_timeout_us = 200'000;
  Bench bench = make_bench(scripted, options);
  auto stream = bench.engine->submit(make_request(scripted_prompt(1, 10), 20));
  ASSERT_TRUE(stream.ok());
  // Where the machine holds the engine's thread up, another step takes too long as well, for a while.
  const auto health_comes_to = [&](auto condition) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    EngineHealth health = bench.engine->health();
    while (!condition(health) && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(milliseconds(1));
      health = bench.engine->health();
    }
    return health;
  };
  const auto of_third = [](const EngineHealth& health) {
    return !health.ok && health.reason.starts_with("step 3 has run for");
  };
  const EngineHealth health = health_comes_to(of_third);
  EXPECT_FALSE(health.ok);
  EXPECT_THAT(health.reason, ::testing::HasSubstr("step 3 has run for"));
  bench.executor->release_hang();
  EXPECT_EQ(read_all(**stream).at(0).tokens.size(), 20u);
  EXPECT_TRUE(health_comes_to([](const EngineHealth& now) { return now.ok; }).ok);
}

TEST(Engine, DrainFinishesWhatIsThereAndTakesNoMore) {
  EngineOptions options;
  options.max_pending_deltas = 1000;  // nobody reads until it has drained
  std::atomic<bool> may_end{false};
  options.on_step = [&](const StepTrace& trace) {
    while (trace.step == 100 && !may_end) std::this_thread::yield();
  };
  Bench bench = make_bench({}, options);
  auto stream = bench.engine->submit(make_request(scripted_prompt(1, 10), 500));
  EXPECT_FALSE(bench.engine->drain(milliseconds(1)));
  EXPECT_EQ(bench.engine->submit(make_request({5}, 1)).status().code(), StatusCode::kUnavailable);
  may_end = true;
  EXPECT_TRUE(bench.engine->drain(kPatience));
  EXPECT_EQ(read_all(**stream).at(0).tokens.size(), 500u);
}

TEST(Engine, ShutdownEndsStreams) {
  ScriptedOptions scripted;
  scripted.wait_for_real = true;
  Bench bench = make_bench(scripted);
  auto stream = bench.engine->submit(make_request(scripted_prompt(1, 10), 10000));
  ASSERT_TRUE(stream.ok());
  bench.engine.reset();
  EXPECT_EQ(read_all(**stream).at(0).finish->reason, FinishReason::kShutdown);
}

TEST(Engine, AThousandRequestsOverABoundedQueue) {
  ScriptedOptions scripted;
  scripted.limits.num_context_blocks = 40;
  EngineOptions options;
  options.max_queued_requests = 20;
  options.max_running = 8;
  Bench bench = make_bench(scripted, options);
  std::atomic<int> accepted{0}, refused{0};
  std::vector<std::thread> clients;
  for (int client = 0; client < 8; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < 125; ++i) {
        const auto seed = static_cast<std::uint64_t>(client * 1000 + i);
        Request request = make_request(scripted_prompt(seed, 1 + i % 60), 8, seed);
        const auto prompt = request.prompt;
        const SamplingOptions sampling = request.sampling;
        auto stream = bench.engine->submit(std::move(request));
        if (!stream.ok()) {
          EXPECT_EQ(stream.status().code(), StatusCode::kResourceExhausted);
          ++refused;
          std::this_thread::sleep_for(std::chrono::microseconds(50));
          continue;
        }
        ++accepted;
        EXPECT_EQ(read_all(**stream).at(0).tokens, scripted_answer(scripted, prompt, sampling, 8));
      }
    });
  }
  for (std::thread& client : clients) client.join();
  // All at once, unread: the bound shows.
  std::vector<std::unique_ptr<Stream>> held;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    auto stream = bench.engine->submit(make_request(scripted_prompt(i, 200), 8, i));
    if (stream.ok()) {
      held.push_back(std::move(*stream));
    } else {
      EXPECT_EQ(stream.status().code(), StatusCode::kResourceExhausted);
      ++refused;
    }
  }
  EXPECT_GT(refused.load(), 0);
  EXPECT_GT(accepted.load(), 100);
  for (auto& stream : held) EXPECT_EQ(read_all(*stream).at(0).tokens.size(), 8u);
  EXPECT_TRUE(bench.engine->drain(kPatience));
  EXPECT_EQ(bench.executor->num_mismatches(), 0);
}

TEST(Engine, ASlowReaderIsPausedNotBuffered) {
  EngineOptions options;
  options.max_pending_deltas = 4;
  Bench bench = make_bench({}, options);
  auto slow = bench.engine->submit(make_request(scripted_prompt(1, 10), 200));
  // Another stream is not held up.
  EXPECT_EQ(run(*bench.engine, make_request(scripted_prompt(2, 10), 300)).at(0).tokens.size(), 300u);
  EXPECT_EQ(bench.engine->stats().num_paused, 1);
  std::map<std::int32_t, CollectedChoice> choices;
  const auto pending = (*slow)->take();
  EXPECT_LE(pending.size(), 4u);
  collect(std::vector<Delta>(pending), choices);
  while (!(*slow)->finished()) collect((*slow)->wait(milliseconds(100)), choices);
  EXPECT_EQ(choices.at(0).tokens, scripted_answer({}, scripted_prompt(1, 10), make_request({}, 0).sampling, 200));
}

TEST(Engine, NotifiesAndForgetsTheCallback) {
  Bench bench = make_bench();
  std::atomic<int> calls{0};
  Request request = make_request(scripted_prompt(1, 10), 20);
  request.on_ready = [&] { ++calls; };
  auto stream = bench.engine->submit(std::move(request));
  const auto choices = read_all(**stream);
  stream->reset();  // the last call may still be under way before this
  EXPECT_GT(calls.load(), 0);
  EXPECT_LE(calls.load(), choices.at(0).num_deltas);
  Request dropped = make_request(scripted_prompt(1, 10), 10000);
  dropped.on_ready = [&] { ++calls; };
  bench.engine->submit(std::move(dropped)).value().reset();
  const int after = calls.load();
  EXPECT_TRUE(bench.engine->drain(kPatience));
  EXPECT_EQ(calls.load(), after);
}

// Whoever has read an answer's end finds it in the numbers, though the step that ended it is not over yet.
TEST(Engine, StatisticsTellOfAnAnswerOnceItsEndWasRead) {
  std::atomic<bool> looked{false};
  std::int32_t num_committed = 0;
  EngineOptions options;
  options.on_step = [&](const StepTrace& trace) {
    num_committed += trace.num_committed;
    while (num_committed == 4 && !looked) std::this_thread::yield();
  };
  Bench bench = make_bench({}, options);
  run(*bench.engine, make_request({5, 6, 7}, 4));
  const EngineStats stats = bench.engine->stats();
  looked = true;
  EXPECT_EQ(stats.generation_tokens, 4);
  EXPECT_EQ(stats.num_running, 0);
  EXPECT_EQ(stats.context_blocks_used, 0);
  EXPECT_EQ(stats.choices_finished[static_cast<std::size_t>(FinishReason::kLength)], 1);
}

TEST(Engine, EventsTellTheStory) {
  Bench bench = make_bench();
  run(*bench.engine, make_request(scripted_prompt(1, 300), 3));
  EXPECT_TRUE(bench.engine->drain(kPatience));
  bench.engine->shutdown();
  std::vector<EngineEvent> events;
  std::int64_t next = 0;
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < end) {
    for (const EngineEvent& event : bench.engine->events(&next)) events.push_back(event);
    if (!events.empty() && events.back().kind == EventKind::kFinish) break;
    std::this_thread::sleep_for(milliseconds(2));
  }
  std::vector<EventKind> kinds;
  for (const EngineEvent& event : events) kinds.push_back(event.kind);
  using enum EventKind;
  EXPECT_EQ(kinds, (std::vector<EventKind>{kSubmit, kAdmit, kPlan, kCommit, kPlan, kCommit, kPlan, kCommit, kPlan,
                                           kCommit, kFinish}));
  EXPECT_EQ(events[2].num_tokens, 256);  // up to the resume point
  EXPECT_EQ(events[4].num_tokens, 44);
  EXPECT_EQ(events.back().num_tokens, 3);
}

}  // namespace
}  // namespace fathom
