#include "server/load_generator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <random>
#include <thread>

#include "server/http/http_client.h"
#include "server/json_writer.h"
#include "text/json_value.h"

namespace fathom {
namespace {

using Clock = std::chrono::steady_clock;

struct Question {
  const char* text;
  const char* expected;
};
constexpr Question kQuestions[] = {{"17*23?", "391"}, {"Capital of France", "Paris"}};

double ms_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double, std::milli>(b - a).count();
}

HttpHeaders headers_of(const LoadTestOptions& options) {
  if (options.api_key.empty()) return {};
  return {{"Authorization", "Bearer " + options.api_key}};
}

Result<JsonValue> get_json(HttpClient& client, const LoadTestOptions& options, const char* path) {
  FATHOM_ASSIGN_OR_RETURN(const HttpClientReply reply, client.request("GET", path, {}, headers_of(options)));
  if (reply.status != 200) {
    return unavailable(std::string(path) + ": the server answered " + std::to_string(reply.status) + ": " + reply.body);
  }
  return parse_json(reply.body);
}

Result<bool> answers_are_right(HttpClient& client, const LoadTestOptions& options) {
  for (const Question& question : kQuestions) {
    std::string body;
    JsonWriter json(body);
    json.begin_object().key("messages").begin_array().begin_object();
    json.member("role", "user").member("content", question.text).end_object().end_array();
    json.key("thinking").begin_object().member("type", "disabled").end_object();
    json.member("temperature", 0).member("max_tokens", 64).end_object();
    FATHOM_ASSIGN_OR_RETURN(const HttpClientReply reply,
                            client.request("POST", "/v1/chat/completions", body, headers_of(options)));
    if (reply.status != 200) return unavailable("a question was answered with status " + std::to_string(reply.status));
    if (reply.body.find(question.expected) == std::string::npos) return false;
  }
  return true;
}

// Prompts are made from the seed and the request's number alone.
std::string request_body(const LoadTestOptions& options, std::int64_t vocab_size, std::int64_t number) {
  const std::int64_t num_shared =
      static_cast<std::int64_t>(std::floor(options.shared_prefix * static_cast<double>(options.input_tokens)));
  std::string ids;
  const auto append = [&](std::uint64_t seed, std::int64_t count) {
    std::mt19937_64 random(seed);
    for (std::int64_t i = 0; i < count; ++i) {
      if (!ids.empty()) ids += ',';
      // Low ids are control tokens, the highest added ones.
      const auto spread_over = static_cast<std::uint64_t>(std::max<std::int64_t>(vocab_size * 9 / 10 - 16, 1));
      ids += std::to_string(16 + random() % spread_over);
    }
  };
  append(options.seed * 1'000'003, num_shared);
  append(options.seed * 1'000'003 + 1 + static_cast<std::uint64_t>(number), options.input_tokens - num_shared);
  std::string body;
  JsonWriter json(body);
  json.begin_object().key("prompt").raw("[" + ids + "]").member("max_tokens", options.output_tokens);
  json.member("temperature", 0).member("ignore_eos", true).member("stream", true);
  json.key("stream_options").begin_object().member("include_usage", true).end_object().end_object();
  return body;
}

struct Sample {
  enum class End { kDone, kCancelled, kRefused, kFailed };
  End end = End::kFailed;
  double ttft_ms = 0, request_ms = 0;
  std::vector<double> inter_token_ms;
  std::int64_t output_tokens = 0;
  std::string failure;
};

// One request; `leave_after` > 0: the client goes after so many pieces.
Sample ask(HttpClient& client, const LoadTestOptions& options, const std::string& body, std::int64_t leave_after) {
  Sample sample;
  const auto begin = Clock::now();
  Clock::time_point last{};
  std::int64_t num_pieces = 0;
  bool ended = false;
  SseReader reader([&](std::string_view, std::string_view data) {
    if (data == "[DONE]") {
      ended = true;
      return;
    }
    if (data.find("\"error\":") != std::string_view::npos) sample.failure = std::string(data);
    const std::size_t usage = data.find("\"completion_tokens\":");
    if (data.find("\"choices\":[]") != std::string_view::npos && usage != std::string_view::npos) {
      sample.output_tokens = std::atoll(std::string(data.substr(usage + 20, 20)).c_str());
      return;
    }
    const auto now = Clock::now();
    if (num_pieces++ == 0) {
      sample.ttft_ms = ms_between(begin, now);
    } else {
      sample.inter_token_ms.push_back(ms_between(last, now));
    }
    last = now;
  });
  const auto reply = client.request("POST", "/v1/completions", body, headers_of(options), [&](std::string_view bytes) {
    reader.give(bytes);
    return leave_after <= 0 || num_pieces < leave_after;
  });
  sample.request_ms = ms_between(begin, Clock::now());
  if (!reply.ok()) {
    sample.failure = reply.status().message();
    client.close();
  } else if (reply->status == 429 || reply->status == 503) {
    sample.end = Sample::End::kRefused;
  } else if (reply->status != 200) {
    sample.failure = "status " + std::to_string(reply->status);
  } else if (leave_after > 0 && num_pieces >= leave_after) {
    sample.end = Sample::End::kCancelled;
  } else if (sample.failure.empty() && ended && sample.output_tokens == options.output_tokens) {
    sample.end = Sample::End::kDone;
  } else if (sample.failure.empty()) {
    sample.failure =
        "found " + std::to_string(sample.output_tokens) + " tokens, expected " + std::to_string(options.output_tokens);
  }
  return sample;
}

struct Repeat {
  std::vector<Sample> samples;
  double seconds = 0;
};

Repeat run_repeat(const LoadTestOptions& options, std::int64_t vocab_size, std::int32_t concurrency,
                  std::int64_t first_number) {
  Repeat repeat;
  const std::int64_t count = std::int64_t{concurrency} * options.requests_per_client;
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;
  std::vector<std::thread> clients;
  const auto begin = Clock::now();
  for (std::int32_t c = 0; c < concurrency; ++c) {
    clients.emplace_back([&] {
      HttpClient client(options.host, options.port);
      for (std::int64_t i = next++; i < count; i = next++) {
        const std::int64_t number = first_number + i;
        // Which ones leave, and when, follows from the number too.
        std::mt19937_64 random(options.seed ^ (0x9e3779b97f4a7c15ULL * static_cast<std::uint64_t>(number + 1)));
        const bool leaves = static_cast<double>(random() % 10'000) < options.cancelled * 10'000;
        const auto pieces = static_cast<std::uint64_t>(std::max<std::int64_t>(options.output_tokens, 1));
        const std::int64_t leave_after = leaves ? 1 + static_cast<std::int64_t>(random() % pieces) : 0;
        Sample sample = ask(client, options, request_body(options, vocab_size, number), leave_after);
        const std::lock_guard lock(mutex);
        repeat.samples.push_back(std::move(sample));
      }
    });
  }
  for (auto& client : clients) client.join();
  repeat.seconds = ms_between(begin, Clock::now()) / 1000;
  return repeat;
}

// What the server counts, from /metrics; all zero where it does not say.
struct ServerCounts {
  double steps = 0, draft_steps = 0, drafted = 0, accepted = 0;
};
ServerCounts server_counts(const LoadTestOptions& options) {
  HttpClient client(options.host, options.port);
  const auto reply = client.request("GET", "/metrics", {}, headers_of(options));
  ServerCounts counts;
  if (!reply.ok() || reply->status != 200) return counts;
  const auto read = [&](std::string_view name, double& value) {
    const std::string line = "\nfathom_" + std::string(name) + " ";
    const std::size_t at = reply->body.find(line);
    if (at != std::string::npos) value = std::strtod(reply->body.c_str() + at + line.size(), nullptr);
  };
  read("steps_total", counts.steps);
  read("draft_steps_total", counts.draft_steps);
  read("drafted_tokens_total", counts.drafted);
  read("accepted_tokens_total", counts.accepted);
  return counts;
}

LoadLevel run_level(const LoadTestOptions& options, std::int64_t vocab_size, std::int32_t concurrency,
                    std::int64_t& next_number) {
  LoadLevel level;
  level.concurrency = concurrency;
  std::vector<double> ttft, inter_token, request, tokens_per_s, requests_per_s, ttft_medians, inter_token_medians;
  const ServerCounts before = server_counts(options);
  double seconds = 0;
  for (std::int32_t r = 0; r < options.repeats; ++r) {
    const Repeat repeat = run_repeat(options, vocab_size, concurrency, next_number);
    next_number += std::int64_t{concurrency} * options.requests_per_client;
    std::vector<double> own_ttft, own_inter_token;
    std::int64_t tokens = 0, done = 0;
    for (const Sample& sample : repeat.samples) {
      switch (sample.end) {
        case Sample::End::kDone: ++done; break;
        case Sample::End::kCancelled: ++level.num_cancelled; break;
        case Sample::End::kRefused: ++level.num_refused; break;
        case Sample::End::kFailed:
          if (level.num_failed++ == 0) level.first_failure = sample.failure;
          break;
      }
      if (sample.end != Sample::End::kDone) continue;
      tokens += sample.output_tokens;
      own_ttft.push_back(sample.ttft_ms);
      own_inter_token.insert(own_inter_token.end(), sample.inter_token_ms.begin(), sample.inter_token_ms.end());
      request.push_back(sample.request_ms);
    }
    level.num_done += done;
    seconds += repeat.seconds;
    tokens_per_s.push_back(static_cast<double>(tokens) / repeat.seconds);
    requests_per_s.push_back(static_cast<double>(done) / repeat.seconds);
    ttft_medians.push_back(percentiles(own_ttft).p50);
    inter_token_medians.push_back(percentiles(own_inter_token).p50);
    ttft.insert(ttft.end(), own_ttft.begin(), own_ttft.end());
    inter_token.insert(inter_token.end(), own_inter_token.begin(), own_inter_token.end());
  }
  level.ttft_ms = percentiles(std::move(ttft));
  level.inter_token_ms = percentiles(std::move(inter_token));
  level.request_ms = percentiles(std::move(request));
  level.output_tokens_per_s = spread(std::move(tokens_per_s));
  level.requests_per_s = spread(std::move(requests_per_s));
  level.ttft_p50_ms = spread(std::move(ttft_medians));
  level.inter_token_p50_ms = spread(std::move(inter_token_medians));
  const ServerCounts after = server_counts(options);
  level.steps_per_s = (after.steps - before.steps) / seconds;
  const double drafted = after.drafted - before.drafted, verified = after.draft_steps - before.draft_steps;
  if (drafted > 0) level.draft_acceptance = (after.accepted - before.accepted) / drafted;
  if (verified > 0) level.tokens_per_step = 1 + (after.accepted - before.accepted) / verified;
  return level;
}

}  // namespace

Percentiles percentiles(std::vector<double> values) {
  Percentiles out;
  out.count = static_cast<std::int64_t>(values.size());
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  // The smallest value that at least this share of the sample does not exceed.
  const auto at = [&](double share) {
    const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
    return values[std::max<std::size_t>(rank, 1) - 1];
  };
  out.p50 = at(0.5);
  out.p90 = at(0.9);
  out.p99 = at(0.99);
  for (const double value : values) out.mean += value / static_cast<double>(values.size());
  return out;
}

Spread spread(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {values[(values.size() - 1) / 2], values.front(), values.back()};
}

Result<LoadReport> run_load(const LoadTestOptions& options) {
  LoadReport report;
  report.options = options;
  HttpClient client(options.host, options.port);
  FATHOM_ASSIGN_OR_RETURN(const JsonValue models, get_json(client, options, "/v1/models"));
  FATHOM_ASSIGN_OR_RETURN(const JsonValue info, get_json(client, options, "/tokenizer_info"));
  FATHOM_ASSIGN_OR_RETURN(const JsonValue version, get_json(client, options, "/version"));
  const JsonValue* data = models.find("data");
  const JsonValue* vocab = info.find("vocab_size");
  if (data == nullptr || data->items.empty() || vocab == nullptr) return data_loss("the server names no model");
  if (const JsonValue* id = data->items.front().find("id")) report.model = id->text;
  if (const JsonValue* text = version.find("version")) report.version = text->text;
  const std::int64_t vocab_size = vocab->as_integer().value_or(0);
  FATHOM_ASSIGN_OR_RETURN(report.right_before, answers_are_right(client, options));
  std::int64_t number = 0;
  run_repeat(options, vocab_size, 1, -options.requests_per_client);  // warms up
  for (const std::int32_t concurrency : options.concurrency) {
    report.levels.push_back(run_level(options, vocab_size, concurrency, number));
  }
  FATHOM_ASSIGN_OR_RETURN(report.right_after, answers_are_right(client, options));
  return report;
}

}  // namespace fathom
