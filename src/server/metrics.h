// What /metrics says: one table of names, with the aliases that tools made for vLLM read. Only real values: a row is
// in the table because something counts it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/http/http_server.h"

namespace fathom {

// Counts of observations at or below each bound, Prometheus' way. Any thread.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds);
  void observe(double value);

  struct Snapshot {
    std::vector<double> bounds;
    std::vector<std::uint64_t> cumulative;  // one more than bounds: the last is all
    double sum = 0;
  };
  Snapshot snapshot() const;

 private:
  std::vector<double> bounds_;
  std::vector<std::atomic<std::uint64_t>> counts_;
  std::atomic<double> sum_{0};
};

// What the server itself counts. Any thread.
struct ServerMetrics {
  Histogram time_to_first_token_seconds;
  Histogram inter_token_seconds;
  Histogram request_seconds;
  Histogram queue_seconds;
  Histogram prompt_tokens;
  Histogram generation_tokens;
  std::atomic<std::int64_t> num_requests{0};       // of any route
  std::atomic<std::int64_t> num_client_errors{0};  // 4xx
  std::atomic<std::int64_t> num_refused{0};        // 429 and 503
  std::atomic<std::int64_t> num_clients_left{0};   // before their answer was whole
  std::atomic<std::int64_t> reasoning_tokens{0};
  std::atomic<double> workers_busy_us{0};  // brought up to date before it is shown

  ServerMetrics();
};

// The text format 0.0.4. `engine` is null while loading: then only the server's own rows appear.
std::string render_metrics(const ServerMetrics& server, const HttpServerCounts& http, const EngineStats* engine,
                           bool healthy, const std::string& model_name, const std::string& version);

}  // namespace fathom
