#include "engine/engine_thread.h"

#include <algorithm>
#include <bit>
#include <random>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/hash.h"

namespace fathom::engine_detail {
namespace {

constexpr std::int32_t kMaxPriority = 8;

SchedulerOptions scheduler_options(const EngineOptions& options) {
  SchedulerOptions result;
  result.prefill_chunk_tokens = options.prefill_chunk_tokens;
  result.prefill_chunk_shared_tokens = options.prefill_chunk_shared_tokens;
  result.prefill_chunk_alone_tokens = options.prefill_chunk_alone_tokens;
  result.max_running = options.max_running;
  result.ageing_steps = options.ageing_steps;
  result.prefix_cache = options.prefix_cache;
  result.reuse_decoded = options.reuse_decoded;
  return result;
}

}  // namespace

EngineThread::EngineThread(const EngineOptions& options, std::unique_ptr<Executor> executor,
                           std::shared_ptr<const Tokenizer> tokenizer)
    : options_(options),
      executor_(std::move(executor)),
      limits_(executor_->limits()),
      tokenizer_(std::move(tokenizer)),
      clock_(options.clock != nullptr ? options.clock : &steady_clock_),
      ring_(options.num_events),
      scheduler_(scheduler_options(options), limits_),
      scheduler_log_(options.scheduler_log, scheduler_options(options), limits_) {
  if (scheduler_log_) scheduler_.record_to(&scheduler_log_);
  eos_id_ = options_.eos_id >= 0 ? options_.eos_id : tokenizer_ != nullptr ? tokenizer_->eos_id() : -1;
  options_.num_drafts = std::min({options_.num_drafts, limits_.max_proposals, kMaxDraft});
  if (options_.seed == 0) options_.seed = std::random_device{}() * 0x100000001ull + std::random_device{}();
  thread_ = std::thread([this] { loop(); });
}

EngineThread::~EngineThread() {
  shutdown();
  thread_.join();
}

Result<std::unique_ptr<Stream>> EngineThread::submit(Request request) {
  Status status = check_request(request, options_, limits_, scheduler_.max_sequence_tokens(), tokenizer_ != nullptr);
  const RequestId id(next_request_.fetch_add(1));
  Command command{Command::Kind::kSubmit, id, nullptr, nullptr, now_us()};
  command.stream = std::make_shared<StreamState>(id, request.num_choices, std::move(request.on_ready), mailbox_);
  const std::shared_ptr<StreamState> stream = command.stream;
  command.request = std::make_unique<Request>(std::move(request));
  if (status.ok()) {
    count_open_requests(1);
    status = mailbox_->submit(std::move(command), options_.max_queued_requests, options_.max_queued_tokens);
    if (!status.ok()) count_open_requests(-1);
  }
  if (!status.ok()) {
    num_refused_.fetch_add(1);
    return status;
  }
  num_submitted_.fetch_add(1);
  return std::make_unique<Stream>(stream);
}

EngineStats EngineThread::stats() const {
  EngineStats stats;
  {
    const std::lock_guard lock(mutex_);
    stats = stats_;
  }
  stats.queued_tokens = mailbox_->queued_tokens();
  stats.requests_submitted = num_submitted_.load();
  stats.requests_refused = num_refused_.load();
  return stats;
}

EngineHealth EngineThread::health() const {
  EngineHealth health;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return {false, failure_.message(), 0};
  }
  if (loop_ended_.load()) return {false, "the engine has stopped", 0};
  const std::int64_t started = step_started_us_.load();
  if (started < 0) return health;
  health.step_running_us = std::max<std::int64_t>(0, now_us() - started);
  if (options_.step_timeout_us > 0 && health.step_running_us > options_.step_timeout_us) {
    health.ok = false;
    health.reason = "step " + std::to_string(step_running_.load()) + " has run for " +
                    std::to_string(health.step_running_us / 1000) + " ms, expected at most " +
                    std::to_string(options_.step_timeout_us / 1000) + " ms";
  }
  return health;
}

void EngineThread::flush_prefix_cache() { mailbox_->post({Command::Kind::kFlushCache, {}, nullptr, nullptr, 0}); }

bool EngineThread::drain(std::chrono::milliseconds timeout) {
  mailbox_->close(unavailable("the server is shutting down: no new requests"));
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, timeout, [this] { return num_open_requests_ == 0; });
}

void EngineThread::count_open_requests(std::int64_t change) {
  const std::lock_guard lock(mutex_);
  num_open_requests_ += change;
  if (num_open_requests_ == 0) idle_.notify_all();
}

void EngineThread::shutdown() {
  mailbox_->close(unavailable("the server is shutting down: no new requests"));
  mailbox_->post({Command::Kind::kShutdown, {}, nullptr, nullptr, 0});
}

Status EngineThread::start_capture(std::int32_t num_steps) {
  if (num_steps < 1 || num_steps > kMaxCapturedSteps) {
    return invalid_argument("num_steps: found " + std::to_string(num_steps) + ", expected 1 to " +
                            std::to_string(kMaxCapturedSteps));
  }
  const std::lock_guard lock(mutex_);
  if (capture_steps_.load() > 0) {
    return unavailable("a capture is running: " + std::to_string(captured_.size()) + " steps taken, " +
                       std::to_string(capture_steps_.load()) + " to go");
  }
  captured_.clear();
  capture_steps_.store(num_steps);
  return {};
}

std::vector<TracedStep> EngineThread::stop_capture() {
  const std::lock_guard lock(mutex_);
  capture_steps_.store(0);
  return std::exchange(captured_, {});
}

void EngineThread::loop() {
  bool progress = false;
  while (!stopping_) {
    std::chrono::microseconds patience{0};
    if (!progress) {
      // Nothing can run: all wait for slow readers, or nothing is there. Time-outs are then looked at 20 times a
      // second.
      const bool timed = std::any_of(requests_.begin(), requests_.end(),
                                     [](const auto& item) { return item.second->deadline_us > 0; });
      patience = timed ? std::chrono::milliseconds(50) : std::chrono::microseconds(-1);
    }
    std::vector<Command> commands = mailbox_->take(patience);
    if (patience.count() != 0) last_step_end_us_ = -1;
    for (Command& command : commands) handle(command);
    check_deadlines();
    progress = fault_.ok() && !stopping_ && run_step();
    // A turn without a step may still have brought something: look at the mailbox once more before sleeping.
    progress = progress || !commands.empty();
    ended_.clear();
    publish_events();
    publish_stats();
    // Only now: what drain() waits for includes the numbers.
    if (num_ended_ > 0) count_open_requests(-std::exchange(num_ended_, 0));
  }
  loop_ended_.store(true);
}

void EngineThread::handle(Command& command) {
  switch (command.kind) {
    case Command::Kind::kSubmit: start(command); return;
    case Command::Kind::kFlushCache: scheduler_.flush_prefix_cache(); return;
    case Command::Kind::kMasksDone: return;  // taken before the next plan
    case Command::Kind::kShutdown:
      end_all(FinishReason::kShutdown, unavailable("the server is shutting down"));
      stopping_ = true;
      return;
    case Command::Kind::kCancel:
    case Command::Kind::kContinue: break;
  }
  const auto found = requests_.find(command.id);
  if (found == requests_.end()) return;
  if (command.kind == Command::Kind::kCancel) {
    end_request(*found->second, FinishReason::kCancelled, {});
    return;
  }
  for (const auto& choice : found->second->choices) {
    if (!choice->finished) scheduler_.set_paused(choice->sequence, false);
  }
}

void EngineThread::start(Command& command) {
  auto active = std::make_unique<ActiveRequest>();
  active->id = command.id;
  active->request = std::move(*command.request);
  active->stream = std::move(command.stream);
  if (active->request.timeout_us > 0) active->deadline_us = command.submitted_us + active->request.timeout_us;
  const std::uint64_t seed =
      active->request.sampling.seed.value_or(mix_hash(options_.seed, static_cast<std::uint64_t>(command.id.value)));
  start_request(std::move(active), seed, 0, command.submitted_us);
}

void EngineThread::start_request(std::unique_ptr<ActiveRequest> owned, std::uint64_t seed, std::int32_t first_choice,
                                 std::int64_t submitted_us) {
  ActiveRequest& active = *owned;
  const Request& request = active.request;
  requests_.emplace(active.id, std::move(owned));
  active.num_open = static_cast<std::size_t>(request.num_choices);
  for (std::int32_t i = 0; i < request.num_choices; ++i) {
    auto choice = std::make_unique<Choice>(request, tokenizer_.get(), eos_id_);
    choice->request = &active;
    choice->index = first_choice + i;
    choice->sequence = SequenceId(next_sequence_++);
    if (request.make_constraint) choice->constraint = request.make_constraint();
    choice->is_constrained = choice->constraint != nullptr;
    choice->usage.prompt_tokens = static_cast<std::int64_t>(request.prompt.size());
    choice->usage.seed = seed;
    choice->times.submitted_us = submitted_us;
    SampleSpec& spec = choice->spec;
    const SamplingOptions& sampling = request.sampling;
    spec.temperature = sampling.temperature;
    spec.top_p = sampling.top_p;
    spec.top_k = std::max(sampling.top_k, 0);
    spec.min_p = sampling.min_p;
    spec.repetition_penalty = sampling.repetition_penalty;
    spec.frequency_penalty = sampling.frequency_penalty;
    spec.presence_penalty = sampling.presence_penalty;
    spec.logit_bias = sampling.logit_bias;
    spec.seed = seed;
    spec.choice = static_cast<std::uint32_t>(choice->index);
    spec.num_logprobs = request.num_logprobs;
    if (options_.check_prefix_cache) spec.num_logprobs = std::max(spec.num_logprobs, 0);

    SequenceSpec sequence;
    sequence.id = choice->sequence;
    sequence.prompt = request.prompt;
    sequence.priority = std::clamp(request.priority, -kMaxPriority, kMaxPriority);
    sequence.key = request.key;
    sequence.cache_salt = request.cache_salt;
    sequence.use_prefix_cache = request.use_prefix_cache;
    sequence.prompt_logits = i == 0 && request.num_prompt_logprobs >= 0;
    // Choices share the prompt through the prefix cache: the first computes it.
    if (i > 0 && options_.prefix_cache && request.use_prefix_cache) sequence.wait_for = active.choices[0]->sequence;
    choices_.emplace(choice->sequence, choice.get());
    active.choices.push_back(std::move(choice));
    scheduler_.add(std::move(sequence));
    begin_masks(*active.choices.back());  // while the prompt is computed
  }
  collect_events(submitted_us);
  if (!fault_.ok()) end_request(active, FinishReason::kError, fault_);
}

void EngineThread::end_request(ActiveRequest& active, FinishReason reason, const Status& error) {
  for (const auto& choice : active.choices) {
    if (choice->finished) continue;
    Delta delta;
    choice->output.finish(delta);
    finish_choice(*choice, std::move(delta), reason, nullptr, error);
  }
}

void EngineThread::end_all(FinishReason reason, const Status& error) {
  std::vector<ActiveRequest*> all;
  for (const auto& [id, active] : requests_) all.push_back(active.get());
  std::sort(all.begin(), all.end(), [](const auto* a, const auto* b) { return a->id < b->id; });
  for (ActiveRequest* active : all) end_request(*active, reason, error);
}

void EngineThread::check_deadlines() {
  const std::int64_t now = now_us();
  std::vector<ActiveRequest*> late;
  for (const auto& [id, active] : requests_) {
    if (active->deadline_us > 0 && now >= active->deadline_us) late.push_back(active.get());
  }
  for (ActiveRequest* active : late) end_request(*active, FinishReason::kTimeout, {});
}

void EngineThread::send(ActiveRequest& active, Delta delta) {
  if (active.stream == nullptr) return;
  const std::size_t num_pending = active.stream->push(std::move(delta));
  if (num_pending < static_cast<std::size_t>(options_.max_pending_deltas) || active.num_open == 0) return;
  if (!active.stream->pause()) return;
  for (const auto& choice : active.choices) {
    if (!choice->finished) scheduler_.set_paused(choice->sequence, true);
  }
}

void EngineThread::finish_choice(Choice& choice, Delta delta, FinishReason reason, const OutputProcessor::Stop* stop,
                                 const Status& error) {
  ActiveRequest& active = *choice.request;
  choice.finished = true;
  --active.num_open;
  const SequenceState* state = scheduler_.find(choice.sequence);
  choice.usage.num_preemptions = state->num_preemptions;
  choice.usage.cached_tokens = state->cached_tokens;
  choice.usage.completion_tokens = choice.output.num_tokens();
  choice.usage.reasoning_tokens = choice.output.num_reasoning_tokens();
  choice.times.finished_us = now_us();
  const auto cause = std::max_element(choice.stalls_us.begin(), choice.stalls_us.end(),
                                      [](const auto& a, const auto& b) { return a.second < b.second; });
  if (cause != choice.stalls_us.end()) choice.times.stalled_by = cause->first;
  drop_masks(choice);
  scheduler_.finish(choice.sequence, reason == FinishReason::kCancelled);
  collect_events(choice.times.finished_us);
  // Before the reader hears of the end: whoever has the answer finds its whole time line, and itself in the statistics.
  publish_events();
  if (active.queued) {
    active.queued = false;
    if (active.stream != nullptr) mailbox_->left_queue(choice.usage.prompt_tokens);
  }
  const bool own_end = reason <= FinishReason::kLength;
  if (active.stream == nullptr) {
    if (own_end) finish_check(choice);
  } else {
    ++counts_.choices_finished[static_cast<std::size_t>(reason)];
    Finish finish;
    finish.reason = reason;
    if (stop != nullptr) {
      finish.stop_string = stop->stop_string;
      finish.stop_token = stop->stop_token;
    }
    finish.error = error;
    finish.usage = choice.usage;
    finish.times = choice.times;
    delta.choice = choice.index;
    delta.cached_tokens = choice.usage.cached_tokens;
    delta.finish = std::move(finish);
    if (options_.check_prefix_cache && own_end &&
        (choice.usage.cached_tokens > 0 || choice.usage.num_preemptions > 0)) {
      start_check(choice);
    }
    publish_stats();
    send(active, std::move(delta));
  }
  choices_.erase(choice.sequence);
  if (active.num_open > 0) return;
  ++num_ended_;
  // The choice is still in use up the stack.
  const auto found = requests_.find(active.id);
  ended_.push_back(std::move(found->second));
  requests_.erase(found);
}

void EngineThread::start_check(const Choice& choice) {
  auto active = std::make_unique<ActiveRequest>();
  active->id = RequestId(next_request_.fetch_add(1));
  active->request = choice.request->request;
  active->request.use_prefix_cache = false;
  active->request.num_choices = 1;
  active->request.num_prompt_logprobs = -1;
  active->queued = false;
  active->expected = choice.drawn;
  count_open_requests(1);
  start_request(std::move(active), choice.usage.seed, choice.index, now_us());
}

void EngineThread::finish_check(const Choice& choice) {
  const std::vector<Drawn>& expected = choice.request->expected;
  ++counts_.prefix_checks;
  const bool same = std::equal(
      expected.begin(), expected.end(), choice.drawn.begin(), choice.drawn.end(), [](const Drawn& a, const Drawn& b) {
        return a.token == b.token && std::bit_cast<std::uint32_t>(a.logprob) == std::bit_cast<std::uint32_t>(b.logprob);
      });
  if (same) return;
  ++counts_.prefix_checks_failed;
  log_error("prefix cache check: an answer of " + std::to_string(expected.size()) +
            " tokens differs from its computation without the cache");
}

void EngineThread::collect_events(std::int64_t time_us) {
  for (EngineEvent& event : scheduler_.take_events()) {
    event.time_us = time_us;
    if (const auto found = choices_.find(event.sequence); found != choices_.end()) {
      event.request = found->second->request->id;
    }
    events_.push_back(event);
  }
}

void EngineThread::publish_events() {
  collect_events(now_us());
  if (events_.empty()) return;
  ring_.append(events_);
  events_.clear();
}

void EngineThread::publish_stats() {
  const SchedulerCounters& scheduled = scheduler_.counters();
  counts_.num_running = scheduled.num_running;
  counts_.num_waiting = scheduled.num_waiting;
  counts_.num_paused = scheduled.num_paused;
  counts_.context_blocks = scheduler_.context_pool().num_blocks();
  counts_.context_blocks_used = scheduler_.context_pool().num_held();
  counts_.context_blocks_cached = scheduler_.context_pool().num_cached();
  counts_.window_blocks = scheduler_.window_pool().num_blocks();
  counts_.window_blocks_used = scheduler_.window_pool().num_held();
  counts_.window_blocks_cached = scheduler_.window_pool().num_cached();
  counts_.resume_points = scheduler_.prefix_cache().num_resume_points();
  counts_.evicted_blocks = scheduler_.prefix_cache().evicted_blocks();
  counts_.evicted_resume_points = scheduler_.prefix_cache().evicted_resume_points();
  counts_.prompt_tokens = scheduled.admitted_tokens;
  counts_.cached_tokens = scheduled.cached_tokens;
  counts_.prefill_tokens = scheduled.prefill_rows;
  counts_.prefix_queries = scheduled.prefix_queries;
  counts_.prefix_hits = scheduled.prefix_hits;
  counts_.preemptions = scheduled.preemptions;
  if (const OpTimes* times = executor_->op_times(); times != nullptr) counts_.op_times = *times;
  if (const SegmentTimes* times = executor_->segment_times(); times != nullptr) counts_.segment_times = *times;
  const std::lock_guard lock(mutex_);
  stats_ = counts_;
}

void EngineThread::fail(const Status& error) {
  log_error("device fault: " + error.message() + "; all requests end, no new ones are taken");
  const Status seen = unavailable("device fault: " + error.message());
  {
    const std::lock_guard lock(mutex_);
    failure_ = seen;
  }
  mailbox_->close(seen);
  step_started_us_.store(-1);
  fault_ = seen;
  end_all(FinishReason::kError, seen);
}

}  // namespace fathom::engine_detail
