#include "draft_race.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "engine/model_executor.h"

namespace fathom::app {
namespace {

constexpr std::int64_t kLongestTokens = 1024;
constexpr std::chrono::microseconds kTurn{20'000};
constexpr std::chrono::microseconds kLook{4'000};  // how often it is looked whether all is answered
constexpr double kFewFirst = 0.005;                // of a run's steps, those whose shape is new: it is steady

}  // namespace

void StepParts::add(const StepTrace& trace) {
  ++num_steps;
  num_drafts += trace.num_drafts;
  turn_us += trace.turn_us, schedule_us += trace.schedule_us, prepare_us += trace.prepare_us;
  forward_us += trace.forward_us, sample_us += trace.sample_us, draft_us += trace.draft_us;
  commit_us += trace.commit_us, answer_us += trace.detokenise_us;
}

void StepGate::begin_run() {
  const std::lock_guard lock(mutex_);
  run_time_ = {};
  num_steps_ = 0;
  closed_ = false;
  until_ = mark_ = Clock::now();
}

void StepGate::open(std::chrono::microseconds time) {
  const std::lock_guard lock(mutex_);
  closed_ = false;
  mark_ = Clock::now();
  until_ = mark_ + time;
  changed_.notify_all();
}

void StepGate::stay_open() {
  const std::lock_guard lock(mutex_);
  closed_ = false;
  until_ = Clock::time_point::max();
  changed_.notify_all();
}

bool StepGate::wait_until_closed(std::chrono::microseconds patience) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, patience, [this] { return closed_; });
}

void StepGate::wait_until_seen(std::int64_t num_steps) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this, num_steps] { return num_steps_ >= num_steps; });
}

double StepGate::run_seconds() const {
  const std::lock_guard lock(mutex_);
  return std::chrono::duration<double>(run_time_).count();
}

void StepGate::clear_parts() {
  const std::lock_guard lock(mutex_);
  parts_ = {};
}

std::array<StepParts, kNumStepKinds> StepGate::parts() const {
  const std::lock_guard lock(mutex_);
  return parts_;
}

void StepGate::see(const StepTrace& trace) {
  std::unique_lock lock(mutex_);
  const Clock::time_point now = Clock::now();
  run_time_ += now - mark_;
  mark_ = now;
  ++num_steps_;
  const bool decodes = trace.num_tokens == trace.num_sequences + trace.num_drafts;
  parts_[!decodes ? kMixed : trace.num_sequences == batch_ ? kWhole : kFewer].add(trace);
  if (now < until_) return changed_.notify_all();
  closed_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return !closed_; });
}

Result<std::unique_ptr<DraftRacer>> DraftRacer::make(LoadedModel& loaded, std::int32_t batch, const DraftChoice& drafts,
                                                     bool graphs) {
  ModelExecutorOptions pools;
  pools.max_length_tokens = std::min<std::int64_t>(kLongestTokens, loaded.model->config().max_position_embeddings);
  pools.max_sequences = pools.num_state_slots = batch;
  pools.num_context_blocks = static_cast<std::int32_t>(batch * num_context_blocks(pools.max_length_tokens));
  pools.num_window_blocks =
      static_cast<std::int32_t>(batch * (num_window_blocks(1 + kMaxDraft) + 1) + num_window_blocks(512) + batch);
  pools.max_proposals = drafts.num_drafts;
  pools.capture = graphs;
  pools.weights_fingerprint = loaded.weights_fingerprint;
  FATHOM_ASSIGN_OR_RETURN(auto executor, ModelExecutor::make(*loaded.model, pools));
  EngineOptions options;
  options.max_running = batch;
  options.max_queued_requests = 1 << 20;
  options.max_queued_tokens = 1 << 30;
  options.max_pending_deltas = 1 << 20;
  options.prefix_cache = false;
  options.num_drafts = drafts.num_drafts;
  options.adaptive_drafts = drafts.adaptive;
  options.eos_id = loaded.model->config().eos_token_id;
  std::unique_ptr<DraftRacer> made(new DraftRacer(batch));
  made->name_ = drafts.adaptive ? "adaptive" : std::to_string(drafts.num_drafts);
  options.on_step = [gate = made->gate_.get()](const StepTrace& trace) { gate->see(trace); };
  FATHOM_ASSIGN_OR_RETURN(made->engine_, Engine::make(options, std::move(executor), nullptr));
  return made;
}

std::int64_t DraftRacer::num_finished() const {
  const auto finished = engine_->stats().choices_finished;
  return std::accumulate(finished.begin(), finished.end(), std::int64_t{0});
}

Status DraftRacer::start(const std::vector<std::vector<TokenId>>& prompts, const DraftWork& work) {
  before_ = engine_->stats();
  num_finished_before_ = num_finished();
  streams_.clear();
  gate_->begin_run();
  for (std::int64_t i = 0; i < work.num_answers; ++i) {
    Request request;
    request.prompt = prompts[static_cast<std::size_t>(i) % prompts.size()];
    request.sampling.temperature = 0.0f;
    request.max_tokens = work.answer_tokens;
    FATHOM_ASSIGN_OR_RETURN(auto stream, engine_->submit(std::move(request)));
    streams_.push_back(std::move(stream));
  }
  // A failed engine ends them all; finish() says why.
  while (!gate_->wait_until_closed(kLook) && num_finished() == num_finished_before_) {
  }
  return {};
}

bool DraftRacer::advance(std::chrono::microseconds time) {
  gate_->open(time);
  while (!gate_->wait_until_closed(kLook)) {
    if (num_finished() - num_finished_before_ < std::ssize(streams_)) continue;
    gate_->stay_open();
    // The last answer is given within its step.
    gate_->wait_until_seen(engine_->stats().num_steps - before_.num_steps);
    return true;
  }
  return false;
}

Status DraftRacer::finish(bool counts) {
  std::int64_t num_tokens = 0;
  for (const auto& stream : streams_) {
    while (!stream->finished()) {
      for (const Delta& delta : stream->wait(std::chrono::milliseconds(1000))) {
        num_tokens += static_cast<std::int64_t>(delta.tokens.size());
        if (delta.finish && delta.finish->reason == FinishReason::kError) return delta.finish->error;
      }
    }
  }
  const EngineStats after = engine_->stats();
  num_steps_ = after.num_steps - before_.num_steps;
  num_first_ = after.first_use_steps - before_.first_use_steps;
  if (!counts) return {};
  num_measured_first_ += num_first_;
  const auto drafted = static_cast<double>(after.drafted_tokens - before_.drafted_tokens);
  const auto accepted = static_cast<double>(after.accepted_tokens - before_.accepted_tokens);
  const auto verified = static_cast<double>(after.draft_steps - before_.draft_steps);
  const double seconds = run_seconds();
  figures_.push_back({static_cast<double>(num_tokens) / seconds, static_cast<double>(num_steps_) / seconds,
                      drafted > 0 ? accepted / drafted : 0, verified > 0 ? 1 + accepted / verified : 1});
  return {};
}

double DraftRacer::middle(double DraftRunFigures::* field) const {
  std::vector<double> values;
  for (const DraftRunFigures& one : figures_) values.push_back(one.*field);
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

bool DraftRacer::is_steady() const {
  return static_cast<double>(num_first_) <= kFewFirst * static_cast<double>(num_steps_);
}

Status race(std::span<DraftRacer* const> racers, std::size_t first, const std::vector<std::vector<TokenId>>& prompts,
            const DraftWork& work, bool counts) {
  for (DraftRacer* racer : racers) FATHOM_RETURN_IF_ERROR(racer->start(prompts, work));
  std::vector<DraftRacer*> running;
  for (std::size_t i = 0; i < racers.size(); ++i) running.push_back(racers[(first + i) % racers.size()]);
  std::mt19937_64 order(first);
  while (!running.empty()) {
    std::erase_if(running, [](DraftRacer* racer) { return racer->advance(kTurn); });
    // Nobody comes behind the same one always: what a turn leaves in the caches would be somebody's gain or loss.
    std::shuffle(running.begin(), running.end(), order);
  }
  for (DraftRacer* racer : racers) FATHOM_RETURN_IF_ERROR(racer->finish(counts));
  return {};
}

RatioInterval interval_of(std::vector<double> ratios) {
  std::sort(ratios.begin(), ratios.end());
  const std::size_t count = ratios.size();
  RatioInterval found{(ratios[(count - 1) / 2] + ratios[count / 2]) / 2, 0, std::numeric_limits<double>::max()};
  // The true median lies below the k-th smallest as often as fewer than k of `count` coins show heads.
  double chance = std::pow(0.5, static_cast<double>(count)), below = chance;
  for (std::size_t k = 1; 2 * k <= count && below <= 0.025; ++k) {
    found.least = ratios[k - 1];
    found.most = ratios[count - k];
    chance *= static_cast<double>(count - k + 1) / static_cast<double>(k);
    below += chance;
  }
  return found;
}

RatioInterval ratio_of(const DraftRacer& a, const DraftRacer& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(a.figures().size(), b.figures().size()); ++i) {
    ratios.push_back(a.figures()[i].tokens_per_s / b.figures()[i].tokens_per_s);
  }
  return interval_of(std::move(ratios));
}

}  // namespace fathom::app
