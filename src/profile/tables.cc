#include "profile/tables.h"

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>

namespace fathom {
namespace {

using GroupKey = std::tuple<std::string, std::string, std::string, std::int64_t, std::string>;

void finish(TableRow& row, const ProfileReport& report, double summed_us) {
  const double step_us = report.mean_step_us();
  row.mean_us = row.launches > 0 ? row.time_us / row.launches : 0;
  row.summed_share = summed_us > 0 ? row.time_us / summed_us : 0;
  row.critical_share = step_us > 0 ? row.critical_us / step_us : 0;
  if (row.time_us <= 0) return;
  row.bytes_per_s = 1e6 * row.bytes / row.time_us;
  row.flops_per_s = 1e6 * row.flops / row.time_us;
  const Ceilings& ceilings = report.ceilings;
  if (ceilings.memory_bytes_per_s <= 0 || ceilings.flops_per_s <= 0 || (row.bytes <= 0 && row.flops <= 0)) return;
  row.memory_share = row.bytes_per_s / ceilings.memory_bytes_per_s;
  row.compute_share = row.flops_per_s / ceilings.flops_per_s;
  if (std::max(row.memory_share, row.compute_share) < kBoundShare) {
    row.bound = Bound::kLatency;
  } else {
    row.bound = row.memory_share >= row.compute_share ? Bound::kBandwidth : Bound::kCompute;
  }
}

std::vector<TableRow> group(const ProfileReport& report, const std::function<GroupKey(const ReportRow&)>& key_of,
                            std::vector<std::string>* kernels = nullptr) {
  const auto steps = static_cast<double>(std::max<std::int64_t>(1, report.total_steps()));
  std::map<GroupKey, TableRow> groups;
  double summed_us = 0;
  for (const ReportRow& row : report.rows) {
    const GroupKey key = key_of(row);
    TableRow& to = groups[key];
    std::tie(to.category, to.operation, to.variant, to.layer, std::ignore) = key;
    to.time_us += row.total_us() / steps;
    to.critical_us += row.total_critical_us() / steps;
    to.launches += static_cast<double>(row.num_launches) / steps;
    to.bytes += row.bytes / steps;
    to.flops += row.flops / steps;
    summed_us += row.total_us() / steps;
  }
  std::vector<std::pair<TableRow, std::string>> sorted;
  for (auto& [key, row] : groups) {
    finish(row, report, summed_us);
    sorted.emplace_back(std::move(row), std::get<4>(key));
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first.time_us > b.first.time_us; });
  std::vector<TableRow> out;
  for (auto& [row, kernel] : sorted) {
    out.push_back(std::move(row));
    if (kernels != nullptr) kernels->push_back(std::move(kernel));
  }
  return out;
}

void find_exposed(TableRow& row, const ProfileReport& report) {
  for (const ExposedEntry& entry : report.exposed) {
    if (entry.operation != row.operation || (entry.operation.empty() && entry.category != row.category)) continue;
    (entry.exposed.method == "left out" ? row.left_out : row.exposed) = &entry.exposed;
  }
}

constexpr std::pair<std::string_view, std::string_view> kHostPhases[] = {
    {"turn", "between two steps: publishing events and counters, taking requests and cancellations"},
    {"schedule", "planning the step, masks and sampling parameters"},
    {"prepare", "tables and rows of the step, and their upload"},
    {"launch", "the forward pass between operations; on a device, before its first kernel"},
    {"wait", "behind the device's last kernel: results on their way to the host"},
    {"sample", "drawing tokens on the host"},
    {"draft", "proposing drafts, outside its operations"},
    {"commit", "lengths, blocks and statistics of the step"},
    {"detokenise", "token to text, stop strings, handing deltas over"},
    {"collect", "this capture itself: cost models and samples"},
    {"http", "worker threads of the server, beside the step"},
};

std::string_view sentence_of(std::string_view name) {
  for (const auto& [phase, sentence] : kHostPhases) {
    if (phase == name) return sentence;
  }
  return "";
}

double sum(const std::vector<double>& values) {
  double total = 0;
  for (const double value : values) total += value;
  return total;
}

}  // namespace

std::string_view bound_name(Bound bound) {
  switch (bound) {
    case Bound::kBandwidth: return "bandwidth";
    case Bound::kCompute: return "compute";
    case Bound::kLatency: return "latency";
    case Bound::kUnknown: break;
  }
  return "-";
}

std::vector<TableRow> category_table(const ProfileReport& report) {
  auto rows = group(report, [](const ReportRow& row) { return GroupKey{row.category, "", "", -1, ""}; });
  for (TableRow& row : rows) find_exposed(row, report);
  return rows;
}

std::vector<TableRow> operation_table(const ProfileReport& report) {
  auto rows =
      group(report, [](const ReportRow& row) { return GroupKey{row.category, row.operation, row.variant, -1, ""}; });
  for (TableRow& row : rows) find_exposed(row, report);
  return rows;
}

std::vector<TableRow> layer_table(const ProfileReport& report) {
  auto rows =
      group(report, [](const ReportRow& row) { return GroupKey{row.category, row.operation, "", row.layer, ""}; });
  std::map<std::string, double> totals;
  for (const TableRow& row : rows) totals[row.operation] += row.time_us;
  std::stable_sort(rows.begin(), rows.end(), [&](const TableRow& a, const TableRow& b) {
    if (a.operation != b.operation) {
      const double left = totals[a.operation], right = totals[b.operation];
      return left != right ? left > right : a.operation < b.operation;
    }
    return a.layer < b.layer;
  });
  return rows;
}

std::vector<TableRow> kernel_table(const ProfileReport& report, std::size_t max_rows, std::vector<std::string>& names) {
  auto rows = group(
      report, [](const ReportRow& row) { return GroupKey{row.category, row.operation, row.variant, -1, row.kernel}; },
      &names);
  if (rows.size() > max_rows) rows.resize(max_rows);
  names.resize(rows.size());
  return rows;
}

std::vector<HostRow> host_table(const ProfileReport& report) {
  const auto steps = static_cast<double>(std::max<std::int64_t>(1, report.total_steps()));
  const double step_us = report.mean_step_us();
  std::vector<HostRow> rows;
  const auto add = [&](std::string name, std::string_view what, double time_us, double critical_us) {
    rows.push_back({std::move(name), std::string(what), time_us / steps, critical_us / steps,
                    step_us > 0 ? critical_us / steps / step_us : 0});
  };
  // In the order in which a step meets them.
  for (const auto& [name, what] : kHostPhases) {
    for (const HostGap& gap : report.host_gaps) {
      if (gap.name == name) add(gap.name, what, gap.total_us(), gap.total_critical_us());
    }
  }
  for (const HostGap& gap : report.host_gaps) {
    if (sentence_of(gap.name).empty()) add(gap.name, "", gap.total_us(), gap.total_critical_us());
  }
  add("idle", "the critical path waits on the device: none of its calls runs, no host phase explains it",
      sum(report.idle_us), sum(report.idle_us));
  add("unaccounted", "the step less all of the above", sum(report.unaccounted_us), sum(report.unaccounted_us));
  return rows;
}

}  // namespace fathom
