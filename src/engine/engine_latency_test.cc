// What streams feel of each other's prompts.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "engine/engine_bench.h"

namespace fathom {
namespace {

// Times on a virtual clock: 1 ms a step and 50 us a row.
struct TimedSteps {
  VirtualClock clock;
  ScriptedOptions scripted;
  EngineOptions options;

  TimedSteps() {
    scripted.clock = &clock;
    scripted.limits.num_state_slots = 80;
    scripted.limits.max_sequences = 80;
    scripted.limits.num_window_blocks = 300;
    scripted.limits.num_context_blocks = 600;
    options.clock = &clock;
    options.max_running = 80;
    options.max_pending_deltas = 10000;  // the streams are read one after the other
  }
};

TEST(EngineLatency, AShortPromptBesideALongOne) {
  std::int64_t idle_us = 0;
  {
    TimedSteps timed;
    Bench bench = make_bench(timed.scripted, timed.options);
    const auto choices = run(*bench.engine, make_request(scripted_prompt(2, 100), 1));
    idle_us = choices.at(0).finish->times.first_token_us - choices.at(0).finish->times.submitted_us;
    EXPECT_EQ(idle_us, 6000);
  }
  TimedSteps timed;
  std::unique_ptr<Stream> quick;
  std::atomic<bool> submitted{false};
  Engine* engine = nullptr;
  std::int64_t longest_step_us = 0;
  timed.options.on_step = [&](const StepTrace& trace) {
    longest_step_us = std::max(longest_step_us, static_cast<std::int64_t>(trace.wait_us));
    if (trace.step != 2) return;
    quick = std::move(*engine->submit(make_request(scripted_prompt(2, 100), 1)));
    submitted = true;
  };
  Bench bench = make_bench(timed.scripted, timed.options);
  engine = bench.engine.get();
  auto slow = bench.engine->submit(make_request(scripted_prompt(1, 4000), 1));
  read_all(**slow);
  ASSERT_TRUE(submitted.load());
  const auto choices = read_all(*quick);
  bench.engine.reset();  // on_step has been called for the last time
  const std::int64_t ttft_us = choices.at(0).finish->times.first_token_us - choices.at(0).finish->times.submitted_us;
  EXPECT_LE(ttft_us, 3 * idle_us + longest_step_us);
}

TEST(EngineLatency, StreamsKeepTheirPaceBesideALongPrompt) {
  TimedSteps timed;
  std::vector<double> alone_us, beside_us;
  std::unique_ptr<Stream> slow;
  Engine* engine = nullptr;
  std::atomic<bool> all_submitted{false};
  timed.options.on_step = [&](const StepTrace& trace) {
    while (!all_submitted) std::this_thread::yield();  // or the first end before the last begin
    if (trace.num_sequences >= 48 && trace.num_tokens == trace.num_sequences) alone_us.push_back(trace.wait_us);
    if (slow != nullptr && trace.num_sequences >= 49 && trace.num_tokens > trace.num_sequences)
      beside_us.push_back(trace.wait_us);
    if (alone_us.size() == 50 && slow == nullptr) {
      slow = std::move(*engine->submit(make_request(scripted_prompt(1, 4000), 1)));
    }
  };
  Bench bench = make_bench(timed.scripted, timed.options);
  engine = bench.engine.get();
  std::vector<std::unique_ptr<Stream>> streams;
  for (std::uint64_t i = 0; i < 64; ++i) {
    streams.push_back(std::move(*bench.engine->submit(make_request(scripted_prompt(i, 10), 600))));
  }
  all_submitted = true;
  std::int64_t stalled = 0;
  for (auto& stream : streams) {
    const auto choices = read_all(*stream);
    const RequestTimes& times = choices.at(0).finish->times;
    stalled += times.prefill_stall_us > 0 && times.stalled_by == slow->id() ? 1 : 0;
  }
  read_all(*slow);
  bench.engine.reset();
  ASSERT_GT(beside_us.size(), 30u);
  std::sort(alone_us.begin(), alone_us.end());
  EXPECT_LT(*std::max_element(beside_us.begin(), beside_us.end()), 3 * alone_us[alone_us.size() / 2]);
  EXPECT_GT(stalled, 40);
}

}  // namespace
}  // namespace fathom
