// The same requests give the same tokens, whatever happens around them: alone, together, in any order, with others
// cancelled, with the prefix cache cold, warm and too small, at any chunk size, under memory pressure, with drafts.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "engine/engine.h"
#include "engine/scripted_answer.h"
#include "engine/scripted_executor.h"

namespace fathom {
namespace {

struct Case {
  Request request;
  std::vector<TokenId> expected;
};

ScriptedOptions scripted_options() {
  ScriptedOptions scripted;
  scripted.limits.vocab_size = 300;
  scripted.limits.max_length_tokens = 4096;
  scripted.eos_share = 0.02;
  return scripted;
}

// Greedy and sampled; prompts of 1 to 900 tokens, some with a common beginning, some around block ends.
std::vector<Case> make_cases(int count, const ScriptedOptions& scripted, std::int64_t longest_answer = 60) {
  std::mt19937_64 random(11);
  std::vector<Case> cases;
  for (int i = 0; i < count; ++i) {
    Case made;
    const auto seed = static_cast<std::uint64_t>(i);
    switch (i % 4) {
      case 0: made.request.prompt = scripted_prompt(seed, 1 + static_cast<std::int64_t>(random() % 900), 0, 300); break;
      case 1:
        made.request.prompt = scripted_prompt(seed, 500 + static_cast<std::int64_t>(random() % 300), 384, 300);
        break;
      case 2:
        made.request.prompt = scripted_prompt(
            seed, 128 * (1 + static_cast<std::int64_t>(random() % 4)) - 1 + static_cast<std::int64_t>(random() % 3), 0,
            300);
        break;
      default: made.request.prompt = scripted_prompt(3, 640, 0, 300);  // the same again and again
    }
    made.request.sampling.temperature = i % 3 == 0 ? 0.0f : 1.0f;
    if (i % 5 == 1) made.request.sampling.top_p = 0.8f;
    if (i % 5 == 2) made.request.sampling.repetition_penalty = 1.3f;
    if (i % 5 == 3) made.request.sampling.frequency_penalty = 0.5f;
    made.request.sampling.seed = seed;
    made.request.max_tokens = 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(longest_answer));
    made.request.key = std::string(1, static_cast<char>('a' + i % 3));
    made.expected = scripted_answer(scripted, made.request.prompt, made.request.sampling, made.request.max_tokens);
    cases.push_back(std::move(made));
  }
  return cases;
}

class Determinism : public ::testing::Test {
 protected:
  void start(ScriptedOptions scripted, EngineOptions options) {
    options.eos_id = scripted.eos_id;
    options.max_queued_requests = 1000;
    auto executor = std::make_unique<ScriptedExecutor>(scripted);
    executor_ = executor.get();
    auto engine = Engine::make(options, std::move(executor), nullptr);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(*engine);
  }

  std::unique_ptr<Stream> submit(const Request& request) {
    auto stream = engine_->submit(request);
    EXPECT_TRUE(stream.ok()) << stream.status().message();
    return std::move(*stream);
  }

  void expect_answers(const std::vector<Case>& cases, bool together) {
    std::vector<std::unique_ptr<Stream>> streams;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      streams.push_back(submit(cases[i].request));
      if (!together) check(*streams.back(), cases[i], i);
    }
    if (!together) return;
    for (std::size_t i = 0; i < cases.size(); ++i) check(*streams[i], cases[i], i);
  }

  void check(Stream& stream, const Case& expected, std::size_t index) {
    const auto choices = read_all(stream);
    ASSERT_TRUE(choices.contains(0) && choices.at(0).finish) << "request " << index;
    EXPECT_EQ(choices.at(0).tokens, expected.expected) << "request " << index;
  }

  void expect_clean() {
    EXPECT_TRUE(engine_->drain(std::chrono::seconds(120)));
    EXPECT_EQ(executor_->num_mismatches(), 0);
    const EngineStats stats = engine_->stats();
    EXPECT_EQ(stats.num_running, 0);
    EXPECT_EQ(stats.num_waiting, 0);
    EXPECT_EQ(stats.context_blocks_used, 0);
    EXPECT_EQ(stats.window_blocks_used, 0);
  }

  ScriptedExecutor* executor_ = nullptr;
  std::unique_ptr<Engine> engine_;
};

TEST_F(Determinism, AloneThenWarm) {
  const ScriptedOptions scripted = scripted_options();
  const auto cases = make_cases(40, scripted);
  start(scripted, {});
  expect_answers(cases, false);
  const std::int64_t hits = engine_->stats().prefix_hits;
  expect_answers(cases, false);
  EXPECT_GT(engine_->stats().prefix_hits, hits + 20);
  expect_clean();
}

TEST_F(Determinism, TogetherAtEveryChunkSize) {
  const ScriptedOptions scripted = scripted_options();
  const auto cases = make_cases(40, scripted);
  for (std::int32_t chunk : {16, 17, 64, 128, 200, 512}) {
    EngineOptions options;
    options.prefill_chunk_tokens = options.prefill_chunk_shared_tokens = options.prefill_chunk_alone_tokens = chunk;
    start(scripted, options);
    expect_answers(cases, true);
    expect_clean();
  }
}

TEST_F(Determinism, UnderMemoryPressure) {
  ScriptedOptions scripted = scripted_options();
  scripted.limits.num_context_blocks = 14;
  scripted.limits.num_window_blocks = 14;
  scripted.limits.num_resume_slots = 3;
  scripted.eos_share = 0.002;
  const auto cases = make_cases(40, scripted, 400);
  start(scripted, {});
  expect_answers(cases, true);
  expect_answers(cases, true);
  const EngineStats stats = engine_->stats();
  EXPECT_GT(stats.preemptions, 0);
  EXPECT_GT(stats.evicted_blocks, 0);
  EXPECT_GT(stats.evicted_resume_points, 0);
  expect_clean();
}

TEST_F(Determinism, ClassesThatDiffer) {
  ScriptedOptions scripted = scripted_options();
  scripted.limits.classes_differ = true;
  scripted.limits.num_context_blocks = 14;
  const auto cases = make_cases(40, scripted);
  start(scripted, {});
  expect_answers(cases, true);
  expect_answers(cases, true);
  expect_clean();
}

TEST_F(Determinism, WithDrafts) {
  for (double acceptance : {0.0, 0.6, 1.0}) {
    for (std::int32_t depth : {1, 3, 8}) {
      ScriptedOptions scripted = scripted_options();
      scripted.acceptance = acceptance;
      scripted.limits.num_context_blocks = 20;
      const auto cases = make_cases(32, scripted);
      EngineOptions options;
      options.num_drafts = depth;
      start(scripted, options);
      expect_answers(cases, true);
      expect_answers(cases, true);
      const EngineStats stats = engine_->stats();
      EXPECT_GT(stats.drafted_tokens, 0);
      if (acceptance == 0.0) {
        EXPECT_LT(stats.accepted_tokens, stats.drafted_tokens / 50);
      }
      if (acceptance == 1.0) {
        EXPECT_GT(stats.accepted_tokens, stats.drafted_tokens / 2);
      }
      expect_clean();
    }
  }
}

TEST_F(Determinism, RandomArrivalWithCancelsAndSlowReaders) {
  ScriptedOptions scripted = scripted_options();
  scripted.limits.num_context_blocks = 24;
  const auto cases = make_cases(48, scripted);
  EngineOptions options;
  options.max_pending_deltas = 3;  // most readers are slow
  options.num_drafts = 2;
  start(scripted, options);
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 4; ++reader) {
    readers.emplace_back([this, reader, &cases] {
      std::mt19937_64 random(static_cast<std::uint64_t>(reader));
      for (int i = 0; i < 40; ++i) {
        const std::size_t index = random() % cases.size();
        auto stream = submit(cases[index].request);
        if (random() % 4 == 0) {
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
          if (random() % 2 == 0) stream->cancel();
          continue;  // dropping the stream cancels as well
        }
        std::map<std::int32_t, CollectedChoice> choices;
        while (!stream->finished()) {
          if (random() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
          collect(stream->wait(std::chrono::milliseconds(100)), choices);
        }
        EXPECT_EQ(choices.at(0).tokens, cases[index].expected) << "request " << index;
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
  expect_clean();
}

TEST_F(Determinism, TheCheckModeAgrees) {
  ScriptedOptions scripted = scripted_options();
  const auto cases = make_cases(24, scripted);
  EngineOptions options;
  options.check_prefix_cache = true;
  start(scripted, options);
  expect_answers(cases, false);
  expect_answers(cases, true);
  expect_clean();
  const EngineStats stats = engine_->stats();
  EXPECT_GT(stats.prefix_checks, 10);
  EXPECT_EQ(stats.prefix_checks_failed, 0);
}

}  // namespace
}  // namespace fathom
