// A load generator over real sockets, and the figures it makes: what `fathom bench serve` runs.
//
// Each of C clients holds one kept connection and asks again as soon as it has its answer (a closed loop): streamed
// completions of random token ids, fixed lengths, temperature 0, so that every run of one seed asks the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace fathom {

struct LoadTestOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;
  std::string api_key;
  std::vector<std::int32_t> concurrency = {1, 16, 64};
  std::int32_t requests_per_client = 4;  // in one repeat
  std::int32_t repeats = 3;
  std::int64_t input_tokens = 256;
  std::int64_t output_tokens = 64;
  double shared_prefix = 0.0;  // share of the prompt that all requests have in common
  double cancelled = 0.0;      // share of requests whose client leaves after some of the answer
  std::uint64_t seed = 1;
};

// Of a sample; all zero when it is empty.
struct Percentiles {
  double p50 = 0, p90 = 0, p99 = 0, mean = 0;
  std::int64_t count = 0;
};
Percentiles percentiles(std::vector<double> values);

// Of the repeats of one figure.
struct Spread {
  double median = 0, lowest = 0, highest = 0;
};
Spread spread(std::vector<double> values);

struct LoadLevel {
  std::int32_t concurrency = 0;
  Percentiles ttft_ms, inter_token_ms, request_ms;  // over all repeats
  Spread output_tokens_per_s, requests_per_s;       // by repeat
  Spread ttft_p50_ms, inter_token_p50_ms;           // by repeat
  // By the server's own counters; draft figures are 0 where it did not draft. Tokens of a verified step of a sequence.
  double steps_per_s = 0, draft_acceptance = 0, tokens_per_step = 0;
  std::int64_t num_done = 0, num_cancelled = 0, num_refused = 0, num_failed = 0;
  std::string first_failure;
};

struct LoadReport {
  LoadTestOptions options;
  std::string model;
  std::string version;
  std::vector<LoadLevel> levels;
  // The two questions, asked before and after: load that makes answers wrong is no result.
  bool right_before = false, right_after = false;
};

// Failure: the server cannot be reached or speaks otherwise. Wrong answers are in the report.
Result<LoadReport> run_load(const LoadTestOptions& options);

std::string load_table(const LoadReport& report);  // for people
std::string load_json(const LoadReport& report);
std::string load_html(const LoadReport& report);  // self-contained, with pictures

}  // namespace fathom
