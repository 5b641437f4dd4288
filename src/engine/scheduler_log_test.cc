#include "engine/scheduler_log.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/mapped_file.h"
#include "engine/engine.h"
#include "engine/scripted_answer.h"
#include "engine/scripted_executor.h"

namespace fathom {
namespace {

// A crowded life of an engine: little memory, drafts, cancels, several keys.
std::string record() {
  std::string text;
  ScriptedOptions scripted;
  scripted.limits.num_context_blocks = 12;
  scripted.limits.num_resume_slots = 3;
  EngineOptions options;
  options.eos_id = 1;
  options.num_drafts = 2;
  options.scheduler_log = [&text](std::string_view line) { text += line; };
  auto engine = std::move(*Engine::make(options, std::make_unique<ScriptedExecutor>(scripted), nullptr));
  std::vector<std::unique_ptr<Stream>> streams;
  for (std::uint64_t i = 0; i < 24; ++i) {
    Request request;
    request.prompt = scripted_prompt(i % 7, 40 + static_cast<std::int64_t>(60 * (i % 9)), 128);
    request.max_tokens = 150;
    request.sampling.seed = i;
    request.priority = static_cast<std::int32_t>(i % 3);
    request.key = std::to_string(i % 2);
    streams.push_back(std::move(*engine->submit(std::move(request))));
    if (i % 6 == 5) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      streams[i - 2]->cancel();
    }
  }
  for (auto& stream : streams) read_all(*stream);
  engine->flush_prefix_cache();
  engine.reset();
  return text;
}

TEST(SchedulerLog, ALifePlayedAgainMakesTheSamePlans) {
  const std::string text = record();
  std::int64_t num_events = 0;
  const auto report = replay_scheduler_log(text, [&](const EngineEvent&) { ++num_events; });
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_GT(report->num_steps, 50);
  EXPECT_EQ(report->num_sequences, 24);
  EXPECT_LE(report->most_prefill_rows, 96);
  EXPECT_LE(report->most_context_blocks, 12);
  EXPECT_GT(report->prefill_rows, 1000);
  EXPECT_GT(report->drawn_tokens, 1000);
  EXPECT_GT(num_events, 200);
}

// A life of a served engine that was recorded once: whatever changes the scheduler changes it knowingly.
TEST(SchedulerLog, TheRecordedLife) {
  const auto text = read_text_file(std::string(FATHOM_SOURCE_DIR) + "/tests/data/scheduler/crowded.log");
  ASSERT_TRUE(text.ok()) << text.status().message();
  const auto report = replay_scheduler_log(*text);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_GT(report->preemptions, 0);
  EXPECT_GT(report->prefix_hits, 0);
  EXPECT_GT(report->num_cancelled, 0);
}

TEST(SchedulerLog, WhatIsNotALifeIsJudged) {
  std::string text = record();
  // An end before the step is committed.
  const std::size_t plan = text.find("\nplan ");
  const std::size_t commit = text.find("\ncommit ", plan);
  ASSERT_NE(commit, std::string::npos);
  const std::string id = text.substr(commit + 8, text.find(' ', commit + 8) - commit - 8);
  std::string early = text;
  early.insert(commit + 1, "finish " + id + " 0\n");
  EXPECT_FALSE(replay_scheduler_log(early).ok());
  // A prefill share that the recorded plans do not keep.
  std::string bounded = text;
  const std::size_t options = bounded.find("options 96 ");
  ASSERT_NE(options, std::string::npos);
  bounded.replace(options, 11, "options 16 ");
  EXPECT_FALSE(replay_scheduler_log(bounded).ok());
}

TEST(SchedulerLog, AnotherLifeIsNoticed) {
  std::string text = record();
  // One more resume slot than there was: the first plan that would have evicted one comes out otherwise.
  const std::size_t begin = text.find("limits ");
  const std::size_t end = text.find('\n', begin);
  std::string limits = text.substr(begin, end - begin);
  const std::size_t slots = limits.find(" 12 192 32 3 ");
  ASSERT_NE(slots, std::string::npos) << limits;
  text.replace(begin + slots, 13, " 12 192 32 1 ");
  const auto other = replay_scheduler_log(text);
  EXPECT_EQ(other.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(other.status().message().find("differs"), std::string::npos) << other.status().message();
}

TEST(SchedulerLog, BrokenLogsAreRefused) {
  EXPECT_FALSE(replay_scheduler_log("").ok());
  EXPECT_FALSE(replay_scheduler_log("something else\n").ok());
  const std::string head = "fathom-scheduler-log-1\n";
  for (const char* body :
       {"limits 1 2\n", "plan 3\n", "limits 9 9 9 9 9 0 9 9 9 9 0 0\n",
        "limits 64 2048 300 40 8 14 16 5 3 8 0 1\noptions 1\n",
        "limits 64 2048 300 40 8 14 16 5 3 8 0 1\noptions 96 256 512 64 64 1 0\nfinish 4 0\n",
        "limits 64 2048 300 40 8 14 16 5 3 8 0 1\noptions 96 256 512 64 64 1 0\nadd 1 0 - - 1 0 0 5 1\n",
        "limits 64 2048 300 40 8 14 16 5 3 8 0 1\noptions 96 256 512 64 64 1 0\nadd 1 0 zz - 1 0 0 1 1\n",
        "limits 64 2048 300 40 8 14 16 5 3 8 0 1\noptions 96 256 512 64 64 1 0\nfly 1 0\n"}) {
    EXPECT_FALSE(replay_scheduler_log(head + body).ok()) << body;
  }
}

}  // namespace
}  // namespace fathom
