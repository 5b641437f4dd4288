#include "profile/isolated.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "ops/op_kind.h"

namespace fathom {
namespace {

constexpr double kWantedExtra_us = 400;  // what the repeats of an operation should take together
constexpr std::int32_t kLeastExtra = 2, kMostExtra = 48;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<std::string> names_of(const std::string& operation) {
  return operation.empty() ? std::vector<std::string>{} : std::vector<std::string>{operation};
}

// Time of an operation's kernels in one replay.
double time_of(std::span<const TimelineCall> calls, const std::string& operation) {
  double sum_us = 0;
  for (const TimelineCall& call : calls) sum_us += call.operation == operation ? call.time_us : 0;
  return sum_us;
}

}  // namespace

IsolatedCheck::IsolatedCheck(Model& model, ModelStep& step, const ProfileReport& report, std::int32_t num_rounds)
    : model_(model), step_(step), num_rounds_(num_rounds) {
  const auto steps = static_cast<double>(std::max<std::int64_t>(1, report.total_steps()));
  for (const ReportRow& row : report.rows) {
    if (!parse_op_name(row.operation)) continue;  // copies are no calls
    IsolatedRow& into = rows_[row.operation];
    into.operation = row.operation;
    into.attributed_us += row.total_us() / steps;
    into.launches += static_cast<double>(row.num_launches) / steps;
  }
}

std::int32_t IsolatedCheck::num_extra(const IsolatedRow& row) const {
  const double wanted = kWantedExtra_us / std::max(1.0, row.attributed_us);
  return static_cast<std::int32_t>(std::clamp<double>(wanted, kLeastExtra, kMostExtra));
}

Status IsolatedCheck::attribute_repeats(DeviceRecorder& recorder, EmptyLaunches& empty) {
  std::vector<double> empty_us;
  for (int i = 0; i < 3; ++i) {
    FATHOM_RETURN_IF_ERROR(recorder.take().status());
    FATHOM_RETURN_IF_ERROR(empty.run_us().status());
    FATHOM_ASSIGN_OR_RETURN(const std::vector<DeviceRecord> records, recorder.take());
    for (const DeviceRecord& record : records) empty_us.push_back(record.end_us - record.begin_us);
  }
  empty_record_us_ = median(std::move(empty_us));
  const auto recorded_us = [&](const std::string& operation, std::int32_t extra) -> Result<double> {
    NodePlaces places;
    std::vector<double> times;
    // The first runs launch without a graph and capture it.
    for (std::int32_t i = -3; i < num_rounds_; ++i) {
      FATHOM_RETURN_IF_ERROR(recorder.take().status());
      FATHOM_RETURN_IF_ERROR(step_.run(names_of(operation), 1 + extra).status());
      if (i < 0) continue;
      const auto captured = model_.backend().last_captured();
      if (captured == nullptr || !captured->fault.empty()) {
        return failed_precondition("the step is not replayed as a graph whose nodes are known");
      }
      FATHOM_ASSIGN_OR_RETURN(std::vector<DeviceRecord> records, recorder.take());
      std::erase_if(records, [](const DeviceRecord& record) { return record.graph_node == 0; });
      FATHOM_ASSIGN_OR_RETURN(const auto calls, calls_of_records(*captured, std::move(records), 0, places));
      times.push_back(time_of(calls, operation));
    }
    return median(std::move(times));
  };
  for (auto& [operation, row] : rows_) {
    const std::int32_t extra = num_extra(row);
    FATHOM_ASSIGN_OR_RETURN(const double more_us, recorded_us(operation, extra));
    FATHOM_ASSIGN_OR_RETURN(const double once_us, recorded_us(operation, 0));
    row.repeated_us = (more_us - once_us) / extra;
  }
  return {};
}

Result<double> IsolatedCheck::replay_us(const std::string& operation, std::int32_t extra) {
  FATHOM_RETURN_IF_ERROR(step_.run(names_of(operation), 1 + extra).status());
  const auto captured = model_.backend().last_captured();
  if (captured == nullptr) return 0.0;
  FATHOM_ASSIGN_OR_RETURN(const std::vector<double> segments, model_.backend().segment_times_us(*captured));
  double sum_us = 0;
  for (const double us : segments) sum_us += us;
  return sum_us;
}

Status IsolatedCheck::time_repeats(EmptyLaunches& empty) {
  std::vector<double> empty_us;
  for (int i = 0; i < 5; ++i) {
    FATHOM_ASSIGN_OR_RETURN(const double us, empty.run_us());
    if (i > 0) empty_us.push_back(us);
  }
  launch_us_ = median(std::move(empty_us)) - empty_record_us_;
  ExecutionContext& context = step_.executor().context();
  context.segments = SegmentTiming::kLayers;
  const auto timed = [&]() -> Status {
    for (int i = 0; i < 3; ++i) FATHOM_RETURN_IF_ERROR(replay_us("", 0).status());
    for (auto& [operation, row] : rows_) {
      const std::int32_t extra = num_extra(row);
      for (int i = 0; i < 3; ++i) FATHOM_RETURN_IF_ERROR(replay_us(operation, extra).status());
      std::vector<double> differences;
      for (std::int32_t i = 0; i < num_rounds_; ++i) {
        FATHOM_ASSIGN_OR_RETURN(const double before_us, replay_us("", 0));
        FATHOM_ASSIGN_OR_RETURN(const double more_us, replay_us(operation, extra));
        FATHOM_ASSIGN_OR_RETURN(const double behind_us, replay_us("", 0));
        differences.push_back(more_us - 0.5 * (before_us + behind_us));
      }
      row.repeated_event_us = median(std::move(differences)) / extra - row.launches * launch_us_;
    }
    return {};
  }();
  context.segments = SegmentTiming::kNone;
  return timed;
}

Status IsolatedCheck::time_alone(IsolatingObserver& observer) {
  ExecutionContext& context = step_.executor().context();
  std::vector<std::vector<double>> rounds;
  for (std::int32_t round = -1; round < num_rounds_; ++round) {
    context.observer = &observer;
    const Status ran = step_.run_taking(Taking::kTrace).status();
    context.observer = nullptr;
    FATHOM_RETURN_IF_ERROR(ran);
    FATHOM_ASSIGN_OR_RETURN(std::vector<double> times, observer.take_us());
    if (times.size() != step_.trace().samples.size()) {
      return internal_error("the step has " + std::to_string(step_.trace().samples.size()) + " calls and " +
                            std::to_string(times.size()) + " were timed");
    }
    if (round >= 0) rounds.push_back(std::move(times));
  }
  for (auto& [operation, row] : rows_) row.calls = row.alone_us = 0;
  std::vector<double> one;
  for (std::size_t call = 0; call < step_.trace().samples.size(); ++call) {
    one.clear();
    for (const std::vector<double>& times : rounds) one.push_back(times[call]);
    const auto found = rows_.find(std::string(step_.trace().samples[call].scope.operation));
    if (found == rows_.end()) continue;
    found->second.alone_us += median(one);
    found->second.calls += 1;
  }
  return {};
}

std::vector<IsolatedRow> IsolatedCheck::rows() const {
  std::vector<IsolatedRow> out;
  for (const auto& [operation, row] : rows_) out.push_back(row);
  std::sort(out.begin(), out.end(),
            [](const IsolatedRow& a, const IsolatedRow& b) { return a.attributed_us > b.attributed_us; });
  return out;
}

std::string isolated_json(const std::vector<IsolatedRow>& rows) {
  std::string out = "[";
  for (const IsolatedRow& row : rows) {
    char line[400];
    std::snprintf(line, sizeof line,
                  "%s\n{\"operation\":\"%s\",\"calls\":%.0f,\"launches\":%.0f,\"attributed_us\":%.3f,\"alone_us\":%.3f,"
                  "\"repeated_us\":%.3f,\"repeated_event_us\":%.3f}",
                  out.size() > 1 ? "," : "", row.operation.c_str(), row.calls, row.launches, row.attributed_us,
                  row.alone_us, row.repeated_us, row.repeated_event_us);
    out += line;
  }
  return out + "\n]\n";
}

std::string isolated_text(const std::vector<IsolatedRow>& rows, double launch_us) {
  char line[200];
  std::snprintf(line, sizeof line, "%-20s %6s %8s %11s   %13s %13s %8s   %11s\n", "", "", "", "in the step",
                "repeated:", "repeated:", "", "alone, cold:");
  std::string out = line;
  std::snprintf(line, sizeof line, "%-20s %6s %8s %11s   %13s %13s %8s   %11s\n", "operation", "calls", "launches",
                "us", "attributed us", "events us", "differ", "events us");
  out += line;
  double total = 0, held = 0, agree = 0;
  for (const IsolatedRow& row : rows) {
    total += row.attributed_us;
    const bool is_held = row.repeated_us > 0 && row.repeated_event_us > 0;
    const bool agrees = is_held && std::fabs(row.difference()) <= kIsolatedTolerance;
    held += is_held ? row.attributed_us : 0;
    agree += agrees ? row.attributed_us : 0;
    std::snprintf(line, sizeof line, "%-20s %6.0f %8.0f %11.2f   ", row.operation.c_str(), row.calls, row.launches,
                  row.attributed_us);
    out += line;
    if (is_held) {
      std::snprintf(line, sizeof line, "%13.2f %13.2f %+7.1f%%   ", row.repeated_us, row.repeated_event_us,
                    100 * row.difference());
    } else {
      std::snprintf(line, sizeof line, "%13s %13s %8s   ", "-", "-", "-");
    }
    out += line;
    std::snprintf(line, sizeof line, "%11.2f%s\n", row.alone_us, !is_held ? "" : agrees ? "  agrees" : "  DIFFERS");
    out += line;
  }
  std::snprintf(
      line, sizeof line,
      "of the summed time %.1f %% was held to events, and %.1f %% of that agrees within %.0f %%; each launch's "
      "%.2f us between two kernels is taken off the events\n",
      100 * held / std::max(1e-9, total), 100 * agree / std::max(1e-9, held), 100 * kIsolatedTolerance, launch_us);
  return out + line;
}

}  // namespace fathom
