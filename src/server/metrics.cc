#include "server/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <sstream>

#include "engine/request.h"

namespace fathom {
namespace {

const std::vector<double> kShortSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10};
const std::vector<double> kLongSeconds = {0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                          1,     2.5,   5,    10,    25,   60,  180,  600};
const std::vector<double> kTokens = {1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576};

struct Source {
  const ServerMetrics& server;
  const HttpServerCounts& http;
  const EngineStats* engine;  // not null where a row needs it
  bool healthy;
};

using prometheus::ClientMetric;
using prometheus::MetricType;

struct Labelled {
  std::string label, label_value;  // empty: none
  double value = 0;
};

struct Row {
  const char* name;   // ours, without "fathom_"; null: only the alias exists
  const char* alias;  // vLLM's, without "vllm:"; null: none
  const char* help;
  MetricType type;
  bool needs_engine;
  std::function<std::vector<Labelled>(const Source&)> values;  // counters and gauges
  const Histogram ServerMetrics::* histogram = nullptr;
};

Row engine_row(const char* name, const char* alias, MetricType type, const char* help,
               std::function<double(const EngineStats&)> value) {
  return {
      name, alias,
      help, type,
      true, [value = std::move(value)](const Source& s) { return std::vector<Labelled>{{"", "", value(*s.engine)}}; }};
}
Row server_row(const char* name, const char* alias, MetricType type, const char* help,
               std::function<double(const Source&)> value) {
  return {name,  alias,
          help,  type,
          false, [value = std::move(value)](const Source& s) { return std::vector<Labelled>{{"", "", value(s)}}; }};
}
Row histogram_row(const char* name, const char* alias, const char* help, const Histogram ServerMetrics::* histogram) {
  return {name, alias, help, MetricType::Histogram, false, {}, histogram};
}

double share(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

std::vector<Labelled> finished_by_reason(const Source& s) {
  std::vector<Labelled> out;
  for (std::size_t i = 0; i < s.engine->choices_finished.size(); ++i) {
    out.push_back({"finished_reason", std::string(finish_reason_name(static_cast<FinishReason>(i))),
                   static_cast<double>(s.engine->choices_finished[i])});
  }
  return out;
}

// In the three words that vLLM has for it.
std::vector<Labelled> finished_by_vllm_reason(const Source& s) {
  std::vector<Labelled> out = {
      {"finished_reason", "stop"}, {"finished_reason", "length"}, {"finished_reason", "abort"}};
  for (std::size_t i = 0; i < s.engine->choices_finished.size(); ++i) {
    std::size_t word = 2;
    switch (static_cast<FinishReason>(i)) {
      case FinishReason::kEos:
      case FinishReason::kStopToken:
      case FinishReason::kStopString: word = 0; break;
      case FinishReason::kLength: word = 1; break;
      default: break;
    }
    out[word].value += static_cast<double>(s.engine->choices_finished[i]);
  }
  return out;
}

// By operation; nothing of one that never ran here.
std::vector<Labelled> operation_seconds(const Source& s) {
  std::vector<Labelled> out;
  for (std::size_t i = 0; i < s.engine->op_times.num_calls.size(); ++i) {
    if (s.engine->op_times.num_calls[i] == 0) continue;
    out.push_back({"operation", std::string(op_name(static_cast<OpKind>(i))), s.engine->op_times.time_us[i] / 1e6});
  }
  return out;
}

std::vector<Labelled> operation_calls(const Source& s) {
  std::vector<Labelled> out;
  for (std::size_t i = 0; i < s.engine->op_times.num_calls.size(); ++i) {
    const auto calls = static_cast<double>(s.engine->op_times.num_calls[i]);
    if (calls > 0) out.push_back({"operation", std::string(op_name(static_cast<OpKind>(i))), calls});
  }
  return out;
}

// By segment of the card's captured steps, in their order; nothing of one that was never timed.
template <typename Value>
std::vector<Labelled> by_segment(const Source& s, Value&& value) {
  std::vector<Labelled> out;
  const auto add = [&](std::string name, const SegmentTimes::Segment& segment) {
    if (segment.num_samples > 0) out.push_back({"segment", std::move(name), value(segment)});
  };
  const SegmentTimes& times = s.engine->segment_times;
  add("embedding", times.embedding);
  for (std::size_t i = 0; i < times.layers.size(); ++i) add("layer_" + std::to_string(i), times.layers[i]);
  add("head", times.head);
  add("draft", times.draft);
  return out;
}
std::vector<Labelled> segment_seconds(const Source& s) {
  return by_segment(s, [](const SegmentTimes::Segment& segment) { return segment.time_us / 1e6; });
}
std::vector<Labelled> segment_samples(const Source& s) {
  return by_segment(s, [](const SegmentTimes::Segment& segment) { return static_cast<double>(segment.num_samples); });
}

std::vector<Labelled> phase_seconds(const Source& s) {
  const EngineStats& e = *s.engine;
  return {{"phase", "turn", e.turn_us / 1e6},       {"phase", "schedule", e.schedule_us / 1e6},
          {"phase", "prepare", e.prepare_us / 1e6}, {"phase", "forward", e.forward_us / 1e6},
          {"phase", "sample", e.sample_us / 1e6},   {"phase", "draft", e.draft_us / 1e6},
          {"phase", "commit", e.commit_us / 1e6},   {"phase", "detokenise", e.detokenise_us / 1e6}};
}

std::vector<Labelled> accepted_by_position(const Source& s) {
  std::vector<Labelled> out;
  for (std::size_t i = 0; i < s.engine->accepted_per_position.size(); ++i) {
    out.push_back({"position", std::to_string(i), static_cast<double>(s.engine->accepted_per_position[i])});
  }
  return out;
}

// THE table.
const std::vector<Row>& table() {
  constexpr auto kGauge = MetricType::Gauge;
  constexpr auto kCounter = MetricType::Counter;
  using E = const EngineStats&;
  using S = const Source&;
  static const std::vector<Row> rows = {
      server_row("healthy", nullptr, kGauge, "1 while /health answers 200", [](S s) { return s.healthy ? 1.0 : 0.0; }),
      engine_row("requests_running", "num_requests_running", kGauge, "Sequences that hold cache state",
                 [](E e) { return e.num_running; }),
      engine_row("requests_waiting", "num_requests_waiting", kGauge, "Sequences that wait for a place",
                 [](E e) { return e.num_waiting; }),
      engine_row("requests_paused", nullptr, kGauge, "Running sequences whose reader is slow",
                 [](E e) { return e.num_paused; }),
      engine_row("queued_prompt_tokens", nullptr, kGauge, "Prompt tokens of waiting sequences",
                 [](E e) { return static_cast<double>(e.queued_tokens); }),
      engine_row("cache_usage_ratio", "kv_cache_usage_perc", kGauge, "Context blocks in use, as a share of all",
                 [](E e) { return share(e.context_blocks_used, e.context_blocks); }),
      engine_row("context_blocks", nullptr, kGauge, "Context blocks of the pool", [](E e) { return e.context_blocks; }),
      engine_row("context_blocks_used", nullptr, kGauge, "Context blocks that sequences hold",
                 [](E e) { return e.context_blocks_used; }),
      engine_row("context_blocks_cached", nullptr, kGauge, "Context blocks that only the prefix cache holds",
                 [](E e) { return e.context_blocks_cached; }),
      engine_row("window_blocks", nullptr, kGauge, "Window blocks of the pool", [](E e) { return e.window_blocks; }),
      engine_row("window_blocks_used", nullptr, kGauge, "Window blocks that sequences hold",
                 [](E e) { return e.window_blocks_used; }),
      engine_row("resume_points", nullptr, kGauge, "Places where a cached prefix can be resumed",
                 [](E e) { return e.resume_points; }),
      engine_row("steps_total", nullptr, kCounter, "Engine steps",
                 [](E e) { return static_cast<double>(e.num_steps); }),
      engine_row("busy_seconds_total", nullptr, kCounter, "Time inside engine steps",
                 [](E e) { return e.busy_us / 1e6; }),
      {"step_phase_seconds_total", nullptr, "Engine time by what a step did", kCounter, true, phase_seconds},
      {"operation_seconds_total", nullptr, "Time of each operation in the forward passes", kCounter, true,
       operation_seconds},
      {"operation_calls_total", nullptr, "Calls of each operation", kCounter, true, operation_calls},
      {"card_segment_seconds_total", nullptr, "Time of the card in timed replays of captured steps, by segment",
       kCounter, true, segment_seconds},
      {"card_segment_samples_total", nullptr, "Timed replays, one in 32, of each segment", kCounter, true,
       segment_samples},
      server_row("worker_busy_seconds_total", nullptr, kCounter, "Time inside tasks of the HTTP workers",
                 [](S s) { return s.server.workers_busy_us.load() / 1e6; }),
      engine_row("requests_submitted_total", nullptr, kCounter, "Requests that the engine took",
                 [](E e) { return static_cast<double>(e.requests_submitted); }),
      engine_row("requests_refused_total", nullptr, kCounter, "Requests that the engine refused",
                 [](E e) { return static_cast<double>(e.requests_refused); }),
      {"choices_finished_total", nullptr, "Answers that ended, by reason", kCounter, true, finished_by_reason},
      {nullptr, "request_success_total", "Answers that ended, by reason", kCounter, true, finished_by_vllm_reason},
      engine_row("prompt_tokens_total", "prompt_tokens_total", kCounter, "Prompt tokens of admitted sequences",
                 [](E e) { return static_cast<double>(e.prompt_tokens); }),
      engine_row("prefill_tokens_total", nullptr, kCounter, "Rows computed for prompts",
                 [](E e) { return static_cast<double>(e.prefill_tokens); }),
      engine_row("generation_tokens_total", "generation_tokens_total", kCounter, "Tokens generated",
                 [](E e) { return static_cast<double>(e.generation_tokens); }),
      engine_row("prefix_queried_tokens_total", "prefix_cache_queries_total", kCounter,
                 "Prompt tokens looked up in the prefix cache",
                 [](E e) { return static_cast<double>(e.prompt_tokens); }),
      engine_row("prefix_cached_tokens_total", "prefix_cache_hits_total", kCounter,
                 "Prompt tokens found in the prefix cache", [](E e) { return static_cast<double>(e.cached_tokens); }),
      engine_row("prefix_lookups_total", nullptr, kCounter, "Lookups in the prefix cache",
                 [](E e) { return static_cast<double>(e.prefix_queries); }),
      engine_row("prefix_hits_total", nullptr, kCounter, "Lookups that found something",
                 [](E e) { return static_cast<double>(e.prefix_hits); }),
      engine_row("prefix_checks_total", nullptr, kCounter, "Answers computed cold as well (--check-prefix-cache)",
                 [](E e) { return e.prefix_checks; }),
      engine_row("prefix_checks_failed_total", nullptr, kCounter, "Of those, answers that differed",
                 [](E e) { return e.prefix_checks_failed; }),
      engine_row("evicted_blocks_total", nullptr, kCounter, "Cached blocks given up for new ones",
                 [](E e) { return static_cast<double>(e.evicted_blocks); }),
      engine_row("preemptions_total", "num_preemptions_total", kCounter, "Sequences put back to make room",
                 [](E e) { return static_cast<double>(e.preemptions); }),
      engine_row("draft_steps_total", "spec_decode_num_drafts_total", kCounter, "Verified drafts",
                 [](E e) { return static_cast<double>(e.draft_steps); }),
      engine_row("drafted_tokens_total", "spec_decode_num_draft_tokens_total", kCounter, "Tokens of those drafts",
                 [](E e) { return static_cast<double>(e.drafted_tokens); }),
      engine_row("accepted_tokens_total", "spec_decode_num_accepted_tokens_total", kCounter, "Drafted tokens accepted",
                 [](E e) { return static_cast<double>(e.accepted_tokens); }),
      engine_row("draft_acceptance", "spec_decode_draft_acceptance_rate", kGauge,
                 "Share of the last hundred drafts that were accepted", [](E e) { return e.draft_acceptance; }),
      engine_row("draft_acceptance_history", nullptr, kGauge, "The same over the last ten thousand",
                 [](E e) { return e.draft_acceptance_history; }),
      engine_row("draft_alarm", nullptr, kGauge, "1 while acceptance is far below its own history",
                 [](E e) { return e.draft_alarm ? 1.0 : 0.0; }),
      engine_row("draft_depth", nullptr, kGauge, "Drafts asked for in the last step",
                 [](E e) { return static_cast<double>(e.draft_depth); }),
      {"accepted_tokens_by_position_total", "spec_decode_num_accepted_tokens_per_pos_total",
       "Drafted tokens accepted, by place in the draft", kCounter, true, accepted_by_position},
      server_row("reasoning_tokens_total", nullptr, kCounter, "Generated tokens that were reasoning",
                 [](S s) { return static_cast<double>(s.server.reasoning_tokens.load()); }),
      server_row("http_requests_total", nullptr, kCounter, "HTTP requests of any route",
                 [](S s) { return static_cast<double>(s.server.num_requests.load()); }),
      server_row("http_client_errors_total", nullptr, kCounter, "Requests answered with a 4xx status",
                 [](S s) { return static_cast<double>(s.server.num_client_errors.load()); }),
      server_row("http_refused_total", nullptr, kCounter, "Requests answered with 429 or 503",
                 [](S s) { return static_cast<double>(s.server.num_refused.load()); }),
      server_row("clients_left_total", nullptr, kCounter, "Clients that closed before their answer was whole",
                 [](S s) { return static_cast<double>(s.server.num_clients_left.load()); }),
      server_row("http_connections", nullptr, kGauge, "Open connections",
                 [](S s) { return static_cast<double>(s.http.num_connections.load()); }),
      server_row("http_connections_accepted_total", nullptr, kCounter, "Connections accepted",
                 [](S s) { return static_cast<double>(s.http.num_accepted.load()); }),
      server_row("http_bad_requests_total", nullptr, kCounter, "Refused by the HTTP parser or its time limits",
                 [](S s) { return static_cast<double>(s.http.num_bad_requests.load()); }),
      server_row("http_stalled_readers_total", nullptr, kCounter, "Connections closed because nobody read",
                 [](S s) { return static_cast<double>(s.http.num_stalled.load()); }),
      histogram_row("time_to_first_token_seconds", "time_to_first_token_seconds", "Submission to first token",
                    &ServerMetrics::time_to_first_token_seconds),
      histogram_row("inter_token_seconds", "inter_token_latency_seconds", "Between tokens of an answer",
                    &ServerMetrics::inter_token_seconds),
      histogram_row("request_seconds", "e2e_request_latency_seconds", "Submission to last token",
                    &ServerMetrics::request_seconds),
      histogram_row("queue_seconds", "request_queue_time_seconds", "Submission to admission",
                    &ServerMetrics::queue_seconds),
      histogram_row("request_prompt_tokens", "request_prompt_tokens", "Prompt length", &ServerMetrics::prompt_tokens),
      histogram_row("request_generation_tokens", "request_generation_tokens", "Answer length",
                    &ServerMetrics::generation_tokens),
  };
  return rows;
}

ClientMetric make_metric(const Labelled& labelled, MetricType type, const std::string& model_name) {
  ClientMetric metric;
  if (!model_name.empty()) metric.label.push_back({"model_name", model_name});
  if (!labelled.label.empty()) metric.label.push_back({labelled.label, labelled.label_value});
  if (type == MetricType::Counter) {
    metric.counter.value = labelled.value;
  } else {
    metric.gauge.value = labelled.value;
  }
  return metric;
}

ClientMetric make_histogram(const Histogram& histogram, const std::string& model_name) {
  const Histogram::Snapshot shot = histogram.snapshot();
  ClientMetric metric;
  if (!model_name.empty()) metric.label.push_back({"model_name", model_name});
  for (std::size_t i = 0; i < shot.cumulative.size(); ++i) {
    const double bound = i < shot.bounds.size() ? shot.bounds[i] : std::numeric_limits<double>::infinity();
    metric.histogram.bucket.push_back({shot.cumulative[i], bound});
  }
  metric.histogram.sample_count = shot.cumulative.back();
  metric.histogram.sample_sum = shot.sum;
  return metric;
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

void Histogram::observe(double value) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<std::size_t>(at)].fetch_add(1, std::memory_order_relaxed);
  double sum = sum_.load(std::memory_order_relaxed);
  while (!sum_.compare_exchange_weak(sum, sum + value, std::memory_order_relaxed)) {
  }
}

Histogram::Snapshot Histogram::snapshot() const {
  Snapshot shot;
  shot.bounds = bounds_;
  std::uint64_t total = 0;
  for (const auto& count : counts_) {
    total += count.load(std::memory_order_relaxed);
    shot.cumulative.push_back(total);
  }
  shot.sum = sum_.load(std::memory_order_relaxed);
  return shot;
}

ServerMetrics::ServerMetrics()
    : time_to_first_token_seconds(kLongSeconds),
      inter_token_seconds(kShortSeconds),
      request_seconds(kLongSeconds),
      queue_seconds(kLongSeconds),
      prompt_tokens(kTokens),
      generation_tokens(kTokens) {}

std::string render_metrics(const ServerMetrics& server, const HttpServerCounts& http, const EngineStats* engine,
                           bool healthy, const std::string& model_name, const std::string& version) {
  std::vector<prometheus::MetricFamily> families;
  ClientMetric build;
  build.label.push_back({"version", version});
  build.gauge.value = 1;
  families.push_back({"fathom_build_info", "The running version", MetricType::Gauge, {build}});
  const Source source{server, http, engine, healthy};
  for (const Row& row : table()) {
    if (row.needs_engine && engine == nullptr) continue;
    const auto add = [&](const std::string& name, const std::string& model) {
      prometheus::MetricFamily family{name, row.help, row.type, {}};
      if (row.type == MetricType::Histogram) {
        family.metric.push_back(make_histogram(server.*row.histogram, model));
      } else {
        for (const Labelled& labelled : row.values(source)) {
          family.metric.push_back(make_metric(labelled, row.type, model));
        }
      }
      families.push_back(std::move(family));
    };
    if (row.name != nullptr) add(std::string("fathom_") + row.name, "");
    if (row.alias != nullptr) add(std::string("vllm:") + row.alias, model_name);
  }
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return out.str();
}

}  // namespace fathom
