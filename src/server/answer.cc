#include "server/answer.h"

#include <algorithm>

#include "base/log.h"

namespace fathom {
namespace {

constexpr std::size_t kMaxFinishedRecords = 1024;

std::int64_t ms_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start).count();
}

std::string format_ms(std::int64_t us) {
  const std::int64_t tenths = us / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10);
}

// Never text of the prompt or the answer.
std::string log_line(const RequestRecord& r) {
  const RequestTimes& t = r.times;
  std::string line = "request id=" + r.id + " key=" + r.key_label + " route=" + r.route;
  line += " prompt_tokens=" + std::to_string(r.usage.prompt_tokens);
  line += " cached_tokens=" + std::to_string(r.usage.cached_tokens);
  line += " completion_tokens=" + std::to_string(r.usage.completion_tokens);
  line += " reasoning_tokens=" + std::to_string(r.usage.reasoning_tokens);
  if (t.admitted_us > 0) line += " queue_ms=" + format_ms(t.admitted_us - t.submitted_us);
  if (t.first_token_us > 0) {
    line += " ttft_ms=" + format_ms(t.first_token_us - t.submitted_us);
    const std::int64_t per_choice = r.usage.completion_tokens / std::max(1, r.num_choices);
    if (per_choice > 1) line += " itl_ms=" + format_ms((t.finished_us - t.first_token_us) / (per_choice - 1));
  }
  line += " total_ms=" + format_ms(t.finished_us - t.submitted_us);
  line += " stall_ms=" + format_ms(t.prefill_stall_us);
  line += " reason=" + (r.reason.empty() ? std::string("none") : r.reason);
  return line;
}

// What the client is told when a choice did not end by itself.
std::optional<ApiError> failure_of(const Finish& finish) {
  switch (finish.reason) {
    case FinishReason::kTimeout:
      return ApiError{408, "the request took longer than it may, and was ended", {}, "timeout"};
    case FinishReason::kShutdown: return not_available("the server is shutting down");
    case FinishReason::kCancelled: return not_available("the request was cancelled on the server");
    case FinishReason::kError: {
      ApiError error = error_of(finish.error);
      if (error.status == 400) error.status = 422;  // the request was fine, its constraint found no way on
      return error;
    }
    default: return std::nullopt;
  }
}

}  // namespace

std::string AnswerRenderer::error_event(const ApiError& error, std::string_view request_id) {
  return "data: " + error_json(error, Dialect::kOpenAi, request_id) + "\n\n";
}

void Answer::begin(RouteCall call, AnswerJob job) {
  ServerContext& server = *call.server;
  if (auto refused = server.keys.admit(call.key_index, server.now_us())) {
    call.reply_error(*refused);
    return;
  }
  const auto answer = std::make_shared<Answer>(std::move(call), std::move(job));
  {
    const std::lock_guard lock(server.mutex);
    server.answers.emplace(answer.get(), answer);
  }
  const auto wake = [weak = std::weak_ptr(answer)] {
    if (const auto alive = weak.lock()) alive->schedule();
  };
  answer->call_.exchange->on_gone(wake);
  answer->call_.exchange->on_drained(wake);
  answer->schedule();
}

Answer::Answer(RouteCall call, AnswerJob job) : call_(std::move(call)), job_(std::move(job)) {
  streams_.resize(job_.requests.size());
  num_choices_ = job_.requests.empty() ? 0 : static_cast<std::size_t>(job_.requests.front().num_choices);
  last_token_.resize(job_.requests.size() * num_choices_);
  const ServerContext& server = *call_.server;
  record_.id = call_.id;
  record_.response_id = job_.renderer->id();
  record_.key_label = server.keys.label(call_.key_index);
  record_.route = call_.request().path;
  record_.created_unix = unix_seconds();
  record_.num_choices = 0;
  for (auto& request : job_.requests) {
    record_.num_choices += request.num_choices;
    request.key = record_.key_label;
    if (!server.options.share_prefix_cache) request.cache_salt = record_.key_label + "\n" + request.cache_salt;
    if (request.timeout_us == 0) request.timeout_us = server.options.request_timeout_us;
  }
  last_write_ms_ = ms_since(server.start);
}

Answer::~Answer() {
  if (!closed_) call_.server->keys.release(call_.key_index);
}

RequestRecord Answer::record() const {
  const std::lock_guard lock(mutex_);
  return record_;
}

void Answer::schedule() {
  if (scheduled_.fetch_add(1) > 0) return;
  call_.server->workers.post([self = shared_from_this()] { self->run(); });
}

void Answer::tick() {
  if (!job_.stream) return;
  if (ms_since(call_.server->start) - last_write_ms_ < call_.server->options.keep_alive_ms) return;
  wants_keep_alive_ = true;
  schedule();
}

void Answer::run() {
  // Whoever raised the count above zero posted this; what is raised meanwhile is done here.
  int seen = scheduled_.load();
  while (true) {
    run_once();
    if (scheduled_.compare_exchange_strong(seen, 0)) return;
  }
}

void Answer::run_once() {
  if (closed_) return;
  if (!left_ && call_.exchange->gone()) leave();
  if (!left_ && !failure_) submit_more();
  const bool reader_is_slow =
      job_.stream && !left_ && !failure_ && call_.exchange->num_unsent_bytes() > call_.server->options.max_unsent_bytes;
  if (reader_is_slow) return;  // on_drained comes back
  for (std::size_t prompt = 0; prompt < streams_.size(); ++prompt) {
    if (streams_[prompt] != nullptr) take(prompt);
  }
  if (!left_ && !failure_) submit_more();
  const bool all_done = num_outstanding_ == 0 && (left_ || failure_ || next_prompt_ == job_.requests.size());
  if (all_done) return close();
  if (wants_keep_alive_.exchange(false) && job_.stream && !left_ && !failure_) flush(job_.renderer->keep_alive());
}

void Answer::submit_more() {
  const auto bound = static_cast<std::size_t>(call_.server->options.max_outstanding_prompts);
  while (next_prompt_ < job_.requests.size() && num_outstanding_ < bound) {
    Request request = job_.requests[next_prompt_];
    request.on_ready = [weak = weak_from_this()] {
      if (const auto alive = weak.lock()) alive->schedule();
    };
    auto submitted = call_.model->engine->submit(std::move(request));
    if (!submitted.ok()) {
      // Of a list, prompts that find the queue full wait for the others of the list.
      if (submitted.status().code() == StatusCode::kResourceExhausted && num_outstanding_ > 0) return;
      return fail(error_of(submitted.status()));
    }
    streams_[next_prompt_] = std::move(*submitted);
    {
      const std::lock_guard lock(mutex_);
      record_.engine_ids.push_back(streams_[next_prompt_]->id().value);
      record_.engine_id = record_.engine_ids.front();
    }
    job_.requests[next_prompt_].prompt = {};
    ++next_prompt_;
    ++num_outstanding_;
  }
}

void Answer::note_tokens(std::size_t choice, std::size_t num_tokens) {
  const auto now = Clock::now();
  Clock::time_point& last = last_token_[choice];
  if (last != Clock::time_point{}) {
    const double seconds = std::chrono::duration<double>(now - last).count() / static_cast<double>(num_tokens);
    for (std::size_t i = 0; i < num_tokens; ++i) call_.server->metrics.inter_token_seconds.observe(seconds);
  }
  last = now;
}

void Answer::take(std::size_t prompt) {
  Stream& stream = *streams_[prompt];
  std::string sse;
  for (const Delta& delta : stream.take()) {
    if (!delta.tokens.empty()) {
      note_tokens(prompt * num_choices_ + static_cast<std::size_t>(delta.choice), delta.tokens.size());
    }
    if (delta.finish) note_finish(*delta.finish);
    if (left_ || failure_) continue;
    if (const auto error = delta.finish ? failure_of(*delta.finish) : std::nullopt) {
      flush(std::move(sse));
      sse.clear();
      fail(*error);
      continue;
    }
    job_.renderer->on_delta(prompt, delta, job_.stream ? &sse : nullptr);
  }
  flush(std::move(sse));
  if (stream.finished()) {
    streams_[prompt].reset();
    --num_outstanding_;
  }
}

void Answer::note_finish(const Finish& finish) {
  ServerMetrics& metrics = call_.server->metrics;
  const RequestTimes& times = finish.times;
  const auto seconds = [](std::int64_t us) { return static_cast<double>(us) / 1e6; };
  if (times.first_token_us > 0) {
    metrics.time_to_first_token_seconds.observe(seconds(times.first_token_us - times.submitted_us));
  }
  if (times.admitted_us > 0) metrics.queue_seconds.observe(seconds(times.admitted_us - times.submitted_us));
  metrics.request_seconds.observe(seconds(times.finished_us - times.submitted_us));
  metrics.prompt_tokens.observe(static_cast<double>(finish.usage.prompt_tokens));
  metrics.generation_tokens.observe(static_cast<double>(finish.usage.completion_tokens));
  metrics.reasoning_tokens += finish.usage.reasoning_tokens;

  const std::lock_guard lock(mutex_);
  Usage& usage = record_.usage;
  if (num_finished_choices_++ == 0) {
    record_.reason = std::string(finish_reason_name(finish.reason));
    record_.times = times;
    usage = finish.usage;
    return;
  }
  if (job_.requests.size() > 1) usage.prompt_tokens += finish.usage.prompt_tokens;
  usage.completion_tokens += finish.usage.completion_tokens;
  usage.reasoning_tokens += finish.usage.reasoning_tokens;
  usage.drafted_tokens += finish.usage.drafted_tokens;
  usage.accepted_tokens += finish.usage.accepted_tokens;
  usage.num_preemptions += finish.usage.num_preemptions;
  record_.times.finished_us = std::max(record_.times.finished_us, times.finished_us);
}

void Answer::fail(ApiError error) {
  failure_ = std::move(error);
  for (const auto& stream : streams_) {
    if (stream != nullptr) stream->cancel();
  }
  const std::lock_guard lock(mutex_);
  record_.reason = "refused";
}

void Answer::flush(std::string data) {
  if (data.empty() || left_ || failure_) return;
  if (!started_) {
    started_ = true;
    call_.exchange->start_stream(200, "text/event-stream; charset=utf-8");
  }
  call_.exchange->write(data);
  last_write_ms_ = ms_since(call_.server->start);
}

void Answer::leave() {
  left_ = true;
  for (const auto& stream : streams_) {
    if (stream != nullptr) stream->cancel();
  }
  if (!failure_) ++call_.server->metrics.num_clients_left;
}

void Answer::close() {
  closed_ = true;
  // The books first: who has read the reply may ask for them.
  ServerContext& server = *call_.server;
  RequestRecord finished;
  {
    const std::lock_guard lock(mutex_);
    record_.state = left_ ? "left" : failure_ ? "failed" : "finished";
    if (left_) record_.reason = "client_left";
    finished = record_;
  }
  if (server.options.log_requests) log_info(log_line(finished));
  server.keys.release(call_.key_index);
  {
    const std::lock_guard lock(server.mutex);
    server.finished.push_back(std::move(finished));
    if (server.finished.size() > kMaxFinishedRecords) server.finished.pop_front();
    server.answers.erase(this);
  }
  if (left_) return;
  if (failure_) {
    if (!started_) return call_.reply_error(*failure_);
    call_.exchange->write(job_.renderer->error_event(*failure_, call_.id));
    call_.exchange->end();
  } else if (job_.stream) {
    std::string sse;
    job_.renderer->on_end(&sse);
    flush(std::move(sse));
    call_.exchange->end();
  } else {
    job_.renderer->on_end(nullptr);
    call_.reply_json(job_.renderer->whole());
  }
}

std::vector<RequestRecord> request_records(ServerContext& server) {
  std::vector<std::shared_ptr<Answer>> running;
  std::vector<RequestRecord> out;
  {
    const std::lock_guard lock(server.mutex);
    for (const auto& [key, answer] : server.answers) running.push_back(answer);
    out.assign(server.finished.rbegin(), server.finished.rend());
  }
  std::vector<RequestRecord> now;
  for (const auto& answer : running) now.push_back(answer->record());
  out.insert(out.begin(), now.begin(), now.end());
  return out;
}

bool may_see(const RouteCall& call, const RequestRecord& record) {
  return call.server->keys.open_to_all() || record.key_label == call.server->keys.label(call.key_index);
}

const RequestRecord* find_record(const RouteCall& call, const std::vector<RequestRecord>& records,
                                 std::string_view id) {
  const auto found = std::find_if(records.begin(), records.end(), [&](const RequestRecord& record) {
    return !id.empty() && (record.id == id || record.response_id == id) && may_see(call, record);
  });
  if (found != records.end()) return &*found;
  call.reply_error({404,
                    "no request '" + std::string(id) +
                        "' among those running and the last 1024; they go by the x-request-id header of their answer, "
                        "or by the answer's own id",
                    {},
                    "not_found"});
  return nullptr;
}

}  // namespace fathom
