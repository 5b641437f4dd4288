// What a profile is: everything `fathom profile` measured, as one value that is stored as report.json and that
// `fathom compare` and `fathom findings` read. Collectors and attribution fill it; nothing here measures.
//
// Times are microseconds. A vector with one value per repeat holds that repeat's total over its steps, so that
// differences can be judged by the spread between repeats; counts, bytes and FLOPs are totals over all steps of all
// repeats. Warm-up is in none of them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fathom {

inline constexpr std::string_view kReportFormat = "fathom-profile";
inline constexpr std::int64_t kReportVersion = 1;

struct RunDescription {
  std::string backend;                          // "cpu", "cuda"
  std::string device;                           // "NVIDIA H200", a CPU's model name
  std::string collector;                        // "scopes" (CPU), "cupti", "events" (CUDA without CUPTI)
  std::string model;                            // the directory's name, or what was synthesised
  std::string numerics;                         // "plain", "vendor", "serve"
  std::map<std::string, std::string> variants;  // operation -> the variant that was chosen
  std::string date;                             // UTC, "2026-11-29T21:40:00Z"
  std::string commit;                           // empty: not known
  double core_clock_mhz = 0;                    // of this run, as measured (core_clock.h on a CPU); 0: not known
  double memory_clock_mhz = 0;                  // 0: not known
  std::int64_t num_threads = 0;                 // CPU threads of the engine; 0: not told
  std::int64_t batch_sequences = 0;
  std::int64_t context_tokens = 0;    // of each sequence, before the first measured step
  std::int64_t num_steps = 0;         // of each repeat
  std::int64_t num_warmup_steps = 0;  // before each repeat, measured by nothing
  std::int64_t num_repeats = 0;
};

// Measured on the device in the same session; 0: not measured.
struct Ceilings {
  double memory_bytes_per_s = 0;
  double flops_per_s = 0;  // of the fastest unit that the operations use (tensor cores, SIMD)
  double launch_us = 0;    // of an empty kernel or operation
};

// Exposed time as measured: what a step changed by when this work ran once more (or was left out), per step.
struct ExposedTime {
  std::string method;  // "repeated", "left out"; empty: not measured
  double us = 0;       // per step; noise may make it negative
  double low_us = 0;   // interval at `confidence`
  double high_us = 0;
  double confidence = 0.95;
  std::int64_t num_samples = 0;
  bool output_unchanged = false;  // each repeat left the step's output bitwise the same
};

// One operation call site as the step sees it: calls of the same operation in the same layer by the same kernel.
struct ReportRow {
  std::string category;   // categories.h
  std::string operation;  // op_name
  std::string variant;
  std::int64_t layer = -1;          // trunk layer; -1 outside layers; num_layers + k for draft block k
  std::string kernel;               // as the collector names it; the variant where there are no kernels
  std::vector<double> time_us;      // one per repeat: summed time, overlapping work counted fully
  std::vector<double> critical_us;  // one per repeat: the part of the steps that this work explains (critical path)
  std::int64_t num_launches = 0;
  double bytes = 0;  // by the cost models
  double flops = 0;

  double total_us() const;
  double total_critical_us() const;
};

// Time of a step in which the device waits for the host.
struct HostGap {
  std::string name;                 // "schedule", "launch", "wait", "sample", "detokenise", "http", ...
  std::vector<double> time_us;      // one per repeat: host time of this kind
  std::vector<double> critical_us;  // one per repeat: the part of the steps that it explains

  double total_us() const;
  double total_critical_us() const;
};

// Exposed time is measured for a category or an operation as a whole, not for a row.
struct ExposedEntry {
  std::string category;
  std::string operation;  // empty: the whole category
  ExposedTime exposed;
};

struct ProfileReport {
  RunDescription run;
  Ceilings ceilings;
  std::vector<std::vector<double>> step_us;  // [repeat][step]: wall time
  std::vector<ReportRow> rows;
  std::vector<HostGap> host_gaps;
  std::vector<double> idle_us;         // one per repeat: no work on the device, and no host phase explains it
  std::vector<double> unaccounted_us;  // one per repeat: the step less everything above; clocks may make it negative
  std::vector<ExposedEntry> exposed;
  // Means over the measured steps.
  double tokens_per_step = 0;            // rows of the forward pass
  double committed_tokens_per_step = 0;  // tokens that reached requests; tok/s = this times steps/s
  double experts_hit_per_step = 0;       // distinct routed experts per layer; 0: not known
  std::vector<std::string> notes;        // what the reader should know: "CUPTI is absent: ..."

  std::int64_t total_steps() const;  // of all repeats
  double total_step_us() const;      // wall time of all of them
  double mean_step_us() const;       // 0 without steps
  double steps_per_s() const;
  double tokens_per_s() const;                  // committed
  std::vector<double> repeat_means_us() const;  // mean step of each repeat
  // Rows, host gaps, idle and unaccounted time on the critical path: within 1 % of total_step_us(), or the
  // attribution is wrong.
  double accounted_us() const;
  const ExposedTime* find_exposed(std::string_view category, std::string_view operation = {}) const;
};

// Whether a report keeps its own rules: finite figures, no negative times (exposed time excepted), as many values
// as repeats. The message names the field.
Status check_report(const ProfileReport& report);

// report.json. Fails like check_report; so nothing is written that cannot be read.
Result<std::string> report_to_json(const ProfileReport& report);
// `source` names the text in messages: "a/report.json: rows[3].time_us[0]: found -5, expected ...". Truncated,
// empty, of another version, not a number: all Status.
Result<ProfileReport> parse_report(std::string_view text, std::string_view source);

// `path`: a folder with report.json, or the file.
Result<ProfileReport> open_report(const std::string& path);
Status write_report(const std::string& path, const ProfileReport& report);  // the file

}  // namespace fathom
