#include "engine/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "engine/engine.h"
#include "engine/scripted_answer.h"
#include "engine/scripted_executor.h"

namespace fathom {
namespace {

// Times on a virtual clock: 1 ms a step and 50 us a row.
struct TimedEngine {
  VirtualClock clock;
  ScriptedOptions scripted;
  EngineOptions options;
  std::unique_ptr<Engine> engine;

  void start() {
    scripted.clock = &clock;
    options.clock = &clock;
    options.eos_id = scripted.eos_id;
    options.max_pending_deltas = 10000;
    auto made = Engine::make(options, std::make_unique<ScriptedExecutor>(scripted), nullptr);
    ASSERT_TRUE(made.ok()) << made.status().message();
    engine = std::move(*made);
  }
  std::unique_ptr<Stream> submit(std::vector<TokenId> prompt, std::int64_t max_tokens, int num_choices = 1) const {
    Request request;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    request.num_choices = num_choices;
    request.sampling.seed = 7;
    auto stream = engine->submit(std::move(request));
    EXPECT_TRUE(stream.ok()) << stream.status().message();
    return std::move(*stream);
  }
  std::vector<EngineEvent> all_events() const {
    EXPECT_TRUE(engine->drain(std::chrono::seconds(60)));
    std::int64_t next = 0;
    return engine->events(&next);
  }
};

void expect_seamless(const ChoiceTimeline& line) {
  ASSERT_FALSE(line.spans.empty());
  for (std::size_t i = 1; i < line.spans.size(); ++i) {
    EXPECT_EQ(line.spans[i].begin_us, line.spans[i - 1].end_us) << "span " << i;
  }
}

TEST(Timeline, SaysWhosePrefillHeldAStreamUp) {
  TimedEngine timed;
  std::unique_ptr<Stream> culprit, second;
  std::atomic<bool> submitted{false};
  timed.options.on_step = [&](const StepTrace& trace) {
    if (trace.step == 20) culprit = timed.submit(scripted_prompt(2, 1000), 4);
    if (trace.step == 24) second = timed.submit(scripted_prompt(3, 500), 4);
    if (trace.step == 24) submitted = true;
  };
  timed.start();
  auto victim = timed.submit(scripted_prompt(1, 300), 100);
  const auto finish = *read_all(*victim).at(0).finish;
  while (!submitted) std::this_thread::yield();
  read_all(*culprit);
  read_all(*second);
  const auto events = timed.all_events();

  const auto lines = make_timelines(events, victim->id());
  ASSERT_EQ(lines.size(), 1u);
  const ChoiceTimeline& line = lines[0];
  expect_seamless(line);
  EXPECT_TRUE(line.complete);
  EXPECT_TRUE(line.finished);
  EXPECT_EQ(line.spans.front().begin_us, finish.times.submitted_us);
  EXPECT_EQ(line.spans.back().end_us, finish.times.finished_us);
  std::int64_t prompt_rows = 0, tokens = 0, stall_us = 0, rows_of_culprit = 0, rows_of_second = 0;
  for (const TimelineSpan& span : line.spans) {
    tokens += span.num_tokens;
    if (span.kind == SpanKind::kPrefill) prompt_rows += span.num_rows;
    if (span.kind != SpanKind::kStall) continue;
    EXPECT_GT(span.num_steps, 0);
    for (const SpanCause& cause : span.causes) {
      stall_us += cause.us;
      (cause.request == culprit->id() ? rows_of_culprit : rows_of_second) += cause.num_rows;
    }
  }
  EXPECT_EQ(prompt_rows, 300);
  EXPECT_EQ(tokens, 100);
  // Every row of both prompts was computed beside the victim, which ran on after them.
  EXPECT_EQ(rows_of_culprit, 1000);
  EXPECT_EQ(rows_of_second, 500);
  EXPECT_EQ(stall_us, finish.times.prefill_stall_us);
  EXPECT_EQ(finish.times.stalled_by, culprit->id());

  const auto other = make_timelines(events, culprit->id());
  ASSERT_EQ(other.size(), 1u);
  expect_seamless(other[0]);
  std::int64_t position = 0, num_chunks = 0;
  for (const TimelineSpan& span : other[0].spans) {
    if (span.kind != SpanKind::kPrefill) continue;
    EXPECT_EQ(span.position, position);
    EXPECT_LE(span.num_rows, timed.options.prefill_chunk_tokens);
    position += span.num_rows;
    ++num_chunks;
  }
  EXPECT_EQ(position, 1000);
  EXPECT_GE(num_chunks, 1000 / timed.options.prefill_chunk_tokens);
}

TEST(Timeline, WaitingForAPlaceAndChoices) {
  TimedEngine timed;
  std::unique_ptr<Stream> second;
  std::atomic<bool> submitted{false};
  timed.options.max_running = 1;
  timed.options.on_step = [&](const StepTrace& trace) {
    if (trace.step != 2) return;
    second = timed.submit(scripted_prompt(2, 50), 5, 2);
    submitted = true;
  };
  timed.start();
  auto first = timed.submit(scripted_prompt(1, 50), 60);
  read_all(*first);
  while (!submitted) std::this_thread::yield();
  const auto finish = *read_all(*second).at(0).finish;
  const auto events = timed.all_events();
  EXPECT_EQ(make_timelines(events, first->id()).size(), 1u);
  const auto lines = make_timelines(events, second->id());
  ASSERT_EQ(lines.size(), 2u);
  const TimelineSpan& queued = lines[0].spans.front();
  EXPECT_EQ(queued.kind, SpanKind::kQueued);
  EXPECT_EQ(queued.end_us - queued.begin_us, finish.times.admitted_us - finish.times.submitted_us);
  EXPECT_GT(queued.end_us - queued.begin_us, 40'000);
  EXPECT_LE(lines[0].spans.back().end_us, lines[1].spans.front().end_us);  // one place: one choice after the other
  EXPECT_TRUE(make_timelines(events, RequestId(999)).empty());
}

// Whoever has read an answer's end finds its whole time line, though the step that ended it is not over yet.
TEST(Timeline, IsWholeOnceTheEndWasRead) {
  TimedEngine timed;
  std::atomic<bool> looked{false};
  std::int32_t num_committed = 0;
  timed.options.on_step = [&](const StepTrace& trace) {
    num_committed += trace.num_committed;
    while (num_committed == 4 && !looked) std::this_thread::yield();
  };
  timed.start();
  auto stream = timed.submit(scripted_prompt(1, 50), 4);
  read_all(*stream);
  std::int64_t next = 0;
  const auto lines = make_timelines(timed.engine->events(&next), stream->id());
  looked = true;
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].complete);
  EXPECT_TRUE(lines[0].finished);
  std::int64_t num_tokens = 0;
  for (const TimelineSpan& span : lines[0].spans) num_tokens += span.num_tokens;
  EXPECT_EQ(num_tokens, 4);
}

// By hand: a sequence that is preempted, comes back, and whose reader is slow; then the same with its beginning lost.
TEST(Timeline, PreemptedPausedAndCutOff) {
  const SequenceId s(5), t(6);
  const RequestId mine(1), other(2);
  const std::vector<EngineEvent> events = {
      {EventKind::kSubmit, 100, 0, s, 0, 10, false, mine},  {EventKind::kAdmit, 200, 0, s, 0, 0, false, mine},
      {EventKind::kPlan, 200, 1, s, 0, 10, true, mine},     {EventKind::kCommit, 300, 1, s, 10, 1, false, mine},
      {EventKind::kPreempt, 310, 1, s, 10, 0, false, mine}, {EventKind::kPlan, 310, 2, t, 0, 50, true, other},
      {EventKind::kCommit, 400, 2, t, 50, 0, false, other}, {EventKind::kResume, 400, 2, s, 0, 0, false, mine},
      {EventKind::kPlan, 400, 3, s, 0, 11, true, mine},     {EventKind::kCommit, 500, 3, s, 11, 1, false, mine},
      {EventKind::kPlan, 500, 4, t, 50, 1, false, other},   {EventKind::kCommit, 600, 4, t, 51, 1, false, other},
      {EventKind::kPlan, 600, 5, t, 51, 30, true, other},   {EventKind::kCommit, 700, 5, t, 81, 1, false, other},
      {EventKind::kPlan, 705, 6, s, 11, 1, false, mine},    {EventKind::kCommit, 800, 6, s, 12, 1, false, mine},
      {EventKind::kFinish, 810, 6, s, 12, 3, false, mine},
  };
  const auto kinds = [](const ChoiceTimeline& line) {
    std::vector<SpanKind> out;
    for (const TimelineSpan& span : line.spans) out.push_back(span.kind);
    return out;
  };
  using enum SpanKind;
  auto lines = make_timelines(events, mine);
  ASSERT_EQ(lines.size(), 1u);
  expect_seamless(lines[0]);
  // The prefill of `other` in step 5 held it up: it ran, and was left out.
  EXPECT_THAT(kinds(lines[0]), testing::ElementsAre(kQueued, kPrefill, kQueued, kPrefill, kStall, kDecode));
  EXPECT_EQ(lines[0].num_preemptions, 1);
  EXPECT_EQ(lines[0].spans[4].causes.at(0).num_rows, 30);
  EXPECT_EQ(lines[0].spans.back().end_us, 810);

  lines = make_timelines(std::span(events).subspan(14), mine);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_FALSE(lines[0].complete);
  EXPECT_TRUE(lines[0].finished);
  EXPECT_THAT(kinds(lines[0]), testing::ElementsAre(kDecode));

  // Without prefills nobody is to blame.
  std::vector<EngineEvent> paused = events;
  for (EngineEvent& event : paused) event.prefill = event.prefill && event.request == mine;
  lines = make_timelines(paused, mine);
  EXPECT_THAT(kinds(lines[0]), testing::ElementsAre(kQueued, kPrefill, kQueued, kPrefill, kPaused, kDecode));
}

}  // namespace
}  // namespace fathom
