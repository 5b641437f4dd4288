// One turn of the engine thread: plan, launch, wait, commit, answer.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/units.h"
#include "engine/engine_thread.h"

namespace fathom::engine_detail {

// Drafts that this step is to propose for each sequence that it draws a token for.
std::int32_t EngineThread::plan_depth(StepPlan& plan) {
  plan.drafter_feed = options_.num_drafts > 0 ? DrafterFeed::kRows : DrafterFeed::kNothing;
  if (!options_.adaptive_drafts || options_.num_drafts == 0) return options_.num_drafts;
  std::int32_t batch = 0;
  std::int64_t newest = 0;
  for (const SequenceStep& step : plan.sequences) {
    if (step.num_logits == 0) continue;
    ++batch;
    newest = std::max(newest, step.id.value);
  }
  std::int32_t depth = 0;
  if (depth_policy_.is_known(batch, newest)) {
    depth = depth_policy_.choose_known(options_.num_drafts);
    plan.drafter_feed = depth_policy_.feed();
    return depth;
  }
  acceptances_.clear();
  for (const SequenceStep& step : plan.sequences) {
    if (step.num_logits > 0) acceptances_.push_back(&choices_.at(step.id)->acceptance);
  }
  depth = depth_policy_.choose(acceptances_, options_.num_drafts);
  plan.drafter_feed = depth_policy_.feed();
  return depth;
}

// What a step takes is seen when the next one begins: giving its answers and planning take their time too.
void EngineThread::begin_step_time(const StepPlan& plan, const StepResult& result, std::int64_t begin_us) {
  if (!options_.adaptive_drafts) return;
  DraftedStep& last = last_step_.emplace();
  last_step_begin_us_ = begin_us;
  last.batch = static_cast<std::int32_t>(plan.sequences.size());
  for (const SequenceStep& step : plan.sequences) {
    // A prompt's last row alone is none: such a step is launched, not replayed.
    last.decodes_only = last.decodes_only && step.step_class == StepClass::kStep &&
                        step.num_tokens == 1 + step.num_drafts && step.num_logits > 0;
    last.num_drafts += step.num_drafts;
    last.num_verified += step.num_drafts > 0 ? 1 : 0;
  }
  last.num_proposals = counts_.draft_depth;
  last.propose_us = result.draft_us;
  last.is_first_verify = result.is_first_forward;
  last.is_first_propose = result.is_first_draft;
}

void EngineThread::end_step_time(std::int64_t next_begin_us) {
  if (!last_step_) return;
  last_step_->us = static_cast<double>(next_begin_us - last_step_begin_us_);
  last_step_->propose_us = std::min(last_step_->propose_us, last_step_->us);
  depth_policy_.add_step(*last_step_);
  last_step_.reset();
}

void EngineThread::account_drafts(Choice& choice, const SequenceStep& step, const SequenceResult& got) {
  choice.acceptance.fade();
  if (step.num_drafts == 0) return;
  ++counts_.draft_steps;
  counts_.drafted_tokens += step.num_drafts;
  counts_.accepted_tokens += got.accepted;
  for (std::int32_t i = 0; i < got.accepted; ++i) ++counts_.accepted_per_position[static_cast<std::size_t>(i)];
  choice.usage.drafted_tokens += step.num_drafts;
  choice.usage.accepted_tokens += got.accepted;
  choice.acceptance.add(step.num_drafts, got.accepted);
  if (acceptance_alarm_.add(step.num_drafts, got.accepted)) {
    ++counts_.draft_alarms;
    log_warning("drafts are accepted far less often than before: " + std::to_string(acceptance_alarm_.recent()) +
                " lately, " + std::to_string(acceptance_alarm_.history()) + " before");
  }
  counts_.draft_alarm = acceptance_alarm_.raised();
  counts_.draft_acceptance = acceptance_alarm_.recent();
  counts_.draft_acceptance_history = acceptance_alarm_.history();
}

void EngineThread::fill_samples(StepPlan& plan) {
  const std::int32_t depth = counts_.draft_depth = plan_depth(plan);
  for (SequenceStep& step : plan.sequences) {
    if (step.num_logits == 0) continue;
    Choice& choice = *choices_.at(step.id);
    const SequenceState& state = *scheduler_.find(step.id);
    const Request& request = choice.request->request;
    const bool draws = step.start + step.num_tokens - step.num_drafts == state.num_known;
    step.num_proposals = draws ? depth : 0;
    SampleSpec& spec = choice.spec;
    const std::span<const TokenId> tokens = state.tokens;
    spec.prompt_ids = tokens.first(static_cast<std::size_t>(state.num_prompt));
    spec.output_ids = tokens.subspan(static_cast<std::size_t>(state.num_prompt));
    spec.forced = {};
    spec.allowed = {};
    if (draws) fill_masks(choice, state, step.num_logits, step.num_drafts);
    SampleSpec planned = spec;
    if (state.spec.prompt_logits && !state.prompt_done) {
      planned.num_logprobs = std::max(spec.num_logprobs, request.num_prompt_logprobs);
      choice.forced.clear();
      for (std::int64_t p = step.start + 1; p <= step.start + step.num_tokens; ++p) {
        choice.forced.push_back(p < state.num_prompt ? tokens[static_cast<std::size_t>(p)] : -1);
      }
      planned.forced = choice.forced;
    }
    plan.samples.push_back(planned);
  }
}

void EngineThread::note_admissions() {
  // Also the clock of a request's wait: from here on it holds cache memory.
  for (const auto& [id, active] : requests_) {
    if (!active->queued) continue;
    for (const auto& choice : active->choices) {
      if (choice->finished || !scheduler_.find(choice->sequence)->running) continue;
      active->queued = false;
      if (active->stream != nullptr) mailbox_->left_queue(choice->usage.prompt_tokens);
      break;
    }
  }
}

bool EngineThread::run_step() {
  begin_trace();
  const std::int64_t begin = now_us();
  end_step_time(begin);
  take_masks();
  StepPlan& plan = scheduler_.plan();
  if (plan.sequences.empty()) return false;
  note_admissions();
  for (const SequenceStep& step : plan.sequences) {
    Choice& choice = *choices_.at(step.id);
    if (choice.times.admitted_us == 0) choice.times.admitted_us = begin;
  }
  fill_samples(plan);
  trace_.step = plan.step;
  trace_.begin_us = static_cast<double>(begin);
  if (last_step_end_us_ >= 0) trace_.turn_us = static_cast<double>(begin - last_step_end_us_);
  trace_.num_tokens = static_cast<std::int32_t>(plan.tokens.size());
  trace_.num_sequences = static_cast<std::int32_t>(plan.sequences.size());
  for (const SequenceStep& step : plan.sequences) trace_.num_drafts += step.num_drafts;
  const std::int64_t planned = now_us();
  collect_events(planned);
  trace_.schedule_us = static_cast<double>(planned - begin);
  step_running_.store(plan.step);
  step_started_us_.store(planned);
  if (const Status status = executor_->launch(plan); !status.ok()) {
    fail(status.with_context("step " + std::to_string(plan.step)));
    return true;
  }
  const std::int64_t launched = now_us();
  trace_.launch_us = static_cast<double>(launched - planned);
  Result<StepResult> result = executor_->wait();
  step_started_us_.store(-1);
  if (!result.ok()) {
    fail(result.status().with_context("step " + std::to_string(plan.step)));
    return true;
  }
  const std::int64_t waited = now_us();
  trace_.wait_us = static_cast<double>(waited - launched);
  trace_.prepare_us = result->prepare_us;
  trace_.forward_us = result->forward_us;
  trace_.sample_us = result->sample_us;
  trace_.draft_us = result->draft_us;
  begin_step_time(plan, *result, begin);
  commit_step(plan, *result, planned);
  const std::int64_t given = now_us();
  trace_.commit_us = static_cast<double>(given - waited) - trace_.detokenise_us;
  trace_.step_us = static_cast<double>(given - begin);
  last_step_end_us_ = given;
  end_trace();
  return true;
}

// A capture keeps whole steps: it begins and ends between two of them.
void EngineThread::begin_trace() {
  std::vector<OpSample> samples = std::move(trace_.samples);
  samples.clear();
  trace_ = {};
  trace_.samples = std::move(samples);
  tracing_ = capture_steps_.load(std::memory_order_relaxed) > 0;
  const std::int64_t before = now_us();
  executor_->set_trace(tracing_ ? &trace_ : nullptr);
  // A device's records take milliseconds to begin: no step's time.
  if (last_step_end_us_ >= 0) last_step_end_us_ += now_us() - before;
}

void EngineThread::end_trace() {
  counts_.turn_us += trace_.turn_us;
  counts_.schedule_us += trace_.schedule_us;
  counts_.prepare_us += trace_.prepare_us;
  counts_.forward_us += trace_.forward_us;
  counts_.sample_us += trace_.sample_us;
  counts_.draft_us += trace_.draft_us;
  counts_.commit_us += trace_.commit_us;
  counts_.detokenise_us += trace_.detokenise_us;
  if (options_.on_step) {
    const std::int64_t before = now_us();
    options_.on_step(trace_);
    // A watcher may hold the engine: that is no step's time.
    const std::int64_t held_us = now_us() - before;
    last_step_begin_us_ += held_us;
    last_step_end_us_ += held_us;
  }
  if (!tracing_) return;
  executor_->add_device_samples(trace_);
  // What that took is no step's time.
  if (trace_.on_device) last_step_end_us_ = now_us();
  const std::lock_guard lock(mutex_);
  if (capture_steps_.load(std::memory_order_relaxed) == 0) return;  // stopped meanwhile
  capture_steps_.fetch_sub(1, std::memory_order_relaxed);
  captured_.push_back(std::move(trace_));
}

void EngineThread::account_stalls(const StepPlan& plan, std::int64_t step_us) {
  std::int64_t rows = 0;
  std::unordered_map<const ActiveRequest*, std::int64_t> prefills;
  for (const SequenceStep& step : plan.sequences) {
    rows += step.num_tokens;
    if (step.num_tokens == 1 + step.num_drafts && scheduler_.find(step.id)->prompt_done) continue;
    prefills[choices_.at(step.id)->request] += step.num_tokens;
  }
  if (prefills.empty() || prefills.size() == plan.sequences.size()) return;
  for (const SequenceStep& step : plan.sequences) {
    Choice& choice = *choices_.at(step.id);
    if (prefills.contains(choice.request)) continue;
    for (const auto& [cause, cause_rows] : prefills) {
      const std::int64_t stall = step_us * cause_rows / rows;
      choice.times.prefill_stall_us += stall;
      choice.stalls_us[cause->id] += stall;
    }
  }
}

void EngineThread::keep_prompt_logprobs(Choice& choice, const SequenceStep& step, const SequenceResult& result) {
  const Request& request = choice.request->request;
  const auto num_prompt = static_cast<std::int64_t>(request.prompt.size());
  choice.prompt_logprobs.resize(static_cast<std::size_t>(num_prompt - 1));
  for (std::int64_t i = 0; i < step.num_tokens && step.start + i + 1 < num_prompt; ++i) {
    SampledToken token = result.tokens[static_cast<std::size_t>(i)];
    if (std::cmp_less(request.num_prompt_logprobs, token.top.size())) {
      token.top.resize(static_cast<std::size_t>(request.num_prompt_logprobs));
    }
    choice.prompt_logprobs[static_cast<std::size_t>(step.start + i)] = std::move(token);
  }
}

// A step is committed as a whole before any answer is given: ending one choice changes the scheduler's state.
void EngineThread::commit_step(const StepPlan& plan, const StepResult& result, std::int64_t begin_us) {
  const std::int64_t step_us = now_us() - begin_us;
  ++counts_.num_steps;
  counts_.last_step_us = static_cast<double>(step_us);
  counts_.last_step_rows = static_cast<std::int32_t>(plan.tokens.size());
  counts_.busy_us += static_cast<double>(step_us);
  account_stalls(plan, step_us);
  counts_.first_use_steps += result.is_first_forward || result.is_first_draft ? 1 : 0;

  outputs_.clear();
  std::vector<TokenId>& ids = ids_;
  std::size_t next = 0;
  for (const SequenceStep& step : plan.sequences) {
    Choice& choice = *choices_.at(step.id);
    ids.clear();
    if (step.num_logits > 0) {
      FATHOM_CHECK(next < result.sequences.size() && result.sequences[next].id == step.id,
                   "results stand in the plan's order");
      const SequenceResult& got = result.sequences[next++];
      const SequenceState& state = *scheduler_.find(step.id);
      if (state.spec.prompt_logits && !state.prompt_done) keep_prompt_logprobs(choice, step, got);
      if (step.start + step.num_tokens - step.num_drafts == state.num_known) {
        const auto first = static_cast<std::size_t>(step.num_logits - step.num_drafts - 1);
        const auto num = static_cast<std::size_t>(got.accepted) + 1;
        const std::span<const SampledToken> tokens = std::span(got.tokens).subspan(first, num);
        for (const SampledToken& token : tokens) ids.push_back(std::max(token.token, 0));
        outputs_.push_back({&choice, tokens, step.num_drafts});
      }
      trace_.num_committed += static_cast<std::int32_t>(ids.size());
      account_drafts(choice, step, got);
      executor_->commit(step.id, scheduler_.commit(step, ids));
      if (!ids.empty()) scheduler_.set_drafts(step.id, got.proposals);
    } else {
      executor_->commit(step.id, scheduler_.commit(step, ids));
    }
  }
  const std::int64_t committed = now_us();
  collect_events(committed);
  give_outputs();
  trace_.detokenise_us = static_cast<double>(now_us() - committed);
}

void EngineThread::give_outputs() {
  step_masks_us_ = 0;
  for (const Output& output : outputs_) {
    const std::int64_t before = counts_.generation_tokens;
    give_output(*output.choice, output.tokens);  // may end the choice
    if (!output.choice->finished) begin_masks(*output.choice);
    const auto num_used = static_cast<std::int32_t>(counts_.generation_tokens - before);
    if (last_step_) {
      last_step_->num_tokens += num_used;
      last_step_->num_verified_tokens += output.num_drafts > 0 ? num_used : 0;
    }
    if (output.num_drafts == 0 || num_used == 0) continue;
    depth_policy_.add_drafts(output.num_drafts, num_used - 1);
  }
}

void EngineThread::give_output(Choice& choice, std::span<const SampledToken> tokens) {
  ActiveRequest& active = *choice.request;
  const Request& request = active.request;
  Delta delta;
  delta.choice = choice.index;
  delta.cached_tokens = scheduler_.find(choice.sequence)->cached_tokens;
  delta.prompt_logprobs = std::exchange(choice.prompt_logprobs, {});
  if (request.max_tokens == 0) return finish_choice(choice, std::move(delta), FinishReason::kLength, nullptr, {});
  if (choice.times.first_token_us == 0) choice.times.first_token_us = now_us();
  for (SampledToken token : tokens) {
    if (token.token < 0) {
      choice.output.finish(delta);
      const bool constrained = choice.is_constrained && !choice.output.in_reasoning();
      return finish_choice(choice, std::move(delta), FinishReason::kError, nullptr,
                           constrained ? failed_precondition("no token may come next: the constraint allows none")
                                       : internal_error("no token may come next: the logits are not numbers"));
    }
    ++counts_.generation_tokens;
    const bool ends = token.token == eos_id_ && !request.ignore_eos;
    if (choice.is_constrained && !choice.output.in_reasoning() && !ends) {
      if (const Status status = choice.constraint->accept(token.token); !status.ok()) {
        choice.output.finish(delta);
        return finish_choice(choice, std::move(delta), FinishReason::kError, nullptr, status);
      }
    }
    if (options_.check_prefix_cache) {
      choice.drawn.push_back({token.token, token.logprob});
      if (request.num_logprobs < 0) token.logprob = 0.0f;
    }
    if (std::cmp_less(std::max(request.num_logprobs, 0), token.top.size())) {
      token.top.resize(static_cast<std::size_t>(std::max(request.num_logprobs, 0)));
    }
    const auto stop = choice.output.push(std::move(token), delta);
    if (stop) return finish_choice(choice, std::move(delta), stop->reason, &*stop, {});
    const std::int64_t num_output = choice.output.num_tokens();
    if (num_output == request.max_tokens ||
        num_output + choice.usage.prompt_tokens >= scheduler_.max_sequence_tokens()) {
      const auto late_stop = choice.output.finish(delta);
      const FinishReason reason = late_stop ? late_stop->reason : FinishReason::kLength;
      return finish_choice(choice, std::move(delta), reason, late_stop ? &*late_stop : nullptr, {});
    }
  }
  if (!delta.tokens.empty() || !delta.text.empty() || !delta.prompt_logprobs.empty()) send(active, std::move(delta));
}

}  // namespace fathom::engine_detail
