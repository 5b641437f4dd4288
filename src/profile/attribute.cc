#include "profile/attribute.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "profile/categories.h"

namespace fathom {
namespace {

constexpr double kSameMoment_us = 1e-3;

// Host phases by where they lie, and what a stretch without a call counts as.
class Gaps {
 public:
  Gaps(const TimelineStep& step, StepAttribution& out) : step_(step), out_(out) {
    if (!step.calls.empty()) {
      first_call_us_ = step.calls.front().begin_us;
      for (const TimelineCall& call : step.calls) {
        first_call_us_ = std::min(first_call_us_, call.begin_us);
        last_call_us_ = std::max(last_call_us_, call.end_us());
      }
    }
  }

  void explain(double begin_us, double end_us) {
    double explained = 0;
    for (const HostPhase& phase : step_.phases) {
      const double from = std::max(begin_us, phase.begin_us), to = std::min(end_us, phase.end_us());
      if (to <= from) continue;
      explained += to - from;
      if (!phase.container) {
        out_.host_us[phase.name] += to - from;
      } else if (!step_.on_device) {
        out_.host_us["launch"] += to - from;
        launch_gap_us_ += to - from;
      } else {
        explain_device(from, to);
      }
    }
    out_.unaccounted_us += end_us - begin_us - explained;
  }

  // The capture's own work lies between calls, so in the gaps of the forward pass.
  void take_out_collection() {
    const double collect = std::min(step_.collect_us, launch_gap_us_);
    if (collect <= 0) return;
    out_.host_us["launch"] -= collect;
    out_.host_us["collect"] += collect;
  }

 private:
  // Inside a container: before the first kernel the host launches, behind the last one it waits, between them the
  // device is idle.
  void explain_device(double from, double to) {
    const double launch = std::clamp(first_call_us_, from, to) - from;
    const double wait = to - std::clamp(last_call_us_, from, to);
    if (launch > 0) out_.host_us["launch"] += launch;
    if (wait > 0) out_.host_us["wait"] += wait;
    out_.idle_us += to - from - launch - wait;
  }

  const TimelineStep& step_;
  StepAttribution& out_;
  double first_call_us_ = 0, last_call_us_ = 0;
  double launch_gap_us_ = 0;
};

// The critical path over one step's calls.
class Walk {
 public:
  explicit Walk(const TimelineStep& step)
      : calls_(step.calls),
        visited_(step.calls.size()),
        num_left_(step.calls.size()),
        by_end_(step.calls.size()),
        before_(step.calls.size(), -1) {
    std::iota(by_end_.begin(), by_end_.end(), 0);
    std::sort(by_end_.begin(), by_end_.end(), [&](int a, int b) { return end(a) < end(b); });
    std::vector<int> by_begin(calls_.size());
    std::iota(by_begin.begin(), by_begin.end(), 0);
    std::stable_sort(by_begin.begin(), by_begin.end(), [&](int a, int b) { return begin(a) < begin(b); });
    std::map<std::int32_t, int> last;
    for (const int i : by_begin) {
      const auto [found, fresh] = last.try_emplace(calls_[at(i)].lane, i);
      if (!fresh) before_[at(i)] = std::exchange(found->second, i);
    }
  }

  // The last call to end at or before `moment` that was not handed out yet; -1: none. `moment` never rises.
  int ended_by(double moment) {
    while (num_left_ > 0 &&
           (visited_[at(by_end_[num_left_ - 1])] || end(by_end_[num_left_ - 1]) > moment + kSameMoment_us)) {
      --num_left_;
    }
    return num_left_ == 0 ? -1 : visit(by_end_[num_left_ - 1]);
  }
  // The call before `i` on its lane when it still runs at i's begin (launched before its predecessor ended).
  int overlapping_predecessor(int i) {
    const int p = before_[at(i)];
    return p >= 0 && !visited_[at(p)] && end(p) > begin(i) + kSameMoment_us && begin(p) < begin(i) ? visit(p) : -1;
  }
  double begin(int i) const { return calls_[at(i)].begin_us; }
  double end(int i) const { return calls_[at(i)].end_us(); }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  int visit(int i) {
    visited_[at(i)] = true;
    return i;
  }
  const std::vector<TimelineCall>& calls_;
  std::vector<bool> visited_;
  std::size_t num_left_;
  std::vector<int> by_end_;
  std::vector<int> before_;
};

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const auto n = static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + n, values.end());
  return values[static_cast<std::size_t>(n)];
}
double mean(std::span<const double> values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

using RowKey = std::tuple<std::int64_t, std::string, std::string, std::string>;  // layer, operation, variant, kernel

}  // namespace

StepAttribution attribute_step(const TimelineStep& step) {
  StepAttribution out;
  out.call_us.assign(step.calls.size(), 0.0);
  Gaps gaps(step, out);
  Walk walk(step);
  double moment = step.total_us;
  int call = walk.ended_by(moment);
  while (call >= 0 && moment > 0) {
    if (walk.end(call) < moment) gaps.explain(std::max(0.0, walk.end(call)), moment);
    moment = std::min(moment, walk.end(call));
    const double begin = std::max(0.0, walk.begin(call));
    out.call_us[static_cast<std::size_t>(call)] += std::max(0.0, moment - begin);
    moment = std::min(moment, begin);
    const int predecessor = walk.overlapping_predecessor(call);
    call = predecessor >= 0 ? predecessor : walk.ended_by(moment);
  }
  if (moment > 0) gaps.explain(0, moment);
  gaps.take_out_collection();
  return out;
}

void attribute_repeats(std::span<const std::vector<TimelineStep>> repeats, std::span<const double> http_us,
                       ProfileReport& report) {
  const std::size_t n = repeats.size();
  std::map<RowKey, ReportRow> rows;
  std::map<std::string, HostGap> host;
  const auto gap_of = [&](const std::string& name) -> HostGap& {
    HostGap& gap = host[name];
    gap.name = name;
    gap.time_us.resize(n);
    gap.critical_us.resize(n);
    return gap;
  };
  report.step_us.assign(n, {});
  report.idle_us.assign(n, 0.0);
  report.unaccounted_us.assign(n, 0.0);
  double tokens = 0, committed = 0, experts = 0, num_steps = 0, num_counted = 0;
  for (std::size_t r = 0; r < n; ++r) {
    for (const TimelineStep& step : repeats[r]) {
      report.step_us[r].push_back(step.total_us);
      tokens += step.num_tokens;
      committed += step.committed_tokens;
      num_steps += 1;
      experts += step.experts_hit;
      num_counted += step.experts_hit > 0 ? 1 : 0;
      const StepAttribution attribution = attribute_step(step);
      for (std::size_t i = 0; i < step.calls.size(); ++i) {
        const TimelineCall& call = step.calls[i];
        const std::string& kernel = call.kernel.empty() ? call.variant : call.kernel;
        ReportRow& row = rows[{call.layer, call.operation, call.variant, kernel}];
        if (row.time_us.empty()) {
          row.category = category_of(call.operation);
          row.operation = call.operation;
          row.variant = call.variant;
          row.layer = call.layer;
          row.kernel = kernel;
          row.time_us.resize(n);
          row.critical_us.resize(n);
        }
        row.time_us[r] += call.time_us;
        row.critical_us[r] += attribution.call_us[i];
        ++row.num_launches;
        row.bytes += call.bytes;
        row.flops += call.flops;
      }
      for (const HostPhase& phase : step.phases) {
        if (!phase.container) gap_of(phase.name).time_us[r] += phase.time_us;
      }
      for (const auto& [name, us] : attribution.host_us) gap_of(name).critical_us[r] += us;
      report.idle_us[r] += attribution.idle_us;
      report.unaccounted_us[r] += attribution.unaccounted_us;
    }
  }
  for (std::size_t r = 0; r < std::min(n, http_us.size()); ++r) gap_of("http").time_us[r] = http_us[r];
  report.rows.clear();
  for (auto& [key, row] : rows) report.rows.push_back(std::move(row));
  report.host_gaps.clear();
  for (auto& [name, gap] : host) {
    // Gaps that only the walk knows have the walk's time.
    for (std::size_t r = 0; r < n; ++r) gap.time_us[r] = std::max(gap.time_us[r], gap.critical_us[r]);
    report.host_gaps.push_back(std::move(gap));
  }
  report.tokens_per_step = num_steps > 0 ? tokens / num_steps : 0;
  report.committed_tokens_per_step = num_steps > 0 ? committed / num_steps : 0;
  report.experts_hit_per_step = num_counted > 0 ? experts / num_counted : 0;
}

Steadiness judge_steadiness(const ProfileReport& report) {
  std::vector<double> spreads, drifts;
  for (const std::vector<double>& steps : report.step_us) {
    if (steps.size() < 2) continue;
    spreads.push_back((quantile(steps, 0.9) - quantile(steps, 0.1)) / std::max(1e-9, quantile(steps, 0.5)));
    const std::size_t half = steps.size() / 2;
    const double first = mean(std::span(steps).first(half)), second = mean(std::span(steps).last(half));
    drifts.push_back((second - first) / std::max(1e-9, first));
  }
  Steadiness out;
  out.spread = quantile(spreads, 0.5);
  out.drift = quantile(drifts, 0.5);
  out.steady = !spreads.empty() && out.spread <= kSteadySpread && std::fabs(out.drift) <= kSteadyDrift;
  return out;
}

}  // namespace fathom
