// Random requests under random limits, with drafts and without: every difference is a bug. More rounds by hand with
// FATHOM_DRAFT_ROUNDS, from FATHOM_DRAFT_SEED on.
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <cstring>

#include "engine/model_determinism.h"
#include "text/tokenizer.h"

namespace fathom {
namespace {

using Random = std::mt19937_64;

std::int64_t between(Random& random, std::int64_t least, std::int64_t most) {
  return least + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most - least + 1));
}
bool one_in(Random& random, std::int64_t n) { return between(random, 1, n) == 1; }
template <typename T>
T one_of(Random& random, std::initializer_list<T> values) {
  return values.begin()[between(random, 0, static_cast<std::int64_t>(values.size()) - 1)];
}

// What may come next depends on every token that came: a constraint that is not rolled back exactly allows others.
class HashedConstraint final : public TokenConstraint {
 public:
  bool next_mask(std::span<std::uint32_t> mask) override {
    const std::uint64_t state = hash();
    if (state % 5 == 0) return false;
    for (std::size_t w = 0; w < mask.size(); ++w) {
      const std::uint64_t mixed = (state + w) * 0x9E3779B97F4A7C15ull;
      mask[w] &= static_cast<std::uint32_t>((mixed >> 32) | mixed);
    }
    if (came_.size() > 4 && state % 3 == 0) mask[0] |= 2;  // the end
    return true;
  }
  Status accept(TokenId token) override {
    came_.push_back(token);
    return {};
  }
  void rollback(std::int32_t num_tokens) override { came_.resize(came_.size() - static_cast<std::size_t>(num_tokens)); }

 private:
  std::uint64_t hash() const {
    std::uint64_t state = 99;
    for (const TokenId token : came_) state = (state ^ static_cast<std::uint64_t>(token)) * 0xBF58476D1CE4E5B9ull;
    return state ^ (state >> 29);
  }
  std::vector<TokenId> came_;
};

struct Bench {
  const char* path;
  DeviceChoice device;
  bool narrow;  // few rows with logits: drafts share them
  bool has_text;
  std::unique_ptr<ModelBench> model;
  std::shared_ptr<const Tokenizer> tokenizer;
};

Bench& bench_of(std::size_t index) {
  static Bench benches[] = {
      {"models/mini-v4", DeviceChoice::kCpu, false, true, {}, {}},
      {"tests/data/models/tiny-random", DeviceChoice::kCpu, false, false, {}, {}},
      {"tests/data/models/tiny-dspark", DeviceChoice::kCpu, false, false, {}, {}},
      {"tests/data/models/tiny-random", DeviceChoice::kCpu, true, false, {}, {}},
      {"tests/data/models/tiny-dspark", DeviceChoice::kCpu, true, false, {}, {}},
      {"tests/data/models/tiny-random", DeviceChoice::kEmulated, false, false, {}, {}},
      {"tests/data/models/tiny-dspark", DeviceChoice::kEmulated, false, false, {}, {}},
  };
  Bench& bench = benches[index % std::size(benches)];
  if (bench.model == nullptr) {
    const std::string path = std::string(FATHOM_SOURCE_DIR "/") + bench.path;
    bench.model = bench.narrow ? std::make_unique<ModelBench>(bench.device, path, 48, 24)
                               : std::make_unique<ModelBench>(bench.device, path);
    if (bench.has_text) bench.tokenizer = std::make_shared<const Tokenizer>(*open_tokenizer(path));
  }
  return bench;
}

std::vector<TokenId> random_prompt(Random& random, TokenId vocab, std::int64_t longest) {
  std::int64_t length = 0;
  switch (between(random, 0, 3)) {
    case 0: length = between(random, 1, 9); break;
    case 1: length = one_of<std::int64_t>(random, {128, 256, 384}) + between(random, -10, 6); break;
    case 2: length = 4 * between(random, 1, 70) + between(random, -1, 1); break;
    default: length = between(random, 1, 300);
  }
  length = std::min(length, longest);
  const std::int64_t shared = one_of<std::int64_t>(random, {0, 0, 4, 127, 128, 200, 256});
  return scripted_prompt(static_cast<std::uint64_t>(between(random, 1, 4)), length, shared, vocab);
}

Request random_request(Random& random, const Bench& bench, std::int64_t max_length, std::uint64_t seed) {
  const TokenId vocab = bench.model->model().config().vocab_size;
  Request request;
  request.prompt = random_prompt(random, vocab, max_length - 1);
  if (bench.has_text && one_in(random, 2)) {
    const std::string text =
        one_of<const char*>(random, {"17*23?", "Tell me a story about a cat.", "Say castle 12 times.", "Spell lemon."});
    const auto task = bench.tokenizer->encode("<｜begin▁of▁sentence｜><｜User｜>" + text + "<｜Assistant｜></think>",
                                              SpecialTokens::kRecognise);
    if (std::cmp_less(task.size(), max_length)) request.prompt = task;
  }
  SamplingOptions& sampling = request.sampling;
  sampling.temperature = one_of<float>(random, {0.0f, 0.0f, 0.7f, 1.0f});
  sampling.seed = seed;
  if (one_in(random, 4)) sampling.top_p = 0.8f;
  if (one_in(random, 5)) sampling.top_k = 20;
  if (one_in(random, 6)) sampling.min_p = 0.05f;
  if (one_in(random, 4)) sampling.repetition_penalty = one_of<float>(random, {0.8f, 1.3f});
  if (one_in(random, 4)) sampling.frequency_penalty = one_of<float>(random, {-1.5f, 0.7f, 2.0f});
  if (one_in(random, 4)) sampling.presence_penalty = one_of<float>(random, {-0.5f, 1.5f});
  if (one_in(random, 4)) {
    for (int i = 0; i < 5; ++i) {
      sampling.logit_bias.emplace_back(static_cast<TokenId>(between(random, 0, vocab - 1)),
                                       one_of<float>(random, {-100.0f, 2.0f, 6.0f}));
    }
  }
  request.num_choices = one_in(random, 4) ? static_cast<std::int32_t>(between(random, 2, 4)) : 1;
  request.max_tokens = one_in(random, 6) && max_length < 500 ? -1 : between(random, 1, 30);
  if (one_in(random, 3)) {
    request.min_tokens =
        between(random, 1, request.max_tokens < 0 ? 12 : std::min<std::int64_t>(12, request.max_tokens));
  }
  if (one_in(random, 3)) {
    for (int i = 0; i < 12; ++i) request.stop_token_ids.push_back(static_cast<TokenId>(between(random, 0, vocab - 1)));
  }
  request.ignore_eos = one_in(random, 2);
  if (bench.has_text && one_in(random, 3)) {
    request.stop_strings = {one_of<const char*>(random, {"a", "e ", "the", "castle"}), "q"};
    request.include_stop_string = one_in(random, 2);
  }
  if (one_in(random, 2)) request.num_logprobs = static_cast<std::int32_t>(between(random, 0, 4));
  if (one_in(random, 8)) request.num_prompt_logprobs = static_cast<std::int32_t>(between(random, 0, 2));
  if (one_in(random, 4)) request.make_constraint = [] { return std::make_unique<HashedConstraint>(); };
  if (one_in(random, 5)) request.reasoning_end = static_cast<TokenId>(between(random, 2, std::min(vocab, 384) - 1));
  if (one_in(random, 5)) request.priority = static_cast<std::int32_t>(between(random, -3, 3));
  if (one_in(random, 6)) request.cache_salt = "other";
  return request;
}

using Choices = std::map<std::int32_t, CollectedChoice>;

// Proposes what comes next for some places, something else or nothing from there on, so that every number of a
// step's drafts is accepted at times.
class MixedExecutor final : public Executor {
 public:
  MixedExecutor(std::unique_ptr<ModelExecutor> inner, std::int32_t most, std::uint64_t seed,
                const std::map<std::pair<std::uint64_t, std::uint32_t>, std::vector<TokenId>>& answers)
      : inner_(std::move(inner)), limits_(inner_->limits()), random_(seed), answers_(answers) {
    limits_.max_proposals = most;
  }
  const ExecutorLimits& limits() const override { return limits_; }
  void commit(SequenceId id, std::int64_t length) override { inner_->commit(id, length); }
  Status launch(const StepPlan& plan) override {
    asked_.clear();
    std::size_t next = 0;
    for (const SequenceStep& step : plan.sequences) {
      if (step.num_logits == 0) continue;
      const SampleSpec& spec = plan.samples[next++];
      asked_.push_back({{spec.seed, spec.choice},
                        static_cast<std::int64_t>(spec.output_ids.size()) - step.num_drafts,
                        step.num_proposals});
    }
    return inner_->launch(plan);
  }
  Result<StepResult> wait() override {
    auto result = inner_->wait();
    for (std::size_t i = 0; result.ok() && i < result->sequences.size(); ++i) {
      SequenceResult& got = result->sequences[i];
      got.proposals.clear();
      const std::vector<TokenId>& answer = answers_.at(asked_[i].who);
      const std::int64_t num = between(random_, 0, asked_[i].num_proposals), right = between(random_, 0, num);
      for (std::int64_t k = 0; k < num; ++k) {
        const std::int64_t place = asked_[i].num_output + got.accepted + 1 + k;
        const TokenId truth = std::cmp_less(place, answer.size()) ? answer[static_cast<std::size_t>(place)] : 3;
        got.proposals.push_back(k < right ? truth : (truth + 1) % limits_.vocab_size);
      }
    }
    return result;
  }

 private:
  struct Asked {
    std::pair<std::uint64_t, std::uint32_t> who;
    std::int64_t num_output;  // before the step
    std::int32_t num_proposals;
  };
  std::unique_ptr<ModelExecutor> inner_;
  ExecutorLimits limits_;
  Random random_;
  const std::map<std::pair<std::uint64_t, std::uint32_t>, std::vector<TokenId>>& answers_;
  std::vector<Asked> asked_;
};

std::string difference(const SampledToken& a, const SampledToken& b) {
  if (a.token != b.token) return "token " + std::to_string(a.token) + " for " + std::to_string(b.token);
  if (std::bit_cast<std::uint32_t>(a.logprob) != std::bit_cast<std::uint32_t>(b.logprob)) return "its logprob";
  if (a.top.size() != b.top.size()) return "the number of top logprobs";
  if (std::memcmp(a.top.data(), b.top.data(), a.top.size() * sizeof(a.top[0])) != 0) return "top logprobs";
  return "";
}

std::string difference(const CollectedChoice& a, const CollectedChoice& b) {
  if (!a.finish || !b.finish) return "no end";
  for (std::size_t t = 0; t < std::min(a.details.size(), b.details.size()); ++t) {
    const std::string found = difference(a.details[t].sampled, b.details[t].sampled);
    if (!found.empty()) return found + " at " + std::to_string(t);
    if (a.details[t].in_reasoning != b.details[t].in_reasoning) return "reasoning at " + std::to_string(t);
  }
  if (a.details.size() != b.details.size()) return "number of tokens";
  if (a.text != b.text) return "text";
  if (a.finish->reason != b.finish->reason) return "reason of the end";
  if (a.finish->stop_string != b.finish->stop_string) return "stop string";
  if (a.finish->stop_token != b.finish->stop_token) return "stop token";
  if (a.finish->usage.completion_tokens != b.finish->usage.completion_tokens) return "number of completion tokens";
  if (a.finish->usage.reasoning_tokens != b.finish->usage.reasoning_tokens) return "number of reasoning tokens";
  if (a.prompt_logprobs.size() != b.prompt_logprobs.size()) return "number of prompt logprobs";
  for (std::size_t t = 0; t < a.prompt_logprobs.size(); ++t) {
    const std::string found = difference(a.prompt_logprobs[t], b.prompt_logprobs[t]);
    if (!found.empty()) return found + " of the prompt at " + std::to_string(t);
  }
  return "";
}

struct Round {
  std::size_t bench = 0;
  std::int32_t num_drafts = 0;
  bool adaptive = false, mixed = false, cancels = false, prefix_cache = true;
  std::int32_t num_sequences = 1, chunk = 96, num_context_blocks = 256, num_resume_slots = 64;
  std::int64_t max_length = 1024;

  static Round random_one(Random& random, std::size_t bench) {
    Round round;
    round.bench = bench;
    round.num_drafts = static_cast<std::int32_t>(between(random, 1, kMaxDraft));
    round.adaptive = one_in(random, 4);
    round.mixed = !round.adaptive && one_in(random, 3);
    round.cancels = one_in(random, 3);
    round.prefix_cache = !one_in(random, 4);
    round.num_sequences = static_cast<std::int32_t>(one_of<std::int64_t>(random, {1, 2, 5, 16, 32, 64}));
    // Rows with logits are kept for all that may run; drafts get the rest.
    if (bench_of(bench).narrow) round.num_sequences = std::min(round.num_sequences, 5);
    round.chunk = static_cast<std::int32_t>(one_of<std::int64_t>(random, {7, 16, 37, 96, 128, 300}));
    round.num_context_blocks = static_cast<std::int32_t>(one_in(random, 2) ? between(random, 5, 14) : 256);
    round.num_resume_slots = static_cast<std::int32_t>(one_of<std::int64_t>(random, {1, 3, 64}));
    round.max_length = one_in(random, 2) ? between(random, 130, 420) : 1024;
    round.max_length = std::min<std::int64_t>(round.max_length, round.num_context_blocks * kBlockTokens);
    return round;
  }
  std::string text() const {
    return std::string("model ") + bench_of(bench).path + " depth " + std::to_string(num_drafts) +
           (adaptive ? " adaptive"
            : mixed  ? " mixed"
                     : "") +
           (cancels ? " cancels" : "") + (prefix_cache ? "" : " no prefix cache") + " sequences " +
           std::to_string(num_sequences) + " chunk " + std::to_string(chunk) + " blocks " +
           std::to_string(num_context_blocks) + " resume slots " + std::to_string(num_resume_slots) + " context " +
           std::to_string(max_length);
  }
};

class DraftsRandom : public ::testing::Test {
 protected:
  std::unique_ptr<Engine> make_engine(const Bench& bench, const Round& round, std::unique_ptr<Executor> executor) {
    EngineOptions options;
    options.eos_id = 1;
    options.max_queued_requests = 1000;
    options.prefix_cache = round.prefix_cache;
    options.num_drafts = std::min(round.num_drafts, executor->limits().max_proposals);
    options.adaptive_drafts = round.adaptive;
    options.max_running = round.num_sequences;
    options.prefill_chunk_tokens = options.prefill_chunk_shared_tokens = options.prefill_chunk_alone_tokens =
        round.chunk;
    auto engine = Engine::make(options, std::move(executor), bench.tokenizer);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return std::move(*engine);
  }

  std::vector<Choices> answers_without(const Bench& bench, const Round& round, const std::vector<Request>& requests) {
    Round plain = round;
    plain.num_drafts = 0;
    plain.adaptive = plain.prefix_cache = false;
    plain.num_sequences = 16;
    plain.chunk = 512;
    auto executor = bench.model->make_executor(256, 4, 0, 16, true, round.max_length);
    const auto engine = make_engine(bench, plain, std::move(executor));
    std::vector<std::unique_ptr<Stream>> streams;
    for (const Request& request : requests) {
      auto stream = engine->submit(request);
      EXPECT_TRUE(stream.ok()) << stream.status().message();
      streams.push_back(std::move(*stream));
    }
    std::vector<Choices> answers;
    for (const auto& stream : streams) answers.push_back(read_all(*stream, std::chrono::seconds(600)));
    return answers;
  }

  // Returns the drafts accepted, rejected.
  std::pair<std::int64_t, std::int64_t> run(const Round& round, Random& random) {
    Bench& bench = bench_of(round.bench);
    std::vector<Request> requests;
    const std::int64_t count = bench.has_text ? between(random, 1, 10) : between(random, 1, 24);
    for (std::int64_t i = 0; i < count; ++i) {
      requests.push_back(random_request(random, bench, round.max_length, random()));
    }
    const std::vector<Choices> expected = answers_without(bench, round, requests);
    std::map<std::pair<std::uint64_t, std::uint32_t>, std::vector<TokenId>> truth;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      for (const auto& [index, choice] : expected[i]) {
        truth[{*requests[i].sampling.seed, static_cast<std::uint32_t>(index)}] = choice.tokens;
      }
    }
    auto inner =
        bench.model->make_executor(round.num_context_blocks, round.num_resume_slots, round.mixed ? 0 : round.num_drafts,
                                   round.num_sequences, true, round.max_length);
    std::unique_ptr<Executor> executor = std::move(inner);
    if (round.mixed) {
      executor = std::make_unique<MixedExecutor>(
          std::unique_ptr<ModelExecutor>(static_cast<ModelExecutor*>(executor.release())), round.num_drafts, random(),
          truth);
    }
    const auto engine = make_engine(bench, round, std::move(executor));
    for (int time = 0; time < 2; ++time) {
      std::vector<std::unique_ptr<Stream>> streams;
      for (const Request& request : requests) {
        auto stream = engine->submit(request);
        EXPECT_TRUE(stream.ok()) << stream.status().message();
        streams.push_back(std::move(*stream));
        if (round.cancels && one_in(random, 2)) {
          auto doomed = engine->submit(requests[random() % requests.size()]);
          if (one_in(random, 2)) std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
        }
      }
      for (std::size_t i = 0; i < streams.size(); ++i) {
        const Choices choices = read_all(*streams[i], std::chrono::seconds(600));
        EXPECT_EQ(choices.size(), expected[i].size());
        for (const auto& [index, choice] : expected[i]) {
          const auto found = choices.find(index);
          const std::string different = found == choices.end() ? "no choice" : difference(found->second, choice);
          EXPECT_EQ(different, "") << "time " << time << " request " << i << " of " << requests[i].prompt.size()
                                   << " tokens, choice " << index;
        }
      }
    }
    EXPECT_TRUE(engine->drain(std::chrono::seconds(60)));
    const EngineStats stats = engine->stats();
    num_preemptions_ += stats.preemptions;
    num_hits_ += stats.prefix_hits;
    return {stats.accepted_tokens, stats.drafted_tokens - stats.accepted_tokens};
  }

  std::int64_t num_preemptions_ = 0, num_hits_ = 0;
};

TEST_F(DraftsRandom, SameAnswersAsWithout) {
  const char* asked = std::getenv("FATHOM_DRAFT_ROUNDS");
  const char* from = std::getenv("FATHOM_DRAFT_SEED");
  const int num_rounds = asked != nullptr ? std::atoi(asked) : 14;
  const int first = from != nullptr ? std::atoi(from) : 0;
  std::int64_t accepted = 0, rejected = 0;
  for (int i = first; i < first + num_rounds; ++i) {
    Random random(static_cast<std::uint64_t>(i) + 1);
    const Round round = Round::random_one(random, static_cast<std::size_t>(i));
    SCOPED_TRACE("round " + std::to_string(i) + ": " + round.text());
    const auto [right, wrong] = run(round, random);
    accepted += right, rejected += wrong;
    if (HasFailure()) break;
  }
  std::printf("%d rounds: %lld drafts accepted, %lld rejected, %lld preemptions, %lld prefix hits\n", num_rounds,
              static_cast<long long>(accepted), static_cast<long long>(rejected),
              static_cast<long long>(num_preemptions_), static_cast<long long>(num_hits_));
  EXPECT_GT(accepted, 100);
  EXPECT_GT(rejected, 1000);
  EXPECT_GT(num_preemptions_, 0);
  EXPECT_GT(num_hits_, 0);
}

// One conversation, as generate and chat hold it: each turn keeps what it can of the ones before, also where an answer
// was left in the middle of what a step drew.
struct Turn {
  std::vector<TokenId> prompt;
  std::int64_t num_wanted = 0;
  SampleSpec spec;
};

std::vector<TokenId> answer_turn(Session& session, const Turn& turn) {
  std::vector<TokenId> answer;
  auto first = session.prefill(turn.prompt, turn.spec);
  EXPECT_TRUE(first.ok()) << first.status().message();
  answer.push_back(first->token);
  while (std::cmp_less(answer.size(), turn.num_wanted)) {
    const auto more = session.decode_drafted(answer.back(), turn.spec);
    if (!more.ok()) {
      EXPECT_EQ(more.status().code(), StatusCode::kResourceExhausted) << more.status().message();
      break;
    }
    for (const SampledToken& token : *more) {
      if (std::cmp_less(answer.size(), turn.num_wanted)) answer.push_back(token.token);
    }
  }
  return answer;
}

TEST_F(DraftsRandom, ConversationsOfManyTurns) {
  std::int64_t accepted = 0, reused = 0;
  for (std::uint64_t i = 0; i < 24; ++i) {
    Random random(i + 500);
    Model& model = bench_of(1 + i % 2).model->model();
    SessionOptions options;
    options.max_context_tokens = one_in(random, 2) ? between(random, 140, 300) : 700;
    options.chunk_tokens = one_of<std::int64_t>(random, {9, 40, 512});
    auto plain = Session::make(model, options);
    options.num_drafts = static_cast<std::int32_t>(between(random, 1, kMaxDraft));
    options.adaptive_drafts = one_in(random, 4);
    auto drafting = Session::make(model, options);
    ASSERT_TRUE(plain.ok() && drafting.ok());
    std::vector<TokenId> known;
    for (int t = 0; t < 8; ++t) {
      Turn turn;
      turn.prompt = known;
      if (one_in(random, 2))
        turn.prompt.resize(turn.prompt.size() - std::min<std::size_t>(random() % 12, known.size()));
      const auto more = scripted_prompt(i, 1 + static_cast<std::int64_t>(random() % (t == 0 ? 160 : 30)), 0, 380);
      turn.prompt.insert(turn.prompt.end(), more.begin(), more.end());
      if (std::cmp_greater(turn.prompt.size(), options.max_context_tokens)) break;
      turn.num_wanted = between(random, 1, 40);
      turn.spec.temperature = one_in(random, 3) ? 0.8f : 0.0f;
      turn.spec.seed = random();
      (*plain)->reset();
      const std::vector<TokenId> expected = answer_turn(**plain, turn);
      EXPECT_EQ(answer_turn(**drafting, turn), expected)
          << "conversation " << i << " turn " << t << " of " << turn.prompt.size() << " tokens, depth "
          << options.num_drafts << (options.adaptive_drafts ? " at most" : "");
      reused += (*drafting)->num_reused_tokens();
      known = turn.prompt;
      known.insert(known.end(), expected.begin(), expected.end());
    }
    accepted += (*drafting)->draft_counts().accepted;
  }
  EXPECT_GT(accepted, 20);
  EXPECT_GT(reused, 1000);
}

}  // namespace
}  // namespace fathom
