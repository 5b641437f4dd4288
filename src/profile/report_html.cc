#include <algorithm>
#include <cstdio>
#include <set>

#include "profile/attribute.h"
#include "profile/exposed.h"
#include "profile/format.h"
#include "profile/page.h"
#include "profile/pictures.h"
#include "profile/report_text.h"
#include "profile/statistics.h"
#include "profile/tables.h"

namespace fathom {
namespace {

// What the pictures of this page need beyond the common style.
constexpr const char* kOwnStyle =
    "<style>svg .heat{fill:#1f7a8c}svg .roof{stroke:var(--ink);stroke-width:1.6}svg .bubble{fill-opacity:.82;"
    "stroke:var(--card);stroke-width:1}svg .dot{fill:var(--card);stroke:var(--ink);stroke-width:1.8}"
    "@media(prefers-color-scheme:dark){svg .heat{fill:#3fa9bd}}</style>";

std::string print(const char* pattern, double value) {
  char buffer[352];
  std::snprintf(buffer, sizeof buffer, pattern, value);
  return buffer;
}

std::string cell(const std::string& text) { return "<td>" + escape_html(text) + "</td>"; }

std::string tile(const std::string& name, const std::string& value, const std::string& below) {
  return "<div class=\"card\"><div class=\"tile-name\">" + escape_html(name) + "</div><div class=\"tile-value\">" +
         escape_html(value) + "</div><div class=\"soft\">" + escape_html(below) + "</div></div>";
}

std::string tiles(const ProfileReport& report) {
  const Interval step = mean_interval(report.repeat_means_us(), 0.95);
  const Steadiness steady = judge_steadiness(report);
  double summed = 0;
  for (const TableRow& row : category_table(report)) summed += row.time_us;
  const Ceilings& ceilings = report.ceilings;
  std::string out = "<div class=\"tiles\">";
  out += tile("step", format_time_us(report.mean_step_us()),
              step.known ? format_time_us(std::max(0.0, step.low)) + " to " + format_time_us(step.high) + " (95 %)"
                         : "one repeat");
  out += tile(
      "tokens/s", print("%.1f", report.tokens_per_s()),
      print("%.2f", report.committed_tokens_per_step) + " a step, " + print("%.1f", report.steps_per_s()) + " steps/s");
  out += tile("summed time of operations", print("%.1f %%", 100 * summed / std::max(1e-9, report.mean_step_us())),
              "of the step; overlap counts twice");
  out += tile("steady state", steady.steady ? "yes" : "no",
              "spread " + print("%.1f %%", 100 * steady.spread) + ", drift " + print("%+.1f %%", 100 * steady.drift));
  if (ceilings.memory_bytes_per_s > 0) {
    const bool is_tera = ceilings.flops_per_s >= 1e12;
    out += tile("ceilings, same session", print("%.1f GB/s", ceilings.memory_bytes_per_s / 1e9),
                print("%.1f ", ceilings.flops_per_s / (is_tera ? 1e12 : 1e9)) + (is_tera ? "TFLOP/s, " : "GFLOP/s, ") +
                    print("%.2f us a launch", ceilings.launch_us));
  }
  return out + "</div>\n";
}

std::string rows_table(const std::vector<TableRow>& rows, const Ceilings& ceilings) {
  const auto share = [](double ceiling, double value) { return ceiling > 0 ? print("%.0f %%", 100 * value) : "-"; };
  std::string out =
      "<div class=\"scroll\"><table class=\"wide\"><tr><th></th><th>ms/step</th><th>of summed</th><th>critical "
      "ms</th><th>of step</th>"
      "<th>launches</th><th>mean us</th><th>MB</th><th>GB/s</th><th>of memory</th><th>GFLOP/s</th><th>of peak</th>"
      "<th>bound by</th></tr>";
  for (const TableRow& row : rows) {
    const std::string name =
        row.operation.empty() ? row.category : row.operation + (row.variant.empty() ? "" : "/" + row.variant);
    out += "<tr>" + cell(name) + cell(print("%.4f", row.time_us / 1e3)) +
           cell(print("%.1f %%", 100 * row.summed_share)) + cell(print("%.4f", row.critical_us / 1e3)) +
           cell(print("%.1f %%", 100 * row.critical_share)) + cell(print("%.1f", row.launches)) +
           cell(print("%.2f", row.mean_us)) + cell(print("%.3f", row.bytes / 1e6)) +
           cell(print("%.2f", row.bytes_per_s / 1e9)) + cell(share(ceilings.memory_bytes_per_s, row.memory_share)) +
           cell(print("%.2f", row.flops_per_s / 1e9)) + cell(share(ceilings.flops_per_s, row.compute_share)) +
           cell(std::string(bound_name(row.bound))) + "</tr>";
  }
  return out + "</table></div>\n";
}

std::string host_rows(const ProfileReport& report) {
  std::string out =
      "<div class=\"scroll\"><table><tr><th></th><th>ms/step</th><th>critical ms</th><th>of "
      "step</th><th>what</th></tr>";
  for (const HostRow& row : host_table(report)) {
    out += "<tr>" + cell(row.name) + cell(print("%.4f", row.time_us / 1e3)) +
           cell(print("%.4f", row.critical_us / 1e3)) + cell(print("%.2f %%", 100 * row.critical_share)) +
           "<td class=\"words\">" + escape_html(row.what) + "</td></tr>";
  }
  const double total = report.total_step_us();
  return out + "</table></div><p class=\"soft\">All rows, operations included, sum to " +
         print("%.3f %%", total > 0 ? 100 * report.accounted_us() / total : 0) + " of the step.</p>\n";
}

std::string section(const char* title, const std::string& caption, const std::string& body) {
  if (body.empty()) return "";
  return "<h2>" + std::string(title) + "</h2><p class=\"soft\">" + caption + "</p><div class=\"card\">" + body +
         "</div>\n";
}

}  // namespace

std::string report_html(const ProfileReport& report, const TimelineStep* step) {
  const RunDescription& run = report.run;
  std::string out = page_begin("fathom profile: " + run.model + " on " + run.backend);
  out += kOwnStyle;
  out += "<h1>" + escape_html(run.model) + " on " + escape_html(run.backend) + "</h1><p class=\"soft\">" +
         escape_html(run.device) + "; " + std::to_string(run.batch_sequences) + " sequences" +
         (run.context_tokens > 0 ? " at context " + std::to_string(run.context_tokens) : "") + "; " +
         std::to_string(run.num_repeats) + " repeats of " + std::to_string(run.num_steps) + " steps; collector " +
         escape_html(run.collector) + ", numerics " + escape_html(run.numerics) + "; " + escape_html(run.date) +
         "</p>\n";
  for (const std::string& note : report.notes) out += "<div class=\"card warn\">" + escape_html(note) + "</div>";
  if (report.total_steps() == 0) return out + "<p>Nothing was measured: no steps.</p>" + page_end();
  out += tiles(report);
  out += section("Where the step goes",
                 "The critical path: these parts sum to the step. Work hidden behind other work is not in it.",
                 step_bar_svg(report));
  out +=
      section("What it would be worth to change",
              "Circle: exposed time as measured, with its 95 % interval: what the step changes by when the work runs "
              "once more, or is left out. Dark bar: the timeline's critical path. Pale bar: summed time.",
              exposed_svg(report));
  out += section("By layer", "Microseconds of summed time in a step.", heat_map_svg(report));
  out +=
      section("Under the ceilings",
              "Area: time in a step. Percent: the larger share of the two measured ceilings. A point above the slope "
              "took its bytes from a cache.",
              roofline_svg(report));
  if (step != nullptr) {
    std::set<std::string> categories;
    for (const TableRow& row : category_table(report)) categories.insert(row.category);
    std::string legend = "<div class=\"legend\">";
    for (const std::string& category : categories) legend += legend_item(category);
    out += section("One step",
                   "The step of median time, " + format_time_us(step->total_us) +
                       ", cut into rows. Hover over a bar for its figures.",
                   timeline_svg(*step) + legend + legend_item("host") + "</div>");
  }
  out += "<h2>By category</h2>" + rows_table(category_table(report), report.ceilings);
  out += "<h2>By operation and variant</h2>" + rows_table(operation_table(report), report.ceilings);
  out += "<h2>Host, idle, unaccounted</h2>" + host_rows(report);
  return out + page_end();
}

}  // namespace fathom
