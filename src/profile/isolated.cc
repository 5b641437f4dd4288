#include "profile/isolated.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

namespace fathom {

Result<std::vector<IsolatedRow>> measure_isolated(ModelStep& step, IsolatingObserver& observer,
                                                  const ProfileReport& report, std::int32_t num_rounds) {
  ExecutionContext& context = step.executor().context();
  std::vector<std::vector<double>> rounds;
  for (std::int32_t round = -1; round < num_rounds; ++round) {
    context.observer = &observer;
    const Status ran = step.run_taking(Taking::kTrace).status();
    context.observer = nullptr;
    FATHOM_RETURN_IF_ERROR(ran);
    FATHOM_ASSIGN_OR_RETURN(std::vector<double> times, observer.take_us());
    if (times.size() != step.trace().samples.size()) {
      return internal_error("the step has " + std::to_string(step.trace().samples.size()) + " calls and " +
                            std::to_string(times.size()) + " were timed");
    }
    if (round >= 0) rounds.push_back(std::move(times));
  }
  std::map<std::string, IsolatedRow> rows;
  for (const ReportRow& row : report.rows) {
    IsolatedRow& into = rows[row.operation];
    into.attributed_us += row.total_us() / static_cast<double>(report.total_steps());
    into.launches += static_cast<double>(row.num_launches) / static_cast<double>(report.total_steps());
  }
  std::vector<double> one;
  for (std::size_t call = 0; call < step.trace().samples.size(); ++call) {
    one.clear();
    for (const std::vector<double>& times : rounds) one.push_back(times[call]);
    std::nth_element(one.begin(), one.begin() + std::ssize(one) / 2, one.end());
    IsolatedRow& row = rows[std::string(step.trace().samples[call].scope.operation)];
    row.isolated_us += one[one.size() / 2];
    row.calls += 1;
  }
  std::vector<IsolatedRow> out;
  for (auto& [operation, row] : rows) {
    if (row.calls == 0 || row.isolated_us <= 0) continue;  // copies are no calls
    row.operation = operation;
    out.push_back(row);
  }
  std::sort(out.begin(), out.end(),
            [](const IsolatedRow& a, const IsolatedRow& b) { return a.attributed_us > b.attributed_us; });
  return out;
}

std::string isolated_text(const std::vector<IsolatedRow>& rows) {
  char line[160];
  std::snprintf(line, sizeof line, "%-20s %6s %8s %14s %14s %8s\n", "operation", "calls", "launches", "attributed us",
                "isolated us", "differ");
  std::string out = line;
  double total = 0, held = 0, agree = 0;
  for (const IsolatedRow& row : rows) {
    const bool is_long = row.isolated_us >= kIsolatedLeast_us * std::max(row.calls, row.launches);
    const bool agrees = std::fabs(row.difference()) <= kIsolatedTolerance;
    total += row.attributed_us;
    held += is_long ? row.attributed_us : 0;
    agree += is_long && agrees ? row.attributed_us : 0;
    std::snprintf(line, sizeof line, "%-20s %6.0f %8.0f %14.2f %14.2f %+7.1f%%%s\n", row.operation.c_str(), row.calls,
                  row.launches, row.attributed_us, row.isolated_us, 100 * row.difference(),
                  !is_long ? "  launches too short to tell"
                  : agrees ? "  agrees"
                           : "  DIFFERS");
    out += line;
  }
  std::snprintf(line, sizeof line,
                "launches of %.0f us or more: %.1f %% of the summed time, of which %.1f %% agree within %.0f %%\n",
                kIsolatedLeast_us, 100 * held / std::max(1e-9, total), 100 * agree / std::max(1e-9, held),
                100 * kIsolatedTolerance);
  return out + line;
}

}  // namespace fathom
