// What the routes share, and one request on its way through them.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/api_error.h"
#include "server/http/http_server.h"
#include "server/key_table.h"
#include "server/metrics.h"
#include "server/server_options.h"
#include "server/worker_pool.h"

namespace fathom {

class Answer;

std::int64_t unix_seconds();

// One answered (or being answered) generation request: what /v1/requests and the log line show. No text.
struct RequestRecord {
  std::string id;           // x-request-id
  std::string response_id;  // of the answer, as its API forms it: chatcmpl-, cmpl-, resp_, msg_; empty: none
  std::string key_label;
  std::string route;
  std::int64_t created_unix = 0;
  std::int64_t engine_id = -1;           // of the first prompt
  std::vector<std::int64_t> engine_ids;  // of all that were submitted, by prompt
  std::string state = "running";
  std::string reason;  // of the first choice
  int num_choices = 1;
  Usage usage;         // summed over choices
  RequestTimes times;  // of the first choice
};

struct ServerContext {
  explicit ServerContext(ServerOptions o)
      : options(std::move(o)),
        keys(options.keys),
        workers(options.num_workers),
        parsers(std::max(4, options.num_workers)),
        start(std::chrono::steady_clock::now()) {}

  const ServerOptions options;
  KeyTable keys;
  ServerMetrics metrics;
  WorkerPool workers;  // answers on their way out, quick routes
  WorkerPool parsers;  // bodies on their way in: parsing, rendering, tokenising, compiling grammars
  const std::chrono::steady_clock::time_point start;
  const std::int64_t start_unix = unix_seconds();

  std::shared_ptr<ServedModel> model() const {
    const std::lock_guard lock(mutex);
    return served;
  }
  std::int64_t now_us() const {
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start).count();
  }

  // Time inside tasks of all workers, and what it was when the running capture began.
  double workers_busy_us() const { return workers.busy_us() + parsers.busy_us(); }
  std::atomic<double> capture_workers_busy_us{0};
  std::atomic<bool> has_capture{false};  // begun and not yet taken

  const HttpServerCounts* http_counts = nullptr;  // set once, before the first request
  std::atomic<bool> draining{false};

  mutable std::mutex mutex;
  // Guarded by `mutex`.
  std::shared_ptr<ServedModel> served;  // null while loading
  double loaded_share = 0;              // 0 to 1
  std::string loading_what;
  std::string load_failure;                                            // loading ended with this
  std::unordered_map<const Answer*, std::shared_ptr<Answer>> answers;  // being answered
  std::deque<RequestRecord> finished;                                  // newest last, bounded
};

// One HTTP request with what its handler needs.
struct RouteCall {
  std::shared_ptr<HttpExchange> exchange;
  ServerContext* server = nullptr;
  std::shared_ptr<ServedModel> model;  // not null on routes that need it
  Dialect dialect = Dialect::kOpenAi;
  std::string id;             // x-request-id
  std::size_t key_index = 0;  // into the key table

  const HttpRequest& request() const { return exchange->request(); }
  void reply_json(std::string body) const;
  void reply_error(const ApiError& error) const;
};

// A fresh identifier: prefix + 24 hexadecimal digits.
std::string make_id(std::string_view prefix);

}  // namespace fathom
