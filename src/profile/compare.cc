#include "profile/compare.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "profile/format.h"

namespace fathom {
namespace {

constexpr std::pair<Difference, std::string_view> kDifferenceNames[kNumDifferences] = {
    {Difference::kBackend, "backend"}, {Difference::kDevice, "device"},     {Difference::kClocks, "clocks"},
    {Difference::kModel, "model"},     {Difference::kNumerics, "numerics"}, {Difference::kVariants, "variants"},
    {Difference::kBatch, "batch"},     {Difference::kContext, "context"},   {Difference::kExperts, "experts"},
    {Difference::kTokens, "tokens"},   {Difference::kThreads, "threads"},   {Difference::kCollector, "collector"},
};

constexpr double kClockTolerance = 0.02;
constexpr double kCeilingTolerance = 0.10;
constexpr double kContextTolerance = 0.02;
constexpr double kExpertsTolerance = 0.05;
constexpr double kTokensTolerance = 0.02;

// Relative to the larger one; figures that a run does not know (0) compare as equal.
bool differ(double a, double b, double tolerance) {
  if (a <= 0 || b <= 0) return false;
  return std::fabs(a - b) > tolerance * std::max(a, b);
}

class DifferenceList {
 public:
  explicit DifferenceList(const CompareOptions& options) : options_(options) {}

  void add(Difference kind, const std::string& before, const std::string& after) {
    const bool intended =
        std::find(options_.intended.begin(), options_.intended.end(), kind) != options_.intended.end();
    list_.push_back({kind, std::string(difference_name(kind)) + ": " + before + " against " + after, intended});
  }
  void texts(Difference kind, const std::string& before, const std::string& after) {
    const auto shown = [](const std::string& text) { return text.empty() ? std::string("(not told)") : text; };
    if (before != after) add(kind, shown(before), shown(after));
  }
  void counts(Difference kind, std::int64_t before, std::int64_t after, const char* unit) {
    if (before != after) add(kind, std::to_string(before) + unit, std::to_string(after) + unit);
  }
  void figures(Difference kind, double before, double after, double tolerance, const char* what) {
    if (differ(before, after, tolerance)) {
      add(kind, format_significant(before) + what, format_significant(after) + what);
    }
  }
  std::vector<RunDifference> take() { return std::move(list_); }

 private:
  const CompareOptions& options_;
  std::vector<RunDifference> list_;
};

// "sparse_attention simt" of the operations whose variants are not the same in both.
std::string changed_variants(const RunDescription& of, const RunDescription& other) {
  std::string out;
  for (const auto& [operation, variant] : of.variants) {
    const auto twin = other.variants.find(operation);
    if (twin != other.variants.end() && twin->second == variant) continue;
    out += (out.empty() ? "" : ", ") + operation + " " + variant;
  }
  return out.empty() ? "(none)" : out;
}

// What the experts that a step hit weigh, by the cost model: tells of other routing where nobody counted.
double expert_megabytes_per_step(const ProfileReport& report) {
  double bytes = 0;
  for (const ReportRow& row : report.rows) bytes += row.operation == "moe_experts" ? row.bytes : 0;
  return bytes / 1e6 / std::max<double>(1, static_cast<double>(report.total_steps()));
}

bool core_clocks_known(const ProfileReport& a, const ProfileReport& b) {
  return a.run.core_clock_mhz > 0 && b.run.core_clock_mhz > 0;
}

// Ceilings that differ at known clocks tell of the load while they were measured, not of the runs.
std::vector<std::string> find_notes(const ProfileReport& a, const ProfileReport& b) {
  std::vector<std::string> notes;
  if (!core_clocks_known(a, b)) return notes;
  const auto add = [&](double before, double after, const char* unit) {
    if (!differ(before, after, kCeilingTolerance)) return;
    notes.push_back("ceilings were measured under different load (" + format_significant(before / 1e9) + " against " +
                    format_significant(after / 1e9) + unit + "): shares of the ceiling are not comparable");
  };
  add(a.ceilings.memory_bytes_per_s, b.ceilings.memory_bytes_per_s, " GB/s");
  add(a.ceilings.flops_per_s, b.ceilings.flops_per_s, " GFLOP/s");
  return notes;
}

std::vector<RunDifference> find_differences(const ProfileReport& a, const ProfileReport& b,
                                            const CompareOptions& options) {
  DifferenceList list(options);
  list.texts(Difference::kBackend, a.run.backend, b.run.backend);
  list.texts(Difference::kDevice, a.run.device, b.run.device);
  list.figures(Difference::kClocks, a.run.core_clock_mhz, b.run.core_clock_mhz, kClockTolerance, " MHz");
  list.figures(Difference::kClocks, a.run.memory_clock_mhz, b.run.memory_clock_mhz, kClockTolerance, " MHz memory");
  if (!core_clocks_known(a, b)) {
    list.figures(Difference::kClocks, a.ceilings.memory_bytes_per_s / 1e9, b.ceilings.memory_bytes_per_s / 1e9,
                 kCeilingTolerance, " GB/s measured ceiling");
    list.figures(Difference::kClocks, a.ceilings.flops_per_s / 1e9, b.ceilings.flops_per_s / 1e9, kCeilingTolerance,
                 " GFLOP/s measured ceiling");
  }
  list.texts(Difference::kModel, a.run.model, b.run.model);
  list.texts(Difference::kNumerics, a.run.numerics, b.run.numerics);
  if (a.run.variants != b.run.variants) {
    list.add(Difference::kVariants, changed_variants(a.run, b.run), changed_variants(b.run, a.run));
  }
  list.counts(Difference::kBatch, a.run.batch_sequences, b.run.batch_sequences, " sequences");
  if (differ(static_cast<double>(a.run.context_tokens), static_cast<double>(b.run.context_tokens), kContextTolerance) ||
      (a.run.context_tokens == 0) != (b.run.context_tokens == 0)) {
    list.counts(Difference::kContext, a.run.context_tokens, b.run.context_tokens, " tokens");
  }
  if (a.experts_hit_per_step > 0 && b.experts_hit_per_step > 0) {
    list.figures(Difference::kExperts, a.experts_hit_per_step, b.experts_hit_per_step, kExpertsTolerance,
                 " experts hit a step");
  } else if (a.run.batch_sequences == b.run.batch_sequences) {
    list.figures(Difference::kExperts, expert_megabytes_per_step(a), expert_megabytes_per_step(b), kExpertsTolerance,
                 " MB moved for the experts hit");
  }
  list.figures(Difference::kTokens, a.tokens_per_step, b.tokens_per_step, kTokensTolerance, " rows a step");
  list.figures(Difference::kTokens, a.committed_tokens_per_step, b.committed_tokens_per_step, kTokensTolerance,
               " committed tokens a step");
  list.counts(Difference::kThreads, a.run.num_threads, b.run.num_threads, " threads");
  list.texts(Difference::kCollector, a.run.collector, b.run.collector);
  return list.take();
}

// What one profile says of one row: totals per repeat.
struct Side {
  std::vector<double> critical_us, summed_us;
  std::int64_t num_launches = 0;
  double bytes = 0;
  bool present = false;

  void add(const std::vector<double>& critical, const std::vector<double>& summed) {
    critical_us.resize(std::max(critical_us.size(), critical.size()));
    summed_us.resize(std::max(summed_us.size(), summed.size()));
    for (std::size_t i = 0; i < critical.size(); ++i) critical_us[i] += critical[i];
    for (std::size_t i = 0; i < summed.size(); ++i) summed_us[i] += summed[i];
    present = true;
  }
};

using RowKey = std::tuple<std::string, std::string, std::string>;  // category, operation, kernel
enum class Level { kCategory, kOperation, kKernel };

std::map<RowKey, Side> collect(const ProfileReport& report, Level level) {
  std::map<RowKey, Side> sides;
  for (const ReportRow& row : report.rows) {
    Side& side = sides[{row.category, level == Level::kCategory ? "" : row.operation,
                        level == Level::kKernel ? row.kernel : ""}];
    side.add(row.critical_us, row.time_us);
    side.num_launches += row.num_launches;
    side.bytes += row.bytes;
  }
  return sides;
}

std::map<RowKey, Side> collect_host(const ProfileReport& report) {
  std::map<RowKey, Side> sides;
  for (const HostGap& gap : report.host_gaps) sides[{"host", gap.name, ""}].add(gap.critical_us, gap.time_us);
  sides[{"host", "idle", ""}].add(report.idle_us, report.idle_us);
  sides[{"host", "unaccounted", ""}].add(report.unaccounted_us, report.unaccounted_us);
  return sides;
}

std::vector<double> per_step(std::vector<double> totals, const ProfileReport& report) {
  totals.resize(report.step_us.size());  // absent in this profile: zero in every repeat
  for (std::size_t r = 0; r < totals.size(); ++r) {
    totals[r] /= std::max<double>(1, static_cast<double>(report.step_us[r].size()));
  }
  return totals;
}

Change make_change(const std::vector<double>& before, const std::vector<double>& after, double confidence) {
  Change change;
  change.before_us = mean_interval(before, confidence).mean;
  change.after_us = mean_interval(after, confidence).mean;
  change.difference = difference_interval(before, after, confidence);
  // Sums in another order are no change.
  const double rounding = 1e-9 * std::max(std::fabs(change.before_us), std::fabs(change.after_us));
  if (change.difference.low == change.difference.high && std::fabs(change.difference.mean) <= rounding) {
    change.difference = {0, 0, 0, change.difference.known};
  }
  return change;
}

void sort_rows(std::vector<ComparedRow>& rows) {
  std::sort(rows.begin(), rows.end(), [](const ComparedRow& a, const ComparedRow& b) {
    const double a_critical = std::fabs(a.critical.difference.mean), b_critical = std::fabs(b.critical.difference.mean);
    if (a_critical != b_critical) return a_critical > b_critical;
    return std::fabs(a.summed.difference.mean) > std::fabs(b.summed.difference.mean);
  });
}

std::vector<ComparedRow> align(const ProfileReport& before, const ProfileReport& after,
                               const std::map<RowKey, Side>& sides_before, const std::map<RowKey, Side>& sides_after) {
  std::map<RowKey, std::pair<Side, Side>> both;
  for (const auto& [key, side] : sides_before) both[key].first = side;
  for (const auto& [key, side] : sides_after) both[key].second = side;
  const double steps_before = std::max<double>(1, static_cast<double>(before.total_steps()));
  const double steps_after = std::max<double>(1, static_cast<double>(after.total_steps()));
  std::vector<ComparedRow> rows;
  for (const auto& [key, pair] : both) {
    const auto& [a, b] = pair;
    ComparedRow& row = rows.emplace_back();
    std::tie(row.category, row.operation, row.kernel) = key;
    row.presence = !a.present ? Presence::kNew : !b.present ? Presence::kVanished : Presence::kBoth;
    row.critical = make_change(per_step(a.critical_us, before), per_step(b.critical_us, after), kRowConfidence);
    row.summed = make_change(per_step(a.summed_us, before), per_step(b.summed_us, after), kRowConfidence);
    row.launches_before = static_cast<double>(a.num_launches) / steps_before;
    row.launches_after = static_cast<double>(b.num_launches) / steps_after;
    row.bytes_before = a.bytes / steps_before;
    row.bytes_after = b.bytes / steps_after;
    if (!row.kernel.empty()) continue;
    if (const ExposedTime* exposed = before.find_exposed(row.category, row.operation)) row.exposed_before = *exposed;
    if (const ExposedTime* exposed = after.find_exposed(row.category, row.operation)) row.exposed_after = *exposed;
  }
  sort_rows(rows);
  return rows;
}

Verdict judge(const Comparison& comparison) {
  for (const RunDifference& difference : comparison.differences) {
    if (!difference.intended) return Verdict::kNotComparable;
  }
  const Change& change = comparison.judged();
  if (!change.difference.known) return Verdict::kUnproven;
  if (!change.significant()) return Verdict::kNoDifference;
  return change.difference.mean < 0 ? Verdict::kFaster : Verdict::kSlower;
}

std::vector<const ComparedRow*> moved(const Comparison& comparison, bool up) {
  std::vector<const ComparedRow*> rows;
  for (const auto* list : {&comparison.operations, &comparison.host}) {
    for (const ComparedRow& row : *list) {
      if (row.critical.significant() && (row.critical.difference.mean > 0) == up) rows.push_back(&row);
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const ComparedRow* a, const ComparedRow* b) {
    return std::fabs(a->critical.difference.mean) > std::fabs(b->critical.difference.mean);
  });
  return rows;
}

}  // namespace

std::string_view difference_name(Difference difference) {
  for (const auto& [kind, name] : kDifferenceNames) {
    if (kind == difference) return name;
  }
  return "";
}

std::optional<Difference> parse_difference(std::string_view name) {
  for (const auto& [kind, known] : kDifferenceNames) {
    if (known == name) return kind;
  }
  return std::nullopt;
}

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFaster: return "faster";
    case Verdict::kSlower: return "slower";
    case Verdict::kNoDifference: return "no difference";
    case Verdict::kUnproven: return "unproven";
    case Verdict::kNotComparable: return "not comparable";
  }
  return "";
}

std::string ComparedRow::label() const {
  if (operation.empty()) return category;
  return kernel.empty() ? operation : operation + ": " + kernel;
}

double Comparison::percent(const Change& change) const {
  return change.before_us > 0 ? 100 * change.difference.mean / change.before_us : 0;
}

std::vector<const ComparedRow*> Comparison::risen() const { return moved(*this, true); }
std::vector<const ComparedRow*> Comparison::fallen() const { return moved(*this, false); }

std::vector<const ComparedRow*> Comparison::kernels_of(Presence presence) const {
  std::vector<const ComparedRow*> rows;
  for (const ComparedRow& row : kernels) {
    if (row.presence == presence) rows.push_back(&row);
  }
  return rows;
}

Comparison compare_reports(const ProfileReport& before, const ProfileReport& after, std::string name_before,
                           std::string name_after, const CompareOptions& options) {
  Comparison c;
  c.name_before = std::move(name_before);
  c.name_after = std::move(name_after);
  c.run_before = before.run;
  c.run_after = after.run;
  c.differences = find_differences(before, after, options);
  c.notes = find_notes(before, after);
  const std::vector<double> means_before = before.repeat_means_us(), means_after = after.repeat_means_us();
  c.repeats_before = static_cast<std::int64_t>(means_before.size());
  c.repeats_after = static_cast<std::int64_t>(means_after.size());
  c.step = make_change(means_before, means_after, kStepConfidence);
  if (before.committed_tokens_per_step > 0 && after.committed_tokens_per_step > 0) {
    const auto per_token = [](std::vector<double> means, double tokens) {
      for (double& mean : means) mean /= tokens;
      return means;
    };
    c.token = make_change(per_token(means_before, before.committed_tokens_per_step),
                          per_token(means_after, after.committed_tokens_per_step), kStepConfidence);
    c.judged_per_token = differ(before.committed_tokens_per_step, after.committed_tokens_per_step, kTokensTolerance);
  }
  c.steps_per_s_before = before.steps_per_s();
  c.steps_per_s_after = after.steps_per_s();
  c.tokens_per_s_before = before.tokens_per_s();
  c.tokens_per_s_after = after.tokens_per_s();
  for (const auto& [level, rows] :
       {std::pair{Level::kCategory, &c.categories}, std::pair{Level::kOperation, &c.operations},
        std::pair{Level::kKernel, &c.kernels}}) {
    *rows = align(before, after, collect(before, level), collect(after, level));
  }
  c.host = align(before, after, collect_host(before), collect_host(after));
  c.verdict = judge(c);
  return c;
}

bool is_slower_by(const Comparison& comparison, double fraction) {
  const Change& change = comparison.judged();
  return change.significant() && change.difference.mean > 0 && change.difference.mean >= fraction * change.before_us;
}

Result<double> parse_fraction(std::string_view text) {
  const std::string given(text);
  const bool is_percent = text.ends_with('%');
  if (is_percent) text.remove_suffix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || value < 0) {
    return invalid_argument("found \"" + given + "\", expected a share of at least 0 such as 3% or 0.03");
  }
  return is_percent ? value / 100 : value;
}

}  // namespace fathom
