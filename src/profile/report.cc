#include "profile/report.h"

#include <cmath>
#include <cstdio>
#include <numeric>

namespace fathom {
namespace {

double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

std::string at(const char* list, std::size_t index) { return std::string(list) + "[" + std::to_string(index) + "]"; }

std::string number_text(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%g", value);
  return buffer;
}

// Above any time, count or rate that is measured, and far enough from the largest double that sums of squares hold.
constexpr double kLargestFigure = 1e30;

// Collects the first broken rule; names are built only once one is broken.
class Checker {
 public:
  template <typename Name>
  void not_negative(double value, Name&& name) {
    if (!status_.ok() || (value >= 0 && value <= kLargestFigure)) return;
    fail(name() + ": found " + number_text(value) + ", expected a finite number of at least 0 (and at most 1e30)");
  }
  template <typename Name>
  void finite(double value, Name&& name) {
    if (!status_.ok() || std::fabs(value) <= kLargestFigure) return;
    fail(name() + ": found " + number_text(value) + ", expected a finite number (at most 1e30 in size)");
  }
  template <typename Name>
  void per_repeat(const std::vector<double>& values, std::int64_t num_repeats, bool may_be_negative, Name&& name) {
    if (!status_.ok()) return;
    if (static_cast<std::int64_t>(values.size()) != num_repeats) {
      return fail(name() + ": found " + std::to_string(values.size()) + " values, expected one per repeat (" +
                  std::to_string(num_repeats) + ")");
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto value_name = [&] { return name() + "[" + std::to_string(i) + "]"; };
      if (may_be_negative) {
        finite(values[i], value_name);
      } else {
        not_negative(values[i], value_name);
      }
    }
  }
  void fail(std::string message) {
    if (status_.ok()) status_ = invalid_argument(std::move(message));
  }
  Status take() { return std::move(status_); }

 private:
  Status status_;
};

void check_run(const RunDescription& run, Checker& check) {
  const std::pair<const char*, double> figures[] = {
      {"run.core_clock_mhz", run.core_clock_mhz},
      {"run.memory_clock_mhz", run.memory_clock_mhz},
      {"run.num_threads", static_cast<double>(run.num_threads)},
      {"run.batch_sequences", static_cast<double>(run.batch_sequences)},
      {"run.context_tokens", static_cast<double>(run.context_tokens)},
      {"run.num_warmup_steps", static_cast<double>(run.num_warmup_steps)},
  };
  for (const auto& [name, value] : figures) {
    check.not_negative(value, [n = name] { return std::string(n); });
  }
  if (run.num_repeats < 1) {
    check.fail("run.num_repeats: found " + std::to_string(run.num_repeats) + ", expected at least 1");
  }
  if (run.num_steps < 1) {
    check.fail("run.num_steps: found " + std::to_string(run.num_steps) + ", expected at least 1");
  }
}

void check_steps(const ProfileReport& report, Checker& check) {
  if (static_cast<std::int64_t>(report.step_us.size()) != report.run.num_repeats) {
    check.fail("step_us: found " + std::to_string(report.step_us.size()) + " repeats, expected run.num_repeats (" +
               std::to_string(report.run.num_repeats) + "): a truncated capture");
    return;
  }
  for (std::size_t r = 0; r < report.step_us.size(); ++r) {
    const auto& steps = report.step_us[r];
    if (static_cast<std::int64_t>(steps.size()) != report.run.num_steps) {
      check.fail(at("step_us", r) + ": found " + std::to_string(steps.size()) + " steps, expected run.num_steps (" +
                 std::to_string(report.run.num_steps) + "): a truncated capture");
    }
    for (std::size_t i = 0; i < steps.size(); ++i) {
      check.not_negative(steps[i], [&] { return at("step_us", r) + "[" + std::to_string(i) + "]"; });
    }
  }
}

void check_rows(const ProfileReport& report, Checker& check) {
  const std::int64_t repeats = report.run.num_repeats;
  for (std::size_t i = 0; i < report.rows.size(); ++i) {
    const ReportRow& row = report.rows[i];
    const auto name = [&](const char* field) { return [&, field] { return at("rows", i) + "." + field; }; };
    if (row.operation.empty()) check.fail(at("rows", i) + ".operation: found \"\", expected a name");
    check.per_repeat(row.time_us, repeats, false, name("time_us"));
    check.per_repeat(row.critical_us, repeats, false, name("critical_us"));
    check.not_negative(static_cast<double>(row.num_launches), name("num_launches"));
    check.not_negative(row.bytes, name("bytes"));
    check.not_negative(row.flops, name("flops"));
  }
  for (std::size_t i = 0; i < report.host_gaps.size(); ++i) {
    const HostGap& gap = report.host_gaps[i];
    const auto name = [&](const char* field) { return [&, field] { return at("host_gaps", i) + "." + field; }; };
    if (gap.name.empty()) check.fail(at("host_gaps", i) + ".name: found \"\", expected a name");
    check.per_repeat(gap.time_us, repeats, false, name("time_us"));
    check.per_repeat(gap.critical_us, repeats, false, name("critical_us"));
  }
  check.per_repeat(report.idle_us, repeats, false, [] { return std::string("idle_us"); });
  check.per_repeat(report.unaccounted_us, repeats, true, [] { return std::string("unaccounted_us"); });
}

void check_exposed(const ProfileReport& report, Checker& check) {
  for (std::size_t i = 0; i < report.exposed.size(); ++i) {
    const ExposedTime& e = report.exposed[i].exposed;
    const auto name = [&](const char* field) { return [&, field] { return at("exposed", i) + "." + field; }; };
    check.finite(e.us, name("us"));
    check.finite(e.low_us, name("low_us"));
    check.finite(e.high_us, name("high_us"));
    check.not_negative(static_cast<double>(e.num_samples), name("num_samples"));
    if (!(e.confidence > 0 && e.confidence < 1)) {
      check.fail(at("exposed", i) + ".confidence: found " + number_text(e.confidence) +
                 ", expected a number between 0 and 1");
    }
    if (!(e.low_us <= e.us && e.us <= e.high_us)) {
      check.fail(at("exposed", i) + ": found " + number_text(e.us) + " outside its interval " + number_text(e.low_us) +
                 " to " + number_text(e.high_us));
    }
  }
}

}  // namespace

double ReportRow::total_us() const { return sum(time_us); }
double ReportRow::total_critical_us() const { return sum(critical_us); }
double HostGap::total_us() const { return sum(time_us); }
double HostGap::total_critical_us() const { return sum(critical_us); }

std::int64_t ProfileReport::total_steps() const {
  std::int64_t steps = 0;
  for (const auto& repeat : step_us) steps += static_cast<std::int64_t>(repeat.size());
  return steps;
}

double ProfileReport::total_step_us() const {
  double us = 0;
  for (const auto& repeat : step_us) us += sum(repeat);
  return us;
}

double ProfileReport::mean_step_us() const {
  const std::int64_t steps = total_steps();
  return steps > 0 ? total_step_us() / static_cast<double>(steps) : 0;
}

double ProfileReport::steps_per_s() const {
  const double us = mean_step_us();
  return us > 0 ? 1e6 / us : 0;
}

double ProfileReport::tokens_per_s() const { return steps_per_s() * committed_tokens_per_step; }

std::vector<double> ProfileReport::repeat_means_us() const {
  std::vector<double> means;
  for (const auto& repeat : step_us) {
    if (!repeat.empty()) means.push_back(sum(repeat) / static_cast<double>(repeat.size()));
  }
  return means;
}

double ProfileReport::accounted_us() const {
  double us = sum(idle_us) + sum(unaccounted_us);
  for (const ReportRow& row : rows) us += row.total_critical_us();
  for (const HostGap& gap : host_gaps) us += gap.total_critical_us();
  return us;
}

const ExposedTime* ProfileReport::find_exposed(std::string_view category, std::string_view operation) const {
  for (const ExposedEntry& entry : exposed) {
    if (entry.category == category && entry.operation == operation) return &entry.exposed;
  }
  return nullptr;
}

Status check_report(const ProfileReport& report) {
  Checker check;
  check_run(report.run, check);
  check_steps(report, check);
  check_rows(report, check);
  check_exposed(report, check);
  const auto not_negative = [&](double value, const char* name) {
    check.not_negative(value, [name] { return std::string(name); });
  };
  not_negative(report.ceilings.memory_bytes_per_s, "ceilings.memory_bytes_per_s");
  not_negative(report.ceilings.flops_per_s, "ceilings.flops_per_s");
  not_negative(report.ceilings.launch_us, "ceilings.launch_us");
  not_negative(report.tokens_per_step, "tokens_per_step");
  not_negative(report.committed_tokens_per_step, "committed_tokens_per_step");
  not_negative(report.experts_hit_per_step, "experts_hit_per_step");
  return check.take();
}

}  // namespace fathom
