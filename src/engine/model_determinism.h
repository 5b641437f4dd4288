// For tests: the determinism demands on a real model, at a size the caller chooses. The embedded mini model
// answers mixed prompts; what a Session computes alone, token by token, is the truth.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/load_model.h"
#include "engine/model_executor.h"
#include "engine/scheduler.h"
#include "engine/scripted_answer.h"
#include "engine/session.h"

namespace fathom {

struct ModelCase {
  Request request;
  std::vector<TokenId> expected;
};

class ModelBench {
 public:
  explicit ModelBench(DeviceChoice device = DeviceChoice::kCpu,
                      const std::string& path = FATHOM_SOURCE_DIR "/models/mini-v4", std::int64_t max_step_tokens = 640,
                      std::int64_t max_logit_rows = 512) {
    LoadOptions options;
    options.device = device;
    options.max_logit_rows = max_logit_rows;
    options.max_step_tokens = max_step_tokens;
    auto loaded = load_model(path, options);
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    loaded_ = std::move(*loaded);
  }

  Model& model() { return *loaded_.model; }

  std::unique_ptr<ModelExecutor> make_executor(std::int32_t num_context_blocks, std::int32_t num_resume_slots,
                                               std::int32_t max_proposals = 0, std::int32_t num_sequences = 32,
                                               bool capture = true, std::int64_t max_length_tokens = 8192) {
    ModelExecutorOptions options;
    options.capture = capture;
    options.max_length_tokens = max_length_tokens;
    options.max_sequences = num_sequences;
    options.num_context_blocks = num_context_blocks;
    options.num_window_blocks = 4 * num_sequences;
    options.num_state_slots = num_sequences;
    options.num_resume_slots = num_resume_slots;
    options.max_proposals = max_proposals;
    options.weights_fingerprint = loaded_.weights_fingerprint;
    auto executor = ModelExecutor::make(model(), options);
    EXPECT_TRUE(executor.ok()) << executor.status().message();
    return std::move(*executor);
  }

  // Random ids: greedy and sampled, 1 to 432 tokens, a third with a common beginning, some repeated.
  std::vector<ModelCase> make_cases(int count, std::int64_t longest_answer) {
    SessionOptions session_options;
    session_options.max_context_tokens = 4096;
    auto session = Session::make(model(), session_options);
    EXPECT_TRUE(session.ok()) << session.status().message();
    std::mt19937_64 random(5);
    std::vector<ModelCase> cases;
    const auto vocab = static_cast<TokenId>(model().config().vocab_size);
    for (int i = 0; i < count; ++i) {
      ModelCase made;
      Request& request = made.request;
      const auto seed = static_cast<std::uint64_t>(i);
      const auto length = 1 + static_cast<std::int64_t>(random() % 300);
      if (i % 3 == 0) {
        request.prompt = scripted_prompt(seed, length, 0, vocab);
      } else if (i % 3 == 1) {
        request.prompt = scripted_prompt(seed, 132 + length, 128, vocab);
      } else {
        request.prompt = scripted_prompt(static_cast<std::uint64_t>(i % 4), 383 + i % 5, 0, vocab);
      }
      request.sampling.temperature = i % 4 == 3 ? 1.0f : 0.0f;
      request.sampling.seed = seed;
      request.ignore_eos = i % 2 == 0;
      request.max_tokens = 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(longest_answer));
      made.expected = answer_alone(**session, request);
      cases.push_back(std::move(made));
    }
    return cases;
  }

  static std::vector<TokenId> answer_alone(Session& session, const Request& request) {
    SampleSpec spec;
    spec.temperature = request.sampling.temperature;
    spec.seed = *request.sampling.seed;
    std::vector<TokenId> answer;
    session.reset();
    auto drawn = session.prefill(request.prompt, spec);
    while (true) {
      EXPECT_TRUE(drawn.ok()) << drawn.status().message();
      answer.push_back(drawn->token);
      if (std::cmp_equal(answer.size(), request.max_tokens) || (drawn->token == 1 && !request.ignore_eos))
        return answer;
      drawn = session.decode(drawn->token, spec);
    }
  }

  struct Run {
    std::int32_t chunk_tokens = 96;
    bool prefix_cache = true;
    std::int32_t num_context_blocks = 256;
    std::int32_t num_resume_slots = 64;
    std::int32_t times = 1;
    bool together = true;
    bool cancels = false;
    std::int32_t num_drafts = 0;
    bool adaptive = false;
    std::int32_t num_sequences = 32;
    bool capture = true;  // on a GPU
    // An executor around the model's, for example one that proposes otherwise; it is asked for num_drafts.
    std::function<std::unique_ptr<Executor>(std::unique_ptr<ModelExecutor>)> wrap;
  };

  // Returns the engine's statistics at the end.
  EngineStats expect_answers(const std::vector<ModelCase>& cases, const Run& run) {
    EngineOptions options;
    options.eos_id = 1;
    options.max_queued_requests = 1000;
    options.prefix_cache = run.prefix_cache;
    options.num_drafts = run.num_drafts;
    options.adaptive_drafts = run.adaptive;
    options.max_running = run.num_sequences;
    options.prefill_chunk_tokens = options.prefill_chunk_shared_tokens = options.prefill_chunk_alone_tokens =
        run.chunk_tokens;
    auto inner = make_executor(run.num_context_blocks, run.num_resume_slots, run.wrap ? 0 : run.num_drafts,
                               run.num_sequences, run.capture);
    std::unique_ptr<Executor> executor = run.wrap ? run.wrap(std::move(inner)) : std::move(inner);
    auto engine = Engine::make(options, std::move(executor), nullptr);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    std::mt19937_64 random(99);
    for (std::int32_t time = 0; time < run.times; ++time) {
      std::vector<std::size_t> order(cases.size());
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
      if (run.cancels) std::shuffle(order.begin(), order.end(), random);
      std::vector<std::unique_ptr<Stream>> streams(cases.size());
      for (std::size_t i : order) {
        streams[i] = submit(**engine, cases[i].request);
        if (run.cancels && random() % 3 == 0) {
          auto doomed = submit(**engine, cases[random() % cases.size()].request);
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
        }
        if (!run.together) check(*streams[i], cases[i], i);
      }
      if (!run.together) continue;
      for (std::size_t i = 0; i < cases.size(); ++i) check(*streams[i], cases[i], i);
    }
    EXPECT_TRUE((*engine)->drain(std::chrono::seconds(60)));
    return (*engine)->stats();
  }

 private:
  static std::unique_ptr<Stream> submit(Engine& engine, const Request& request) {
    auto stream = engine.submit(request);
    EXPECT_TRUE(stream.ok()) << stream.status().message();
    return std::move(*stream);
  }
  static void check(Stream& stream, const ModelCase& expected, std::size_t index) {
    const auto choices = read_all(stream, std::chrono::seconds(600));
    ASSERT_TRUE(choices.contains(0) && choices.at(0).finish) << "request " << index;
    EXPECT_EQ(choices.at(0).tokens, expected.expected)
        << "request " << index << " of " << expected.request.prompt.size() << " prompt tokens";
  }

  LoadedModel loaded_;
};

// One prompt after another through a scheduler and a model, without an engine between: sees the logits.
class LogitsBench {
 public:
  LogitsBench(ModelExecutor& executor, SchedulerOptions options)
      : executor_(executor), scheduler_(options, executor.limits()) {}

  // The logits [vocab] that follow the prompt; *cached: tokens that the prefix cache gave.
  std::vector<float> logits_after(const std::vector<TokenId>& prompt, std::int64_t* cached = nullptr) {
    SequenceSpec spec;
    spec.id = SequenceId(++next_id_);
    spec.prompt = prompt;
    scheduler_.add(std::move(spec));
    while (true) {
      StepPlan& plan = scheduler_.plan();
      for (const SequenceStep& step : plan.sequences) {
        if (step.num_logits > 0) plan.samples.emplace_back();
      }
      EXPECT_TRUE(executor_.launch(plan).ok());
      const auto result = executor_.wait();
      EXPECT_TRUE(result.ok());
      const SequenceStep step = plan.sequences.at(0);
      std::vector<TokenId> tokens;
      if (step.num_logits > 0) tokens.push_back(0);
      executor_.commit(step.id, scheduler_.commit(step, tokens));
      if (tokens.empty()) continue;
      const std::span<const float> logits = executor_.logits(0);
      std::vector<float> copy(logits.begin(), logits.end());
      if (cached != nullptr) *cached = scheduler_.find(step.id)->cached_tokens;
      scheduler_.finish(step.id);
      return copy;
    }
  }
  void flush() { scheduler_.flush_prefix_cache(); }

 private:
  ModelExecutor& executor_;
  Scheduler scheduler_;
  std::int64_t next_id_ = 0;
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace fathom
