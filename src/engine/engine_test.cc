#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "engine/scripted_answer.h"
#include "engine/scripted_executor.h"

namespace fathom {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Bench {
  ScriptedExecutor* executor = nullptr;
  std::unique_ptr<Engine> engine;
};

Bench make_bench(ScriptedOptions scripted = {}, EngineOptions options = {},
                 std::shared_ptr<const Tokenizer> tokenizer = nullptr) {
  auto executor = std::make_unique<ScriptedExecutor>(scripted);
  ScriptedExecutor* raw = executor.get();
  if (tokenizer == nullptr) options.eos_id = scripted.eos_id;
  auto engine = Engine::make(options, std::move(executor), std::move(tokenizer));
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return {raw, std::move(*engine)};
}

Request make_request(std::vector<TokenId> prompt, std::int64_t max_tokens, std::uint64_t seed = 7) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.seed = seed;
  return request;
}

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

}  // namespace
}  // namespace fathom
