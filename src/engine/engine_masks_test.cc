// Masks made beside the engine's thread: the same answers, and nobody waits for another's.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "engine/engine_bench.h"
#include "engine/mask_workers.h"
#include "engine/scheduler_bench.h"
#include "engine/scheduler_log.h"

namespace fathom {
namespace {

using engine_detail::MaskJob;
using engine_detail::MaskWorkers;
using std::chrono::seconds;

// Where masks stand still until they are let through.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++num_waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_; });
    --num_waiting_;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  // Somebody stands before it.
  bool wait_for_one() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, seconds(60), [this] { return num_waiting_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_waiting_ = 0;
  bool is_open_ = false;
};

// Which ids may come depends on those that came: a third of them, and EOS (1) behind every seventh. From the
// `gated_from`-th token on, masks pass the gate first.
class Thirds final : public TokenConstraint {
 public:
  explicit Thirds(Gate* gate = nullptr, std::size_t gated_from = 0) : gate_(gate), gated_from_(gated_from) {}
  bool next_mask(std::span<std::uint32_t> mask) override {
    if (gate_ != nullptr && came_.size() >= gated_from_) gate_->pass();
    for (std::size_t id = 0; id < mask.size() * 32; ++id) {
      if (!fits(static_cast<TokenId>(id))) mask[id / 32] &= ~(1u << (id % 32));
    }
    return true;
  }
  Status accept(TokenId token) override {
    if (!fits(token)) return failed_precondition("a masked token came");
    came_.push_back(token);
    return {};
  }
  void rollback(std::int32_t num_tokens) override { came_.resize(came_.size() - static_cast<std::size_t>(num_tokens)); }

 private:
  bool fits(TokenId id) const {
    if (id == 1) return came_.size() % 7 == 6;
    return (id + static_cast<TokenId>(came_.size()) + (came_.empty() ? 0 : came_.back())) % 3 == 0;
  }

  Gate* gate_;
  std::size_t gated_from_;
  std::vector<TokenId> came_;
};

// Constrained and free ones, with all that a mask depends on.
std::vector<Request> mixed_requests() {
  std::vector<Request> requests;
  for (std::uint64_t i = 0; i < 12; ++i) {
    Request request = make_request(scripted_prompt(i, 30 + static_cast<std::int64_t>(i) * 37), 40, i);
    request.sampling.temperature = i % 3 == 0 ? 0.0f : 1.0f;
    if (i % 4 != 3) request.make_constraint = [] { return std::make_unique<Thirds>(); };
    if (i % 4 == 1) request.reasoning_end = 9;
    if (i % 5 == 2) request.num_choices = 3;
    if (i % 3 == 1) request.min_tokens = 20;
    if (i % 6 == 4) request.stop_token_ids = {30, 31, 32};
    if (i == 8) request.num_prompt_logprobs = 1;
    requests.push_back(std::move(request));
  }
  return requests;
}

struct Answers {
  std::vector<std::map<std::int32_t, std::vector<TokenId>>> tokens;
  EngineStats stats;
  std::string log;
};

Answers answers(std::int64_t mask_budget_us, std::int32_t num_drafts) {
  ScriptedOptions scripted;
  scripted.eos_share = 0.05;
  scripted.limits.num_context_blocks = 14;  // some give way
  scripted.next_token = [](std::span<const TokenId> context) -> std::optional<TokenId> {
    return context.size() % 11 == 0 ? 9 : std::optional<TokenId>();
  };
  Answers got;
  EngineOptions options;
  options.mask_budget_us = mask_budget_us;
  options.num_drafts = num_drafts;
  options.scheduler_log = [&got](std::string_view line) { got.log += line; };
  // All are there before the second step: how many give way does not depend on how fast they come.
  std::atomic<bool> all_are_there{false};
  options.on_step = [&all_are_there](const StepTrace&) {
    while (!all_are_there) std::this_thread::yield();
  };
  Bench bench = make_bench(scripted, options);
  std::vector<std::unique_ptr<Stream>> streams;
  for (Request& request : mixed_requests()) streams.push_back(bench.engine->submit(std::move(request)).value());
  all_are_there = true;
  for (const auto& stream : streams) {
    auto& tokens = got.tokens.emplace_back();
    for (auto& [index, choice] : read_all(*stream)) {
      EXPECT_TRUE(choice.finish && choice.finish->reason <= FinishReason::kLength);
      tokens[index] = std::move(choice.tokens);
    }
  }
  EXPECT_EQ(bench.executor->num_mismatches(), 0);
  got.stats = bench.engine->stats();
  bench.engine.reset();
  return got;
}

TEST(EngineMasks, AnswersAreTheSameWhereverMasksAreMade) {
  const Answers here = answers(-1, 0);
  EXPECT_EQ(here.stats.masks_beside, 0);
  EXPECT_GT(here.stats.preemptions, 0);
  for (const std::int64_t budget_us : {-1, 0, 2000}) {
    for (const std::int32_t num_drafts : {0, 4}) {
      const Answers got = answers(budget_us, num_drafts);
      EXPECT_EQ(got.tokens, here.tokens) << budget_us << " us, " << num_drafts << " drafts";
      if (budget_us == 0) {
        EXPECT_GT(got.stats.masks_beside, 100);
      }
      if (num_drafts > 0) {
        EXPECT_GT(got.stats.accepted_tokens, 0);
      }
      const auto replay = replay_scheduler_log(got.log);
      EXPECT_TRUE(replay.ok()) << replay.status().message();
    }
  }
}

TEST(EngineMasks, OthersEndWhileAMaskIsBeingMade) {
  const Request plain = make_request(scripted_prompt(1, 200), 60);
  Request slow = make_request(scripted_prompt(2, 200), 30);
  slow.make_constraint = [] { return std::make_unique<Thirds>(); };
  Bench reference = make_bench();
  const auto plain_tokens = run(*reference.engine, plain).at(0).tokens;
  const auto slow_tokens = run(*reference.engine, slow).at(0).tokens;
  // The first mask of an answer is not known to take long; later ones are, once they have.
  for (const std::size_t gated_from : {0, 3}) {
    Gate gate;
    EngineOptions options;
    options.mask_budget_us = gated_from == 0 ? EngineOptions{}.mask_budget_us : 0;
    options.num_drafts = gated_from == 0 ? 0 : 3;
    Bench bench = make_bench({}, options);
    slow.make_constraint = [&] { return std::make_unique<Thirds>(&gate, gated_from); };
    const auto slow_stream = bench.engine->submit(slow).value();
    EXPECT_TRUE(gate.wait_for_one());
    EXPECT_EQ(run(*bench.engine, plain).at(0).tokens, plain_tokens);
    if (gated_from == 0) {  // constrained ones as well
      Request other = slow;
      other.make_constraint = [] { return std::make_unique<Thirds>(); };
      EXPECT_EQ(run(*bench.engine, other).at(0).tokens, slow_tokens);
    }
    EXPECT_FALSE(slow_stream->finished());
    gate.open();
    EXPECT_EQ(read_all(*slow_stream).at(0).tokens, slow_tokens);
  }
}

TEST(EngineMasks, AnEndDoesNotWaitForAMask) {
  Gate gate;
  VirtualClock clock;
  EngineOptions options;
  options.clock = &clock;
  Bench bench = make_bench({}, options);
  const auto submit = [&](std::int64_t timeout_us) {
    Request request = make_request(scripted_prompt(3, 150), 30);
    request.make_constraint = [&] { return std::make_unique<Thirds>(&gate); };
    request.timeout_us = timeout_us;
    request.num_choices = 2;
    return bench.engine->submit(std::move(request)).value();
  };
  const auto reason = [](Stream& stream) {
    const auto choices = read_all(stream);
    return choices.size() == 2 && choices.at(0).finish && choices.at(1).finish ? choices.at(1).finish->reason
                                                                               : FinishReason::kEos;
  };
  const auto cancelled = submit(0), late = submit(1'000'000), left = submit(0);
  submit(0).reset();  // nobody reads it
  EXPECT_TRUE(gate.wait_for_one());
  cancelled->cancel();
  EXPECT_EQ(reason(*cancelled), FinishReason::kCancelled);
  clock.advance_us(2'000'000);
  EXPECT_EQ(reason(*late), FinishReason::kTimeout);
  EXPECT_EQ(run(*bench.engine, make_request(scripted_prompt(4, 20), 10)).at(0).tokens.size(), 10u);
  bench.engine->shutdown();
  EXPECT_EQ(reason(*left), FinishReason::kShutdown);
  gate.open();
  bench.engine.reset();  // waits for what was begun
}

TEST(EngineMasks, LongOnesLeaveAThreadToShortOnes) {
  Gate gate;
  std::atomic<int> num_late{0};
  MaskWorkers workers([&] { ++num_late; });
  const auto job = [](Gate* at, bool is_long) {
    auto made = std::make_shared<MaskJob>();
    made->constraint = std::make_unique<Thirds>(at);
    made->is_long = is_long;
    made->masks.assign(16, ~0u);
    return made;
  };
  std::vector<std::shared_ptr<MaskJob>> long_ones;
  for (int i = 0; i < 20; ++i) workers.post(long_ones.emplace_back(job(&gate, true)));
  for (int i = 0; i < 3; ++i) {
    const auto short_one = job(nullptr, false);
    workers.post(short_one);
    workers.wait_for_short(seconds(60));
    EXPECT_TRUE(workers.is_done(*short_one));
  }
  // One that takes too long is not waited for again.
  const auto stuck = job(&gate, false), last = job(nullptr, false);
  workers.post(stuck);
  workers.wait_for_short(std::chrono::microseconds(0));
  EXPECT_FALSE(workers.is_done(*stuck));
  workers.drop(*long_ones.back());
  gate.open();
  const auto end = std::chrono::steady_clock::now() + seconds(60);
  while (num_late < 20 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(num_late, 20);  // all but the dropped one, and the one that took too long
  EXPECT_TRUE(workers.is_done(*stuck));
  EXPECT_FALSE(workers.is_done(*long_ones.back()));
  workers.post(last);
  workers.wait_for_short(seconds(60));
  EXPECT_EQ(last->masks[0] & 31u, 0b01001u);
}

TEST(EngineMasks, AHeldSequenceComesUpToItsLastTokenAndGoesOn) {
  SchedulerBench bench({}, {});
  const SequenceId held = bench.add(scripted_prompt(1, 700), 20), other = bench.add(scripted_prompt(2, 300), 20);
  bench.scheduler().set_held(held, true);
  while (bench.step()) {
  }
  EXPECT_EQ(bench.scheduler().find(other), nullptr);
  EXPECT_EQ(bench.scheduler().find(held)->length, 699);
  bench.scheduler().set_held(held, false);
  while (bench.step()) {
  }
  EXPECT_EQ(bench.scheduler().find(held), nullptr);
}

}  // namespace
}  // namespace fathom
