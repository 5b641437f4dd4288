// For tests: an engine over the scripted executor, requests and whole answers.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/scripted_answer.h"
#include "engine/scripted_executor.h"

namespace fathom {

struct Bench {
  ScriptedExecutor* executor = nullptr;
  std::unique_ptr<Engine> engine;
};

inline Bench make_bench(ScriptedOptions scripted = {}, EngineOptions options = {},
                        std::shared_ptr<const Tokenizer> tokenizer = nullptr) {
  auto executor = std::make_unique<ScriptedExecutor>(scripted);
  ScriptedExecutor* raw = executor.get();
  if (tokenizer == nullptr) options.eos_id = scripted.eos_id;
  auto engine = Engine::make(options, std::move(executor), std::move(tokenizer));
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return {raw, std::move(*engine)};
}

inline Request make_request(std::vector<TokenId> prompt, std::int64_t max_tokens, std::uint64_t seed = 7) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.seed = seed;
  return request;
}

inline std::map<std::int32_t, CollectedChoice> run(Engine& engine, Request request) {
  auto stream = engine.submit(std::move(request));
  EXPECT_TRUE(stream.ok()) << stream.status().message();
  return stream.ok() ? read_all(**stream) : std::map<std::int32_t, CollectedChoice>{};
}

}  // namespace fathom
