// For tests: a scheduler and a scripted executor without an engine or threads, one call a step.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/scheduler.h"
#include "engine/scripted_answer.h"
#include "engine/scripted_executor.h"

namespace fathom {

class SchedulerBench {
 public:
  struct Live {
    std::vector<TokenId> prompt;
    std::vector<TokenId> output;
    std::int64_t max_tokens = 0;
    std::int64_t added_step = 0;
    std::int64_t first_token_step = -1;
    std::string key;
  };

  SchedulerBench(const ScriptedOptions& scripted, const SchedulerOptions& options, std::int32_t num_drafts = 0)
      : scripted_(scripted), executor_(scripted), scheduler_(options, scripted.limits), num_drafts_(num_drafts) {}

  SequenceId add(std::vector<TokenId> prompt, std::int64_t max_tokens, std::int32_t priority = 0,
                 const std::string& key = "", const std::string& cache_salt = "") {
    SequenceSpec spec;
    spec.id = SequenceId(++next_id_);
    spec.prompt = prompt;
    spec.priority = priority;
    spec.key = key;
    spec.cache_salt = cache_salt;
    Live& live = live_[spec.id];
    live.prompt = std::move(prompt);
    live.max_tokens = max_tokens;
    live.added_step = scheduler_.step();
    live.key = key;
    const SequenceId id = spec.id;
    scheduler_.add(std::move(spec));
    return id;
  }

  void cancel(SequenceId id) {
    scheduler_.finish(id, true);
    live_.erase(id);
  }

  // One step; false when there was nothing to run. Sequences that reach their end are checked and leave.
  bool step() {
    StepPlan& plan = scheduler_.plan();
    last_plan_rows_ = static_cast<std::int64_t>(plan.tokens.size());
    rows_.clear();
    if (plan.sequences.empty()) return false;
    for (SequenceStep& step : plan.sequences) {
      rows_[step.id] = step.num_tokens;
      rows_of_key_[live_.at(step.id).key] += step.num_tokens;
      if (step.num_logits == 0) continue;
      step.num_proposals = num_drafts_;
      SampleSpec spec;
      spec.temperature = 0;
      plan.samples.push_back(spec);
    }
    EXPECT_TRUE(executor_.launch(plan).ok());
    const auto result = executor_.wait();
    EXPECT_TRUE(result.ok());
    std::size_t next = 0;
    std::vector<SequenceId> done;
    for (const SequenceStep& step : plan.sequences) {
      std::vector<TokenId> tokens;
      const SequenceResult* got = step.num_logits > 0 ? &result->sequences[next++] : nullptr;
      if (got != nullptr) {
        for (std::int32_t i = 0; i <= got->accepted; ++i) {
          tokens.push_back(got->tokens[static_cast<std::size_t>(step.num_logits - step.num_drafts - 1 + i)].token);
        }
      }
      executor_.commit(step.id, scheduler_.commit(step, tokens));
      if (got == nullptr) continue;
      scheduler_.set_drafts(step.id, got->proposals);
      Live& live = live_.at(step.id);
      if (live.output.empty()) live.first_token_step = scheduler_.step();
      for (TokenId token : tokens) {
        if (std::cmp_less(live.output.size(), live.max_tokens)) live.output.push_back(token);
      }
      if (std::cmp_equal(live.output.size(), live.max_tokens)) done.push_back(step.id);
    }
    for (SequenceId id : done) finish(id);
    check_accounts();
    return true;
  }

  // Steps until nothing is left; false if that takes more than `limit`.
  bool run_dry(std::int64_t limit) {
    for (std::int64_t i = 0; i < limit; ++i) {
      if (live_.empty()) return true;
      if (!step()) return false;
    }
    return live_.empty();
  }

  // What is held is what the living hold: counted from outside where nothing is shared, as a bound where it is.
  void check_accounts() {
    const SchedulerCounters& counters = scheduler_.counters();
    const auto& context = scheduler_.context_pool();
    const auto& window = scheduler_.window_pool();
    EXPECT_EQ(counters.num_running + scheduler_.num_free_state_slots(), scripted_.limits.num_state_slots);
    EXPECT_EQ(static_cast<std::size_t>(counters.num_running + counters.num_waiting), live_.size());
    std::int64_t most_context = 0, most_window = 0;
    for (const auto& [id, live] : live_) {
      const SequenceState* state = scheduler_.find(id);
      EXPECT_NE(state, nullptr);
      if (!state->running) {
        EXPECT_EQ(state->length, 0);
        EXPECT_EQ(std::ssize(state->tokens), state->num_known) << "drafts go with the cache";
        continue;
      }
      most_context += (state->length + 9 + 127) / 128 + 1;
      most_window += 9;
    }
    EXPECT_LE(context.num_held(), most_context);
    EXPECT_LE(window.num_held(), most_window);
    if (counters.num_running == 0) {
      EXPECT_EQ(context.num_held(), 0);
      EXPECT_EQ(window.num_held(), 0);
    }
    EXPECT_EQ(executor_.num_mismatches(), 0);
  }

  Scheduler& scheduler() { return scheduler_; }
  const std::map<SequenceId, Live>& live() const { return live_; }
  bool alive(SequenceId id) const { return live_.contains(id); }
  std::int64_t last_plan_rows() const { return last_plan_rows_; }
  std::int64_t rows_of(SequenceId id) const { return rows_.contains(id) ? rows_.at(id) : 0; }
  std::int64_t rows_of_key(const std::string& key) { return rows_of_key_[key]; }
  const std::vector<std::pair<SequenceId, Live>>& finished() const { return finished_; }
  std::int64_t num_mismatches() const { return executor_.num_mismatches(); }

 private:
  void finish(SequenceId id) {
    Live& live = live_.at(id);
    SamplingOptions greedy;
    greedy.temperature = 0;
    ScriptedOptions endless = scripted_;
    EXPECT_EQ(live.output, scripted_answer(endless, live.prompt, greedy, live.max_tokens)) << "sequence " << id.value;
    scheduler_.finish(id);
    finished_.emplace_back(id, std::move(live));
    live_.erase(id);
  }

  ScriptedOptions scripted_;
  ScriptedExecutor executor_;
  Scheduler scheduler_;
  std::int32_t num_drafts_;
  std::int64_t next_id_ = 0;
  std::int64_t last_plan_rows_ = 0;
  std::map<SequenceId, Live> live_;
  std::map<SequenceId, std::int64_t> rows_;
  std::map<std::string, std::int64_t> rows_of_key_;
  std::vector<std::pair<SequenceId, Live>> finished_;
};

}  // namespace fathom
