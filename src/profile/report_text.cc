#include "profile/report_text.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <string>

#include "profile/attribute.h"
#include "profile/exposed.h"
#include "profile/format.h"
#include "profile/statistics.h"
#include "profile/tables.h"

namespace fathom {
namespace {

constexpr std::size_t kMostKernels = 24;

class Printer {
 public:
  [[gnu::format(printf, 2, 3)]] void line(const char* pattern, ...) {
    char buffer[2048];
    va_list arguments;
    va_start(arguments, pattern);
    std::vsnprintf(buffer, sizeof buffer, pattern, arguments);
    va_end(arguments);
    out_ += buffer;
    out_ += '\n';
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

std::string exposed_text(const ExposedTime* exposed, double step_us) {
  if (exposed == nullptr) return "not measured";
  char buffer[128];
  std::snprintf(buffer, sizeof buffer, "%.1f [%.1f, %.1f] us = %.1f %%%s", exposed->us, exposed->low_us,
                exposed->high_us, 100 * exposed->us / step_us, is_resolved(*exposed) ? "" : ", not resolved");
  return buffer;
}

void print_head(const ProfileReport& report, Printer& out) {
  const RunDescription& run = report.run;
  out.line("fathom profile of %s on %s (%s)", run.model.c_str(), run.backend.c_str(), run.device.c_str());
  out.line(
      "%s; collector %s; numerics %s; %lld sequences at context %lld; %lld steps x %lld repeats, %lld warm-up steps",
      run.date.c_str(), run.collector.c_str(), run.numerics.c_str(), static_cast<long long>(run.batch_sequences),
      static_cast<long long>(run.context_tokens), static_cast<long long>(run.num_steps),
      static_cast<long long>(run.num_repeats), static_cast<long long>(run.num_warmup_steps));
  if (run.num_threads > 0) out.line("threads: %lld", static_cast<long long>(run.num_threads));
  if (!run.commit.empty()) out.line("commit: %s", run.commit.c_str());
  if (report.experts_hit_per_step > 0) {
    out.line("experts hit: %.1f of a layer, mean over layers and steps", report.experts_hit_per_step);
  }
  if (run.core_clock_mhz > 0) {
    const std::string memory = run.memory_clock_mhz > 0 ? format_significant(run.memory_clock_mhz) + " MHz" : "unknown";
    out.line("clocks: core %.0f MHz, memory %s", run.core_clock_mhz, memory.c_str());
  }
  const Ceilings& ceilings = report.ceilings;
  if (ceilings.memory_bytes_per_s > 0) {
    out.line("ceilings, measured in this session: memory %.1f GB/s, arithmetic %.1f GFLOP/s, an empty launch %.2f us",
             ceilings.memory_bytes_per_s / 1e9, ceilings.flops_per_s / 1e9, ceilings.launch_us);
  }
  const Interval step = mean_interval(report.repeat_means_us(), 0.95);
  out.line("%s", "");
  if (step.known) {
    out.line("step: %.3f ms, 95 %% interval of the repeats' means %.3f to %.3f ms", report.mean_step_us() / 1e3,
             std::max(0.0, step.low) / 1e3, step.high / 1e3);
  } else {
    out.line("step: %.3f ms; one repeat, so no interval", report.mean_step_us() / 1e3);
  }
  out.line("%.1f tok/s = %.3f committed tokens a step x %.2f steps/s", report.tokens_per_s(),
           report.committed_tokens_per_step, report.steps_per_s());
  const Steadiness steady = judge_steadiness(report);
  out.line(
      "steady state: %s; steps spread %.1f %% (10th to 90th percentile, bound %.0f %%), drift %+.1f %% (bound %.0f %%)",
      steady.steady ? "yes" : "NO, figures may not stand for longer runs", 100 * steady.spread, 100 * kSteadySpread,
      100 * steady.drift, 100 * kSteadyDrift);
}

// Of a ceiling; "-" where none was measured.
std::string share_of(double ceiling, double share) {
  return ceiling > 0 ? std::to_string(std::lround(100 * share)) + "%" : "-";
}

void print_rows(const std::vector<TableRow>& rows, const Ceilings& ceilings, const char* title, Printer& out) {
  out.line("\n%s", title);
  out.line("%-34s %10s %7s %10s %7s %9s %9s %11s %8s %6s %9s %6s %s", "", "ms/step", "summed", "critical", "step",
           "launches", "mean us", "bytes", "GB/s", "mem", "GFLOP/s", "peak", "bound by");
  for (const TableRow& row : rows) {
    const std::string name =
        row.operation.empty() ? row.category : row.operation + (row.variant.empty() ? "" : "/" + row.variant);
    out.line("%-34s %10.4f %6.1f%% %10.4f %6.1f%% %9.1f %9.2f %11.0f %8.2f %6s %9.2f %6s %.*s", name.c_str(),
             row.time_us / 1e3, 100 * row.summed_share, row.critical_us / 1e3, 100 * row.critical_share, row.launches,
             row.mean_us, row.bytes, row.bytes_per_s / 1e9,
             share_of(ceilings.memory_bytes_per_s, row.memory_share).c_str(), row.flops_per_s / 1e9,
             share_of(ceilings.flops_per_s, row.compute_share).c_str(), static_cast<int>(bound_name(row.bound).size()),
             bound_name(row.bound).data());
  }
}

void print_host(const ProfileReport& report, const std::vector<TableRow>& rows, Printer& out) {
  out.line("\nhost gaps, idle and unaccounted time, per step");
  out.line("%-34s %10s %7s %10s %7s", "", "ms/step", "", "critical", "step");
  for (const HostRow& row : host_table(report)) {
    out.line("%-34s %10.4f %7s %10.4f %6.1f%%  %s", row.name.c_str(), row.time_us / 1e3, "", row.critical_us / 1e3,
             100 * row.critical_share, row.what.c_str());
  }
  double summed = 0;
  for (const TableRow& row : rows) summed += row.time_us;
  const double total = report.total_step_us();
  out.line(
      "rows sum to %.4f %% of the step (critical column, these rows and those above); summed time is %.1f %% of it",
      total > 0 ? 100 * report.accounted_us() / total : 0.0,
      report.mean_step_us() > 0 ? 100 * summed / report.mean_step_us() : 0.0);
}

void print_exposed(const ProfileReport& report, const std::vector<TableRow>& categories,
                   const std::vector<TableRow>& operations, Printer& out) {
  if (report.exposed.empty()) return;
  const double step_us = report.mean_step_us();
  out.line(
      "\nexposed time: what a step changes by when the work runs once more, or is left out (outputs bitwise the same)");
  out.line("intervals at 95 %%; \"not resolved\": under three times the interval's half width");
  out.line("%-22s %-54s %-54s %s", "", "repeated", "left out", "critical path");
  for (const auto* rows : {&categories, &operations}) {
    for (const TableRow& row : *rows) {
      if (row.exposed == nullptr && row.left_out == nullptr) continue;
      const std::string name = row.operation.empty() ? "[" + row.category + "]" : row.operation;
      out.line("%-22s %-54s %-54s %.1f us", name.c_str(), exposed_text(row.exposed, step_us).c_str(),
               row.left_out == nullptr ? "-" : exposed_text(row.left_out, step_us).c_str(), row.critical_us);
    }
  }
}

void print_layers(const ProfileReport& report, Printer& out) {
  out.line("\nby layer, us of summed time per step (layer -1: outside layers)");
  std::string last;
  std::string line;
  for (const TableRow& row : layer_table(report)) {
    if (row.operation != last) {
      if (!line.empty()) out.line("%s", line.c_str());
      char name[64];
      std::snprintf(name, sizeof name, "%-18s", row.operation.c_str());
      line = name;
      last = row.operation;
    }
    char cell[64];
    std::snprintf(cell, sizeof cell, " %lld:%.1f", static_cast<long long>(row.layer), row.time_us);
    line += cell;
  }
  if (!line.empty()) out.line("%s", line.c_str());
}

void print_kernels(const ProfileReport& report, Printer& out) {
  const bool has_kernels = std::any_of(report.rows.begin(), report.rows.end(),
                                       [](const ReportRow& row) { return row.kernel != row.variant; });
  if (!has_kernels) return;
  std::vector<std::string> names;
  const std::vector<TableRow> rows = kernel_table(report, kMostKernels, names);
  out.line("\nkernels of the largest summed time");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    out.line("%10.4f ms %8.1f launches %9.2f us  %-30s %s", rows[i].time_us / 1e3, rows[i].launches, rows[i].mean_us,
             (rows[i].operation + "/" + rows[i].variant).c_str(), names[i].c_str());
  }
}

}  // namespace

std::string report_text(const ProfileReport& report) {
  Printer out;
  print_head(report, out);
  for (const std::string& note : report.notes) out.line("note: %s", note.c_str());
  if (report.total_steps() == 0) {
    out.line("nothing was measured: no steps");
    return out.take();
  }
  const std::vector<TableRow> categories = category_table(report), operations = operation_table(report);
  print_rows(categories, report.ceilings, "by category", out);
  print_rows(operations, report.ceilings, "by operation and variant", out);
  print_host(report, operations, out);
  print_exposed(report, categories, operations, out);
  print_kernels(report, out);
  print_layers(report, out);
  if (!report.run.variants.empty()) {
    std::string variants;
    for (const auto& [operation, variant] : report.run.variants) variants += " " + operation + "=" + variant;
    out.line("\nvariants:%s", variants.c_str());
  }
  return out.take();
}

const TimelineStep* median_step(std::span<const std::vector<TimelineStep>> repeats) {
  std::vector<const TimelineStep*> steps;
  for (const auto& repeat : repeats) {
    for (const TimelineStep& step : repeat) steps.push_back(&step);
  }
  if (steps.empty()) return nullptr;
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
  std::nth_element(steps.begin(), middle, steps.end(),
                   [](const TimelineStep* a, const TimelineStep* b) { return a->total_us < b->total_us; });
  return *middle;
}

}  // namespace fathom
