// Drafting with the MTP block through the engine: the same tokens as without, fewer steps, nothing moved at rollback.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>

#include "backend/cpu/cpu_backend.h"
#include "checkpoint/catalog.h"
#include "engine/draft_streams.h"
#include "engine/engine.h"
#include "engine/load_model.h"
#include "engine/model_executor.h"
#include "engine/scheduler.h"
#include "engine/scripted_answer.h"

namespace fathom {
namespace {

// Counts what is moved on the device.
class CountingBackend final : public Backend {
 public:
  explicit CountingBackend(Backend& inner) : inner_(inner) {}
  const DeviceInfo& device() const override { return inner_.device(); }
  DType activation_dtype() const override { return inner_.activation_dtype(); }
  bool is_host_memory() const override { return inner_.is_host_memory(); }
  Result<DeviceMemory> allocate(std::int64_t num_bytes, std::string_view purpose) override {
    ++num_allocations;
    return inner_.allocate(num_bytes, purpose);
  }
  Status upload(std::byte* device_data, const std::byte* host, std::int64_t num_bytes) override {
    moved_bytes += num_bytes;
    return inner_.upload(device_data, host, num_bytes);
  }
  Status download(std::byte* host, const std::byte* device_data, std::int64_t num_bytes) override {
    moved_bytes += num_bytes;
    return inner_.download(host, device_data, num_bytes);
  }
  Status copy(std::byte* to, const std::byte* from, std::int64_t num_bytes) override {
    moved_bytes += num_bytes;
    return inner_.copy(to, from, num_bytes);
  }
  Status finish() override { return inner_.finish(); }
  Result<View> place_weight(const View& host, bool aligned) override { return inner_.place_weight(host, aligned); }
  Result<const void*> place_experts(std::vector<ExpertWeights>& experts, std::int32_t layer) override {
    return inner_.place_experts(experts, layer);
  }
  ExecutionContext make_context() override { return inner_.make_context(); }

  std::int64_t moved_bytes = 0;
  std::int64_t num_allocations = 0;

 private:
  Backend& inner_;
};

class MtpDrafting : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto checkpoint = open_checkpoint(FATHOM_SOURCE_DIR "/models/mini-v4");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    checkpoint_ = new Checkpoint(std::move(*checkpoint));
    cpu_ = new CpuBackend(2);
    backend_ = new CountingBackend(*cpu_);
    OpRegistry registry;
    register_cpu_variants(registry);
    variants_ = new VariantTable(*VariantTable::choose(registry, BackendKind::kCpu));
    ModelOptions options;
    options.max_logit_rows = 128;
    auto model = Model::make(*checkpoint_, *backend_, *variants_, options);
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_ = model->release();
  }

  static std::unique_ptr<ModelExecutor> make_executor(std::int32_t max_proposals) {
    ModelExecutorOptions options;
    options.max_length_tokens = 2048;
    options.max_sequences = 16;
    options.num_context_blocks = 64;
    options.num_window_blocks = 64;
    options.num_state_slots = 16;
    options.num_resume_slots = 8;
    options.max_proposals = max_proposals;
    auto executor = ModelExecutor::make(*model_, options);
    EXPECT_TRUE(executor.ok()) << executor.status().message();
    return std::move(*executor);
  }

  static std::vector<TokenId> golden_prompt(const std::string& name) {
    auto goldens = open_catalog(FATHOM_SOURCE_DIR "/tests/data/golden/mini-plain/goldens.safetensors");
    EXPECT_TRUE(goldens.ok());
    const TensorInfo* tensor = goldens->find(name + ".ids");
    EXPECT_NE(tensor, nullptr) << name;
    std::vector<TokenId> ids(static_cast<std::size_t>(tensor->shape.num_elements()));
    std::memcpy(ids.data(), goldens->bytes(*tensor).data(), ids.size() * sizeof(TokenId));
    return ids;
  }

  struct Answers {
    std::vector<std::vector<TokenId>> tokens;
    EngineStats stats;
    std::int64_t num_forwards = 0;
    std::int64_t num_draft_forwards = 0;
  };

  static Answers answer(const std::vector<Request>& requests, std::int32_t depth, bool together, int times = 1) {
    EngineOptions options;
    options.eos_id = 1;
    options.num_drafts = depth;
    options.prefill_chunk_tokens = options.prefill_chunk_shared_tokens = options.prefill_chunk_alone_tokens = 61;
    auto executor = make_executor(depth);
    const ModelExecutor* watched = executor.get();
    auto engine = Engine::make(options, std::move(executor), nullptr);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    Answers answers;
    for (int time = 0; time < times; ++time) {
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
    }
    EXPECT_TRUE((*engine)->drain(std::chrono::seconds(60)));
    answers.stats = (*engine)->stats();
    answers.num_forwards = watched->num_forwards();
    answers.num_draft_forwards = watched->num_draft_forwards();
    return answers;
  }

  static Request request_of(std::vector<TokenId> prompt, float temperature, std::int64_t max_tokens) {
    Request request;
    request.prompt = std::move(prompt);
    request.sampling.temperature = temperature;
    request.sampling.seed = 7;
    request.max_tokens = max_tokens;
    return request;
  }

  // Chats and random ids; greedy and at temperature 1, with penalties, around block ends.
  static std::vector<Request> mixed_requests() {
    std::vector<Request> requests;
    for (const char* name : {"chat_mul", "chat_story", "chat_memory"}) {
      requests.push_back(request_of(golden_prompt(name), 0.0f, 40));
      requests.push_back(request_of(golden_prompt(name), 1.0f, 24));
    }
    requests[3].sampling.repetition_penalty = 1.2f;
    requests[5].sampling.frequency_penalty = 0.4f;
    requests[5].sampling.presence_penalty = 0.3f;
    for (const std::int64_t length : {1, 121, 250}) {
      Request request = request_of(scripted_prompt(static_cast<std::uint64_t>(length), length, 0, 4000), 1.0f, 16);
      request.ignore_eos = true;
      requests.push_back(request);
    }
    return requests;
  }

  static inline Checkpoint* checkpoint_ = nullptr;
  static inline CpuBackend* cpu_ = nullptr;
  static inline CountingBackend* backend_ = nullptr;
  static inline VariantTable* variants_ = nullptr;
  static inline Model* model_ = nullptr;
};

TEST_F(MtpDrafting, SameTokensAtEveryDepth) {
  const std::vector<Request> requests = mixed_requests();
  const Answers plain = answer(requests, 0, false);
  for (const std::int32_t depth : {1, 3, 8}) {
    // Twice: the second time from a warm prefix cache.
    const Answers drafted = answer(requests, depth, true, 2);
    for (std::size_t i = 0; i < drafted.tokens.size(); ++i) {
      EXPECT_EQ(drafted.tokens[i], plain.tokens[i % requests.size()]) << "request " << i << " at depth " << depth;
    }
    EXPECT_GT(drafted.stats.accepted_tokens, 0);
    EXPECT_GT(drafted.stats.prefix_hits, 0);
  }
}

// The mini model's own tasks: what its MTP block was trained for.
TEST_F(MtpDrafting, AcceptsOnItsOwnTasksAndSavesSteps) {
  std::vector<Request> requests;
  for (const char* name : {"chat_mul", "chat_cap", "chat_hi", "chat_story", "chat_memory", "chat_mul_think"}) {
    requests.push_back(request_of(golden_prompt(name), 0.0f, 60));
  }
  const Answers plain = answer(requests, 0, false);
  const Answers drafted = answer(requests, 1, false);
  EXPECT_EQ(drafted.tokens, plain.tokens);
  const double acceptance =
      static_cast<double>(drafted.stats.accepted_tokens) / static_cast<double>(drafted.stats.drafted_tokens);
  EXPECT_GE(acceptance, 0.9);
  RecordProperty("acceptance", std::to_string(acceptance));
  std::printf("acceptance %.3f of %lld drafts; trunk forwards %lld, undrafted %lld\n", acceptance,
              static_cast<long long>(drafted.stats.drafted_tokens), static_cast<long long>(drafted.num_forwards),
              static_cast<long long>(plain.num_forwards));
  // One forward verifies a draft and its successor: each accepted draft saves a step.
  EXPECT_EQ(drafted.num_forwards, drafted.stats.num_steps);
  // The last one of an answer may lie behind its end.
  EXPECT_LE(drafted.num_forwards,
            plain.num_forwards - drafted.stats.accepted_tokens + static_cast<std::int64_t>(requests.size()));
  EXPECT_EQ(plain.num_draft_forwards, 0);
}

// One sequence after another through a scheduler and an executor, without an engine between: sees proposals and
// logits, and says what is drafted.
class StepBench {
 public:
  StepBench(ModelExecutor& executor, CountingBackend& backend, const SchedulerOptions& options)
      : executor_(executor), backend_(backend), scheduler_(options, executor.limits()) {}

  enum class Drafts { kNone, kProposed, kWrong };
  struct Trail {
    std::vector<TokenId> tokens;
    std::vector<std::vector<TokenId>> proposals;
    std::vector<std::size_t> num_drawn;  // tokens, once each of them was proposed
    std::int64_t cached = 0;
    std::int64_t num_steps = 0;
    std::int64_t bytes_at_commit = 0;
    std::vector<std::int64_t> draft_rows;  // that the draft block computed, by step that drew a token
  };
  // By the tokens drawn before a step: what the drafter is given of it. Drafts are asked for where that is kRows.
  std::function<DrafterFeed(std::size_t)> feed;

  // `depth` proposals are asked for in every step; what of them is verified, `drafts` says. Wrong ones are made of
  // the right tokens, `truth`.
  Trail run(const std::vector<TokenId>& prompt, std::int64_t num_tokens, std::int32_t depth, Drafts drafts,
            std::span<const TokenId> truth = {}) {
    SequenceSpec sequence;
    sequence.id = SequenceId(++next_id_);
    sequence.prompt = prompt;
    scheduler_.add(sequence);
    SampleSpec spec;
    spec.temperature = 0.0f;
    Trail trail;
    while (std::cmp_less(trail.tokens.size(), num_tokens)) {
      StepPlan& plan = scheduler_.plan();
      SequenceStep& step = plan.sequences.at(0);
      plan.drafter_feed = feed ? feed(trail.tokens.size()) : DrafterFeed::kRows;
      const std::int64_t rows_before = executor_.num_draft_rows();
      if (step.num_logits > 0) {
        step.num_proposals = plan.drafter_feed == DrafterFeed::kRows ? depth : 0;
        plan.samples.push_back(spec);
      }
      EXPECT_TRUE(executor_.launch(plan).ok());
      const auto result = executor_.wait();
      EXPECT_TRUE(result.ok());
      ++trail.num_steps;
      std::vector<TokenId> ids;
      const std::int64_t moved = backend_.moved_bytes;
      if (step.num_logits > 0) {
        const SequenceResult& got = result->sequences.at(0);
        for (std::int32_t i = 0; i <= got.accepted; ++i) ids.push_back(got.tokens[static_cast<std::size_t>(i)].token);
        trail.proposals.push_back(got.proposals);
        trail.draft_rows.push_back(executor_.num_draft_rows() - rows_before);
      }
      executor_.commit(step.id, scheduler_.commit(step, ids));
      trail.bytes_at_commit += backend_.moved_bytes - moved;
      trail.tokens.insert(trail.tokens.end(), ids.begin(), ids.end());
      if (!ids.empty()) trail.num_drawn.push_back(trail.tokens.size());
      trail.cached = scheduler_.find(step.id)->cached_tokens;
      if (ids.empty()) continue;
      std::vector<TokenId> next = trail.proposals.back();
      if (drafts == Drafts::kNone) next.clear();
      if (drafts == Drafts::kWrong) {
        next.clear();
        for (const TokenId id : truth.subspan(trail.tokens.size())) {
          if (std::cmp_less(next.size(), depth)) next.push_back((id + 1) % 4000);
        }
      }
      scheduler_.set_drafts(step.id, next);
    }
    scheduler_.finish(SequenceId(next_id_));
    return trail;
  }

 private:
  ModelExecutor& executor_;
  CountingBackend& backend_;
  Scheduler scheduler_;
  std::int64_t next_id_ = 0;
};

// Each step writes eight rejected rows over the ends of windows, ratio-4 and ratio-128 groups.
TEST_F(MtpDrafting, RejectedDraftsLeaveNothingBehind) {
  for (const std::int64_t length : {5, 118, 250}) {
    const auto prompt = scripted_prompt(static_cast<std::uint64_t>(length), length, 0, 4000);
    const auto executor = make_executor(8);
    StepBench bench(*executor, *backend_, {});
    const auto plain = bench.run(prompt, 14, 0, StepBench::Drafts::kNone);
    const std::int64_t allocations = backend_->num_allocations;
    const auto wrong = bench.run(prompt, 14, 8, StepBench::Drafts::kWrong, plain.tokens);
    EXPECT_EQ(wrong.tokens, plain.tokens) << "prompt of " << length;
    EXPECT_EQ(wrong.num_steps, 14) << "nothing of a wrong draft is accepted, nothing is computed twice";
    EXPECT_EQ(wrong.bytes_at_commit, 0) << "rollback is one assignment";
    EXPECT_EQ(backend_->num_allocations, allocations);
  }
}

// The block's window and lag cross chunk ends and prefix hits: its proposals are the same, bit for bit decided.
TEST_F(MtpDrafting, ProposalsDoNotDependOnChunksOrPrefixHits) {
  std::vector<TokenId> prompt = golden_prompt("chat_story");
  const std::vector<TokenId> story = prompt;
  while (prompt.size() < 300) prompt.insert(prompt.end(), story.begin(), story.end());
  std::vector<StepBench::Trail> trails;
  for (const std::int32_t chunk : {512, 128, 37}) {
    SchedulerOptions options;
    options.prefill_chunk_tokens = options.prefill_chunk_shared_tokens = options.prefill_chunk_alone_tokens = chunk;
    const auto executor = make_executor(4);
    StepBench bench(*executor, *backend_, options);
    trails.push_back(bench.run(prompt, 12, 4, StepBench::Drafts::kProposed));
    EXPECT_EQ(trails.back().cached, 0);
    trails.push_back(bench.run(prompt, 12, 4, StepBench::Drafts::kProposed));
    EXPECT_EQ(trails.back().cached, 256);
  }
  for (std::size_t i = 0; i < trails.size(); ++i) {
    EXPECT_EQ(trails[i].tokens, trails[0].tokens) << i;
    EXPECT_EQ(trails[i].proposals, trails[0].proposals) << i;
    EXPECT_EQ(trails[i].proposals[0].size(), 4u);
  }
}

// However many tokens a step commits, and however many drafts it takes back, it proposes what it does token by token.
TEST_F(MtpDrafting, ProposalsDoNotDependOnWhatAStepCommits) {
  for (const char* name : {"chat_story", "chat_mul"}) {
    const auto executor = make_executor(4);
    StepBench bench(*executor, *backend_, {});
    const auto one_by_one = bench.run(golden_prompt(name), 48, 4, StepBench::Drafts::kNone);
    for (const bool wrong : {false, true}) {
      const auto trail = bench.run(golden_prompt(name), 48, 4,
                                   wrong ? StepBench::Drafts::kWrong : StepBench::Drafts::kProposed, one_by_one.tokens);
      EXPECT_EQ(trail.num_steps == one_by_one.num_steps, wrong);
      for (std::size_t i = 0; i < trail.num_drawn.size(); ++i) {
        const std::size_t drawn = trail.num_drawn[i];
        if (drawn > one_by_one.proposals.size()) break;
        EXPECT_EQ(trail.proposals[i], one_by_one.proposals[drawn - 1]) << name << " behind token " << drawn;
      }
    }
  }
}

// A resume point whose last draft row is another continuation's would propose otherwise: the hit ends where the
// prompts part, and the row there is made of the new token.
TEST_F(MtpDrafting, AHitOnAnotherContinuationProposesAsACold) {
  std::vector<TokenId> shared = scripted_prompt(3, 128, 0, 4000);
  std::vector<TokenId> first = shared, second = shared;
  for (const TokenId id : golden_prompt("chat_mul")) first.push_back(id);
  for (const TokenId id : golden_prompt("chat_story")) second.push_back(id);
  const auto lone = make_executor(4);
  StepBench cold(*lone, *backend_, {});
  const auto expected = cold.run(second, 10, 4, StepBench::Drafts::kProposed);
  const auto executor = make_executor(4);
  StepBench warm(*executor, *backend_, {});
  warm.run(first, 10, 4, StepBench::Drafts::kProposed);
  const auto found = warm.run(second, 10, 4, StepBench::Drafts::kProposed);
  EXPECT_EQ(found.cached, 128);
  EXPECT_EQ(found.tokens, expected.tokens);
  EXPECT_EQ(found.proposals, expected.proposals);
}

// What adaptive depth costs where it does not draft: no row of the block. What it has kept meanwhile makes the drafts
// behind the pause those of a block that never paused.
TEST_F(MtpDrafting, APauseComputesNothingAndIsCaughtUpOn) {
  const auto prompt = golden_prompt("chat_story");
  constexpr std::size_t kTokens = 40;
  constexpr std::int32_t kDepth = 3;
  const auto executor = make_executor(4);
  StepBench bench(*executor, *backend_, {});
  const auto current = bench.run(prompt, kTokens, kDepth, StepBench::Drafts::kNone);
  // The step behind the prompt drafts; the pause begins with the next one.
  for (const std::size_t length : {1, 7, 15}) {
    bench.feed = [&](std::size_t n) { return n >= 1 && n < 1 + length ? DrafterFeed::kStreams : DrafterFeed::kRows; };
    const auto paused = bench.run(prompt, kTokens, kDepth, StepBench::Drafts::kNone);
    EXPECT_EQ(paused.tokens, current.tokens);
    for (std::size_t n = 0; n < kTokens; ++n) {
      const bool pauses = n >= 1 && n < 1 + length;
      EXPECT_EQ(paused.draft_rows[n] == 0, pauses) << "token " << n << " with a pause of " << length;
      if (pauses) continue;
      EXPECT_EQ(paused.proposals[n], current.proposals[n]) << "token " << n << " with a pause of " << length;
    }
    // Two steps' rows were missing where the step before drafts on what will come, and the drafts behind the first.
    EXPECT_EQ(paused.draft_rows[1 + length], static_cast<std::int64_t>(length) + 1 + kDepth - 1) << length;
  }
  // A long pause is left as a hole; of what is kept towards its end the last rows are made.
  bench.feed = [](std::size_t n) {
    return n >= 25 ? DrafterFeed::kRows : n >= 5 ? DrafterFeed::kStreams : DrafterFeed::kNothing;
  };
  const auto rested = bench.run(prompt, kTokens, kDepth, StepBench::Drafts::kNone);
  EXPECT_EQ(rested.tokens, current.tokens);
  for (std::size_t n = 0; n < 25; ++n) EXPECT_EQ(rested.draft_rows[n], 0) << "neither the prompt's: token " << n;
  EXPECT_EQ(rested.draft_rows[25], DraftStreams::kKept + 1 + kDepth - 1);
  EXPECT_EQ(rested.draft_rows[26], 1 + kDepth - 1);
}

// The first rows caught up on stand before the step's own, and the block that their windows begin in may be given back.
TEST_F(MtpDrafting, CatchesUpWhereAWindowBlockIsGone) {
  constexpr std::size_t kPause = 20;
  for (const std::int64_t first : {255, 256, 262, 270, 383}) {
    const auto prompt = scripted_prompt(static_cast<std::uint64_t>(first), first + 1 - std::int64_t{kPause}, 0, 4000);
    const auto executor = make_executor(4);
    StepBench bench(*executor, *backend_, {});
    const auto plain = bench.run(prompt, kPause + 6, 0, StepBench::Drafts::kNone);
    bench.feed = [](std::size_t n) { return n >= kPause ? DrafterFeed::kRows : DrafterFeed::kStreams; };
    const auto trail = bench.run(prompt, kPause + 6, 4, StepBench::Drafts::kNone);
    EXPECT_EQ(trail.tokens, plain.tokens) << "rows from position " << first;
    EXPECT_EQ(trail.proposals[kPause].size(), 4u) << "rows from position " << first;
  }
}

// Behind a pause of which nothing is kept the block sees none of the positions before.
TEST_F(MtpDrafting, WhatIsKeptMakesTheFirstDraftsBehindAPauseGood) {
  constexpr std::size_t kPause = 20, kLooked = 4;
  std::array<int, 2> hits{};
  int num_drafts = 0;
  for (const char* name : {"chat_story", "chat_memory", "chat_mul_think"}) {
    for (const bool keeps : {false, true}) {
      const auto executor = make_executor(4);
      StepBench bench(*executor, *backend_, {});
      bench.feed = [keeps](std::size_t n) {
        return n >= kPause ? DrafterFeed::kRows : keeps ? DrafterFeed::kStreams : DrafterFeed::kNothing;
      };
      const auto trail = bench.run(golden_prompt(name), kPause + kLooked + 1, 1, StepBench::Drafts::kNone);
      for (std::size_t n = kPause; n < kPause + kLooked; ++n) {
        ASSERT_EQ(trail.proposals[n].size(), 1u);
        hits[keeps ? 1 : 0] += trail.proposals[n][0] == trail.tokens[n + 1] ? 1 : 0;
        num_drafts += keeps ? 1 : 0;
      }
    }
  }
  std::printf("the first %d drafts behind pauses of %d tokens: %d right without, %d with what was kept\n", num_drafts,
              static_cast<int>(kPause), hits[0], hits[1]);
  EXPECT_GE(hits[1], hits[0]);
  EXPECT_GE(4 * hits[1], 3 * num_drafts);
}

}  // namespace
}  // namespace fathom
