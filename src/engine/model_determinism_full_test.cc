// The mini model through the engine: 40 prompts, and warm logits against cold ones, bit by bit.
#include "engine/model_determinism.h"

namespace fathom {
namespace {

ModelBench& bench() {
  static ModelBench instance;
  return instance;
}

const std::vector<ModelCase>& cases() {
  static const std::vector<ModelCase> made = bench().make_cases(40, 40);
  return made;
}

TEST(ModelDeterminism, AloneColdAndWarm) {
  ModelBench::Run run;
  run.together = false;
  run.chunk_tokens = 512;
  run.times = 2;
  const EngineStats stats = bench().expect_answers(cases(), run);
  EXPECT_GT(stats.prefix_hits, 40);
}

TEST(ModelDeterminism, TogetherAtEveryChunkSize) {
  for (std::int32_t chunk : {16, 61, 128, 512}) {
    ModelBench::Run run;
    run.chunk_tokens = chunk;
    run.prefix_cache = chunk != 61;
    bench().expect_answers(cases(), run);
  }
}

TEST(ModelDeterminism, RandomArrivalWithCancelsUnderEviction) {
  ModelBench::Run run;
  run.cancels = true;
  run.num_context_blocks = 24;
  run.num_resume_slots = 4;
  run.times = 2;
  const EngineStats stats = bench().expect_answers(cases(), run);
  EXPECT_GT(stats.evicted_blocks, 0);
  EXPECT_GT(stats.prefix_hits, 0);
}

TEST(ModelDeterminism, WithDrafts) {
  for (std::int32_t depth : {1, 4}) {
    ModelBench::Run run;
    run.num_drafts = depth;
    run.cancels = depth == 4;
    run.num_context_blocks = depth == 4 ? 24 : 256;
    const EngineStats stats = bench().expect_answers(cases(), run);
    EXPECT_GT(stats.drafted_tokens, 100);
  }
}

// The executor's device side: memory of its own, sampling there, tokens brought back. The same answers.
TEST(ModelDeterminism, OnADeviceOfItsOwn) {
  ModelBench device(DeviceChoice::kEmulated);
  ModelBench::Run run;
  run.chunk_tokens = 61;
  device.expect_answers(cases(), run);
  run.num_drafts = 2;
  device.expect_answers({cases().begin(), cases().begin() + 8}, run);
}

TEST(ModelPrefixCache, WarmLogitsAreColdLogits) {
  const auto vocab = static_cast<TokenId>(bench().model().config().vocab_size);
  const auto executor = bench().make_executor(256, 64);
  SchedulerOptions warm_options;
  SchedulerOptions cold_options;
  cold_options.prefix_cache = false;
  std::vector<std::int64_t> lengths;
  for (std::int64_t middle : {128, 132, 256, 260, 516, 2048, 2052}) {
    for (std::int64_t length : {middle - 1, middle, middle + 1}) lengths.push_back(length);
  }
  std::vector<std::vector<float>> cold;
  {
    LogitsBench lone(*executor, cold_options);
    for (std::int64_t length : lengths) cold.push_back(lone.logits_after(scripted_prompt(1, length, 0, vocab)));
  }
  // A fresh executor: the sequences of the first scheduler are not known to the second.
  const auto second = bench().make_executor(256, 64);
  LogitsBench cached(*second, warm_options);
  std::int64_t num_hits = 0;
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      std::int64_t hit = 0;
      EXPECT_TRUE(same_bits(cached.logits_after(scripted_prompt(1, lengths[i], 0, vocab), &hit), cold[i]))
          << "length " << lengths[i] << ", " << hit << " tokens from the cache";
      num_hits += hit > 0 ? 1 : 0;
      if (round == 1 && lengths[i] > 128) {
        EXPECT_EQ(hit, (lengths[i] - 1) / 128 * 128) << "length " << lengths[i];
      }
    }
  }
  EXPECT_GT(num_hits, 35);
}

// The second of two prompts with one beginning makes the resume point on its way, the third goes on from it: both
// give the bits of a cold run, wherever the common part ends.
TEST(ModelPrefixCache, DifferentPromptsWithOneBeginning) {
  const auto vocab = static_cast<TokenId>(bench().model().config().vocab_size);
  const auto executor = bench().make_executor(256, 64);
  LogitsBench cached(*executor, {});
  const auto lone_executor = bench().make_executor(64, 0);
  SchedulerOptions cold_options;
  cold_options.prefix_cache = false;
  cold_options.prefill_chunk_alone_tokens = 93;
  LogitsBench lone(*lone_executor, cold_options);
  for (std::int64_t middle : {128, 132, 256, 516}) {
    for (std::int64_t shared : {middle - 1, middle, middle + 1}) {
      cached.flush();
      for (std::uint64_t i = 1; i <= 3; ++i) {
        auto prompt = scripted_prompt(i, shared + 128 + static_cast<std::int64_t>(i), shared, vocab);
        prompt[static_cast<std::size_t>(shared)] = static_cast<TokenId>(10 + i);  // different for certain
        std::int64_t hit = 0;
        const auto logits = cached.logits_after(prompt, &hit);
        EXPECT_EQ(hit, i < 3 ? 0 : shared / 128 * 128) << "shared " << shared << ", prompt " << i;
        if (i > 1) {
          EXPECT_TRUE(same_bits(logits, lone.logits_after(prompt))) << "shared " << shared << ", prompt " << i;
        }
      }
    }
  }
}

// Through the engine, with answers: cold tokens are those of a Session.
TEST(ModelPrefixCache, AnswersBehindOneBeginning) {
  const auto vocab = static_cast<TokenId>(bench().model().config().vocab_size);
  SessionOptions session_options;
  session_options.max_context_tokens = 2048;
  auto session = Session::make(bench().model(), session_options);
  ASSERT_TRUE(session.ok()) << session.status().message();
  std::vector<ModelCase> asked;
  for (std::uint64_t i = 1; i <= 4; ++i) {
    ModelCase made;
    made.request.prompt = scripted_prompt(i, 530 + 10 * static_cast<std::int64_t>(i), 389, vocab);
    made.request.sampling.temperature = i % 2 == 0 ? 1.0f : 0.0f;
    made.request.sampling.seed = i;
    made.request.max_tokens = 12;
    made.expected = ModelBench::answer_alone(**session, made.request);
    asked.push_back(std::move(made));
  }
  for (bool together : {false, true}) {
    for (std::int32_t drafts : {0, 3}) {
      ModelBench::Run run;
      run.together = together;
      run.num_drafts = drafts;
      const EngineStats stats = bench().expect_answers(asked, run);
      if (!together) {
        EXPECT_EQ(stats.prefix_hits, 2);
        EXPECT_EQ(stats.cached_tokens, 2 * 384);
      }
    }
  }
}

TEST(ModelPrefixCache, AnotherPromptsPrefix) {
  const auto vocab = static_cast<TokenId>(bench().model().config().vocab_size);
  const auto executor = bench().make_executor(256, 64);
  LogitsBench cached(*executor, {});
  for (std::int64_t shared : {128, 256, 640}) {
    cached.logits_after(scripted_prompt(7, shared + 1, shared, vocab));
    for (std::int64_t more : {1, 3, 4, 5, 100, 128, 131}) {
      const auto prompt = scripted_prompt(static_cast<std::uint64_t>(more), shared + more, shared, vocab);
      std::int64_t hit = 0;
      const auto warm = cached.logits_after(prompt, &hit);
      EXPECT_GE(hit, shared) << more;
      const auto lone_executor = bench().make_executor(64, 0);
      SchedulerOptions cold_options;
      cold_options.prefix_cache = false;
      cold_options.prefill_chunk_alone_tokens = 37;
      LogitsBench lone(*lone_executor, cold_options);
      EXPECT_TRUE(same_bits(warm, lone.logits_after(prompt))) << "shared " << shared << " more " << more;
    }
  }
}

}  // namespace
}  // namespace fathom
