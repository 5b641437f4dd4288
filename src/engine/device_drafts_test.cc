// Drafts drawn on a device, all of a step in one go: the same as on the host, on the emulated device.
#include "engine/device_drafts.h"

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/load_model.h"
#include "engine/model_executor.h"
#include "engine/scheduler.h"
#include "engine/scripted_answer.h"

namespace fathom {
namespace {

struct Answers {
  std::vector<std::vector<TokenId>> tokens;
  std::int64_t drafted = 0, accepted = 0, draft_forwards = 0;
};

class DeviceDraftsOf : public ::testing::TestWithParam<const char*> {
 protected:
  LoadedModel load(DeviceChoice device) const {
    LoadOptions options;
    options.device = device;
    options.num_threads = 2;
    options.max_step_tokens = 64;
    options.max_logit_rows = 64;
    auto loaded = load_model(std::string(FATHOM_SOURCE_DIR) + "/" + GetParam(), options);
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    return std::move(*loaded);
  }

  static Answers answer(const LoadedModel& loaded, const std::vector<Request>& requests, std::int32_t depth,
                        bool together) {
    ModelExecutorOptions pools;
    pools.max_length_tokens = 1024;
    pools.max_sequences = 6;
    pools.num_state_slots = 6;
    pools.num_context_blocks = pools.num_window_blocks = 48;
    pools.num_resume_slots = 8;
    pools.max_proposals = depth;
    auto executor = ModelExecutor::make(*loaded.model, pools);
    EXPECT_TRUE(executor.ok()) << executor.status().message();
    const ModelExecutor* watched = executor->get();
    EngineOptions options;
    options.eos_id = 1;
    options.num_drafts = depth;
    options.prefill_chunk_tokens = options.prefill_chunk_shared_tokens = options.prefill_chunk_alone_tokens = 37;
    auto engine = Engine::make(options, std::move(*executor), nullptr);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    Answers answers;
    std::vector<std::unique_ptr<Stream>> streams;
    for (const Request& request : requests) {
      auto stream = (*engine)->submit(request);
      EXPECT_TRUE(stream.ok()) << stream.status().message();
      streams.push_back(std::move(*stream));
      if (!together) answers.tokens.push_back(read_all(*streams.back(), std::chrono::seconds(300)).at(0).tokens);
    }
    for (std::size_t i = 0; together && i < streams.size(); ++i) {
      answers.tokens.push_back(read_all(*streams[i], std::chrono::seconds(300)).at(0).tokens);
    }
    EXPECT_TRUE((*engine)->drain(std::chrono::seconds(60)));
    answers.drafted = (*engine)->stats().drafted_tokens;
    answers.accepted = (*engine)->stats().accepted_tokens;
    answers.draft_forwards = watched->num_draft_forwards();
    return answers;
  }

  // Greedy and drawn, with biases and cuts, around block ends; one with penalties, whose drafts the host draws.
  static std::vector<Request> requests_of(std::int32_t vocab) {
    std::vector<Request> requests;
    for (const std::int64_t length : {1, 30, 121, 126, 200}) {
      Request request;
      request.prompt = scripted_prompt(static_cast<std::uint64_t>(length), length, 0, vocab);
      request.sampling.temperature = length % 2 == 0 ? 0.7f : 0.0f;
      request.sampling.seed = static_cast<std::uint64_t>(length);
      request.ignore_eos = true;
      request.max_tokens = 12;
      requests.push_back(std::move(request));
    }
    requests[1].sampling.top_p = 0.9f;
    requests[3].sampling.top_k = 40;
    requests[3].sampling.logit_bias = {{3, 2.5f}, {5, -100.0f}};
    requests.push_back(requests[2]);
    requests.back().sampling.repetition_penalty = 1.3f;
    return requests;
  }
};

TEST_P(DeviceDraftsOf, AreThoseOfTheHost) {
  const LoadedModel host = load(DeviceChoice::kCpu), device = load(DeviceChoice::kEmulated);
  const std::vector<Request> requests = requests_of(host.model->config().vocab_size);
  const Answers plain = answer(host, requests, 0, false);
  for (const std::int32_t depth : {1, 4}) {
    const Answers expected = answer(host, requests, depth, false);
    const Answers alone = answer(device, requests, depth, false);
    EXPECT_EQ(alone.tokens, plain.tokens) << depth;
    EXPECT_EQ(alone.drafted, expected.drafted) << depth;
    EXPECT_EQ(alone.accepted, expected.accepted) << depth;
    EXPECT_EQ(alone.draft_forwards, expected.draft_forwards) << depth;
    EXPECT_GT(alone.drafted, 20);
    const Answers together = answer(device, requests, depth, true);
    EXPECT_EQ(together.tokens, plain.tokens) << depth;
    EXPECT_GT(together.drafted, 20);
  }
}

// Two sequences, one token a step, drafts asked for except in a pause, for which the drafter only keeps what it needs.
std::vector<std::vector<TokenId>> proposals_around_a_pause(const LoadedModel& loaded) {
  ModelExecutorOptions pools;
  pools.max_length_tokens = 512;
  pools.max_sequences = pools.num_state_slots = 2;
  pools.num_context_blocks = pools.num_window_blocks = 16;
  pools.num_resume_slots = 4;
  pools.max_proposals = 3;
  auto executor = ModelExecutor::make(*loaded.model, pools);
  EXPECT_TRUE(executor.ok()) << executor.status().message();
  Scheduler scheduler({}, (*executor)->limits());
  for (const std::int64_t length : {24, 120}) {  // the second one's pause lies around a block's end
    SequenceSpec sequence;
    sequence.id = SequenceId(length);
    sequence.prompt = scripted_prompt(static_cast<std::uint64_t>(length), length, 0, loaded.model->config().vocab_size);
    scheduler.add(sequence);
  }
  SampleSpec greedy;
  greedy.temperature = 0.0f;
  std::vector<std::vector<TokenId>> proposals;
  for (int n = 0; n < 28; ++n) {
    StepPlan& plan = scheduler.plan();
    plan.drafter_feed = n < 5 || n >= 18 ? DrafterFeed::kRows : DrafterFeed::kStreams;
    for (SequenceStep& step : plan.sequences) {
      if (step.num_logits == 0) continue;
      step.num_proposals = plan.drafter_feed == DrafterFeed::kRows ? 3 : 0;
      plan.samples.push_back(greedy);
    }
    EXPECT_TRUE((*executor)->launch(plan).ok());
    const auto result = (*executor)->wait();
    EXPECT_TRUE(result.ok());
    std::size_t next = 0;
    for (const SequenceStep& step : plan.sequences) {
      std::vector<TokenId> ids;
      if (step.num_logits > 0) {
        ids.push_back(result->sequences[next].tokens[0].token);
        proposals.push_back(result->sequences[next++].proposals);
      }
      (*executor)->commit(step.id, scheduler.commit(step, ids));
    }
  }
  return proposals;
}

TEST_P(DeviceDraftsOf, AreThoseOfTheHostBehindAPause) {
  const auto expected = proposals_around_a_pause(load(DeviceChoice::kCpu));
  EXPECT_EQ(proposals_around_a_pause(load(DeviceChoice::kEmulated)), expected);
  EXPECT_GT(expected.size(), 40u);
  EXPECT_EQ(expected.back().size(), 3u);
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceDraftsOf, ::testing::Values("models/mini-v4", "tests/data/models/tiny-dspark"),
                         [](const auto& one) { return std::string(one.param).ends_with("v4") ? "mtp" : "dspark"; });

}  // namespace
}  // namespace fathom
