// The tables that reports print, made from a report's rows: one place for shares, rates, ceilings and verdicts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "profile/report.h"

namespace fathom {

enum class Bound : std::uint8_t {
  kBandwidth,
  kCompute,
  kLatency,  // under kBoundShare of both ceilings: it waits more than it moves or computes
  kUnknown,  // no cost, or no ceilings
};
inline constexpr double kBoundShare = 0.4;
std::string_view bound_name(Bound bound);

// Summed over some rows of a report. Times per step, in microseconds.
struct TableRow {
  std::string category;
  std::string operation;  // empty: the whole category
  std::string variant;    // empty where rows differ
  std::int64_t layer = -1;
  double time_us = 0;      // summed time
  double critical_us = 0;  // of the step, by the timeline
  double launches = 0;     // per step
  double mean_us = 0;      // of a launch
  double bytes = 0;        // per step
  double flops = 0;
  double summed_share = 0;    // of all rows' summed time
  double critical_share = 0;  // of the step
  double bytes_per_s = 0, memory_share = 0;
  double flops_per_s = 0, compute_share = 0;
  Bound bound = Bound::kUnknown;
  const ExposedTime* exposed = nullptr;   // repeated; null: not measured
  const ExposedTime* left_out = nullptr;  // null: the outputs do not allow it, or not measured
};

std::vector<TableRow> category_table(const ProfileReport& report);   // by falling summed time
std::vector<TableRow> operation_table(const ProfileReport& report);  // operation and variant, likewise
// Operation by layer, for one operation after the other in the order of operation_table.
std::vector<TableRow> layer_table(const ProfileReport& report);
// One row for each of a report's rows of the largest summed time, kernels apart.
std::vector<TableRow> kernel_table(const ProfileReport& report, std::size_t max_rows, std::vector<std::string>& names);

// Host gaps, idle and unaccounted time, each per step.
struct HostRow {
  std::string name;
  std::string what;  // a sentence
  double time_us = 0;
  double critical_us = 0;
  double critical_share = 0;
};
std::vector<HostRow> host_table(const ProfileReport& report);

}  // namespace fathom
