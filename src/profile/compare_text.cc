// A comparison for a terminal.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "profile/compare.h"
#include "profile/format.h"

namespace fathom {
namespace {

using Cells = std::vector<std::string>;

std::string pad(const std::string& text, std::size_t width, bool left) {
  const std::string space(width > text.size() ? width - text.size() : 0, ' ');
  return left ? text + space : space + text;
}

// Columns as wide as they need, the first to the left, the others to the right.
std::string table(const std::vector<Cells>& rows) {
  std::vector<std::size_t> widths;
  for (const Cells& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const Cells& row : rows) {
    std::string line = "  ";
    for (std::size_t i = 0; i < row.size(); ++i)
      line += pad(row[i], widths[i], i == 0) + (i + 1 < row.size() ? "  " : "");
    while (line.ends_with(' ')) line.pop_back();
    out += line + "\n";
  }
  return out;
}

std::string describe_run(const std::string& name, const RunDescription& run) {
  std::string out = name + ": " + run.backend + ", " + run.device + ", " + run.model + " " + run.numerics + ", batch " +
                    std::to_string(run.batch_sequences) + ", context " + std::to_string(run.context_tokens) + ", " +
                    std::to_string(run.num_repeats) + " x " + std::to_string(run.num_steps) + " steps";
  if (run.core_clock_mhz > 0) out += ", " + format_significant(run.core_clock_mhz) + " MHz";
  if (!run.date.empty()) out += ", " + run.date;
  if (!run.commit.empty()) out += ", " + run.commit;
  return out;
}

std::string interval_percent(const Comparison& c, const Change& change) {
  if (!change.difference.known || change.before_us <= 0) return "no interval: one repeat";
  return "[" + format_signed_percent(100 * change.difference.low / change.before_us) + ", " +
         format_signed_percent(100 * change.difference.high / change.before_us) + "]" +
         (&change == &c.judged() && c.token.has_value() && c.judged_per_token ? " <- judged" : "");
}

Cells headline_row(const Comparison& c, const char* name, const Change& change) {
  return {name,
          format_time_us(change.before_us),
          format_time_us(change.after_us),
          format_signed_ms(change.difference.mean) + " ms",
          format_signed_percent(c.percent(change)),
          interval_percent(c, change)};
}

std::string presence_mark(const ComparedRow& row) {
  return row.presence == Presence::kNew ? "new" : row.presence == Presence::kVanished ? "gone" : "";
}

std::string exposed_cell(const std::optional<ExposedTime>& exposed) {
  if (!exposed) return "-";
  return format_ms(exposed->us) + " +-" + format_ms((exposed->high_us - exposed->low_us) / 2);
}

// Nothing where nothing is launched: host phases.
std::string launches_cell(const ComparedRow& row, double launches) {
  return row.launches_before + row.launches_after > 0 ? format_significant(launches) : "";
}

std::string rows_table(const Comparison& c, const std::vector<ComparedRow>& rows, const char* title,
                       std::size_t max_rows) {
  if (rows.empty()) return "";
  const bool has_exposed = std::any_of(rows.begin(), rows.end(), [](const ComparedRow& row) {
    return row.exposed_before.has_value() || row.exposed_after.has_value();
  });
  std::vector<Cells> cells = {
      {title, "path A", "path B", "change", "%", "", "summed A", "summed B", "change", "", "launches A", "B", ""}};
  if (has_exposed) cells[0].insert(cells[0].end() - 1, {"exposed A", "exposed B"});
  const std::size_t shown = std::min(rows.size(), max_rows);
  for (std::size_t i = 0; i < shown; ++i) {
    const ComparedRow& row = rows[i];
    Cells line = {row.label(),
                  format_ms(row.critical.before_us),
                  format_ms(row.critical.after_us),
                  format_signed_ms(row.critical.difference.mean),
                  row.critical.before_us > 0 ? format_signed_percent(c.percent(row.critical)) : "",
                  row.critical.significant() ? "*" : "",
                  format_ms(row.summed.before_us),
                  format_ms(row.summed.after_us),
                  format_signed_ms(row.summed.difference.mean),
                  row.summed.significant() ? "*" : "",
                  launches_cell(row, row.launches_before),
                  launches_cell(row, row.launches_after),
                  presence_mark(row)};
    if (has_exposed) {
      line.insert(line.end() - 1, {exposed_cell(row.exposed_before), exposed_cell(row.exposed_after)});
    }
    cells.push_back(std::move(line));
  }
  std::string out = "\n" + table(cells);
  if (shown < rows.size()) out += "  ... and " + std::to_string(rows.size() - shown) + " with smaller changes\n";
  return out;
}

std::string moved_line(const char* word, const std::vector<const ComparedRow*>& rows) {
  std::string out;
  for (const ComparedRow* row : rows) {
    out += (out.empty() ? "" : ", ") + row->label() + " " + format_signed_ms(row->critical.difference.mean) + " ms";
    if (row->presence != Presence::kBoth) out += " (" + presence_mark(*row) + ")";
  }
  return std::string(word) + (out.empty() ? "nothing significantly" : out) + "\n";
}

// "new     linear: widen +0.3100 ms, and 4 more"; nothing where there are none.
std::string kernels_line(const char* word, const std::vector<const ComparedRow*>& rows) {
  constexpr std::size_t kMostNamed = 6;
  if (rows.empty()) return "";
  std::string out = word;
  for (std::size_t i = 0; i < std::min(rows.size(), kMostNamed); ++i) {
    out += (i == 0 ? "" : ", ") + rows[i]->label() + " " + format_signed_ms(rows[i]->critical.difference.mean) + " ms";
  }
  if (rows.size() > kMostNamed) out += " and " + std::to_string(rows.size() - kMostNamed) + " more";
  return out + "\n";
}

}  // namespace

std::string comparison_text(const Comparison& c, std::size_t max_rows) {
  std::string out =
      "A  " + describe_run(c.name_before, c.run_before) + "\nB  " + describe_run(c.name_after, c.run_after) + "\n\n";
  for (const RunDifference& difference : c.differences) {
    out += (difference.intended ? "on purpose  " : "WARNING     ") + difference.text + "\n";
  }
  for (const std::string& note : c.notes) out += "note        " + note + "\n";
  if (!c.differences.empty() || !c.notes.empty()) out += "\n";
  std::vector<Cells> head = {{"", "A", "B", "change", "%", "95 % interval"}, headline_row(c, "step", c.step)};
  if (c.token.has_value()) head.push_back(headline_row(c, "per committed token", *c.token));
  head.push_back({"steps/s", format_significant(c.steps_per_s_before), format_significant(c.steps_per_s_after)});
  head.push_back({"tok/s", format_significant(c.tokens_per_s_before), format_significant(c.tokens_per_s_after)});
  out += table(head) + "\n";
  out += verdict_sentence(c) + "\n";
  if (c.verdict == Verdict::kNotComparable) out += "differences (no claim):\n";
  out += moved_line("rose   ", c.risen()) + moved_line("fell   ", c.fallen());
  out += kernels_line("new    ", c.kernels_of(Presence::kNew)) +
         kernels_line("gone   ", c.kernels_of(Presence::kVanished));
  out += rows_table(c, c.categories, "category", max_rows);
  out += rows_table(c, c.operations, "operation", max_rows);
  out += rows_table(c, c.kernels, "kernel", max_rows);
  out += rows_table(c, c.host, "host", max_rows);
  out +=
      "\nms per step. path: on the critical path, these add up to the step; summed: overlapped work counted fully.\n" +
      significance_sentence(c) + "\n";
  return out;
}

std::string verdict_sentence(const Comparison& c) {
  const std::string subject = &c.judged() == &c.step ? "a step" : "a committed token";
  switch (c.verdict) {
    case Verdict::kNotComparable:
      return "NOT COMPARABLE: the runs differ in more than the change under test, so no win or loss is claimed "
             "(--intended NAME says that a difference is the change)";
    case Verdict::kUnproven: return "UNPROVEN: one repeat has no spread; profile both with --repeats 5 or more";
    case Verdict::kNoDifference: return "NO DIFFERENCE: the interval of " + subject + " holds zero";
    case Verdict::kFaster:
    case Verdict::kSlower: break;
  }
  const double percent = c.percent(c.judged());
  char size[64];
  std::snprintf(size, sizeof size, " takes %.1f %% %s time", std::fabs(percent), percent < 0 ? "less" : "more");
  return (c.verdict == Verdict::kFaster ? "FASTER: " : "SLOWER: ") + subject + size;
}

std::string significance_sentence(const Comparison& c) {
  return "Significant (*): Welch's interval over the repeats' means (" + std::to_string(c.repeats_before) + " and " +
         std::to_string(c.repeats_after) + "), 95 % for the step and 99 % for a row, excludes zero.";
}

}  // namespace fathom
