// One generation request between the engine and the socket.
//
// An Answer submits the prompts, takes what their streams give, hands it to the renderer of the API in question, and
// writes the result. It runs on one worker at a time. Where the reader is slow it leaves the deltas with the engine,
// which then pauses the request; where the client leaves it cancels. A streamed reply begins with the first token (or
// the first keep-alive comment), so that what fails before has its true status.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/server_context.h"

namespace fathom {

// Turns deltas into one API's form. Used by one thread at a time.
class AnswerRenderer {
 public:
  virtual ~AnswerRenderer() = default;

  // The answer's own id, or empty where its API has none.
  virtual std::string id() const { return {}; }

  // A delta of prompt `prompt`. When streaming, events are appended to *sse; else it is null and the renderer collects.
  virtual void on_delta(std::size_t prompt, const Delta& delta, std::string* sse) = 0;
  // Every choice of every prompt has finished.
  virtual void on_end(std::string* sse) = 0;
  // The whole reply, after on_end(nullptr).
  virtual std::string whole() = 0;

  virtual std::string keep_alive() { return ": keep-alive\n\n"; }
  // An error after the stream has begun; the stream ends with it.
  virtual std::string error_event(const ApiError& error, std::string_view request_id);
};

struct AnswerJob {
  std::vector<Request> requests;  // one per prompt
  std::unique_ptr<AnswerRenderer> renderer;
  bool stream = false;
};

class Answer : public std::enable_shared_from_this<Answer> {
 public:
  // Takes the request over: admission by key, submission, everything up to the log line.
  static void begin(RouteCall call, AnswerJob job);

  Answer(RouteCall call, AnswerJob job);
  ~Answer();

  // There may be something to do. Any thread; quick.
  void schedule();
  // Called a few times a second.
  void tick();
  RequestRecord record() const;

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  void run_once();
  // Submits prompts while fewer than the bound are with the engine.
  void submit_more();
  void take(std::size_t prompt);
  void note_finish(const Finish& finish);
  void note_tokens(std::size_t choice, std::size_t num_tokens);
  // Cancels what is left. The client hears of it from close(), after the books and the key's limits.
  void fail(ApiError error);
  void flush(std::string data);
  void leave();
  void close();

  RouteCall call_;
  AnswerJob job_;
  std::vector<std::unique_ptr<Stream>> streams_;  // by prompt; null: not submitted, or done with
  std::size_t num_choices_ = 0;                   // of each prompt
  std::vector<Clock::time_point> last_token_;     // by prompt and choice
  std::size_t next_prompt_ = 0;
  std::size_t num_outstanding_ = 0;
  bool started_ = false;             // the reply's head is out
  std::optional<ApiError> failure_;  // what the client is told when all streams have ended; the rest is dropped
  bool left_ = false;                // the client has gone
  bool closed_ = false;
  int num_finished_choices_ = 0;
  std::atomic<int> scheduled_{0};
  std::atomic<std::int64_t> last_write_ms_{0};
  std::atomic<bool> wants_keep_alive_{false};

  mutable std::mutex mutex_;
  RequestRecord record_;
};

// Newest first: what runs, then what has finished.
std::vector<RequestRecord> request_records(ServerContext& server);
// Whose business a record is: one's own, or all when there are no keys.
bool may_see(const RouteCall& call, const RequestRecord& record);
// The newest that goes by `id`, its x-request-id or its answer's own, and that the caller may see; else replies 404 and
// gives null.
const RequestRecord* find_record(const RouteCall& call, const std::vector<RequestRecord>& records, std::string_view id);

}  // namespace fathom
