// A comparison as a page: the step before and after, what rose and what fell, the tables.
#include <algorithm>
#include <cmath>
#include <vector>

#include "profile/compare.h"
#include "profile/format.h"
#include "profile/page.h"

namespace fathom {
namespace {

constexpr double kWidth = 1000;
constexpr std::size_t kMaxBars = 18;
// A column name on the left and figures on the right of the bars.
constexpr double kNameWidth = 200, kFiguresWidth = 190;

const char* direction(double change) { return change > 0 ? "rose" : "fell"; }

std::string coloured(double change, const std::string& text, bool significant) {
  if (!significant) return "<span class=\"soft\">" + text + "</span>";
  return std::string("<span class=\"") + direction(change) + "\">" + text + "</span>";
}

std::string tile(const std::string& name, const std::string& value, const std::string& below) {
  return "<div class=\"card\"><div class=\"tile-name\">" + name + "</div><div class=\"tile-value\">" + value +
         "</div><div class=\"soft\">" + below + "</div></div>";
}

std::string change_tile(const Comparison& c, const char* name, const Change& change) {
  std::string below = format_time_us(change.before_us) + " → " + format_time_us(change.after_us);
  if (change.difference.known && change.before_us > 0) {
    std::string low = format_signed_percent(100 * change.difference.low / change.before_us);
    low.resize(low.size() - 2);  // one unit for both ends
    below += "<br>95 %: " + low + " to " + format_signed_percent(100 * change.difference.high / change.before_us);
  } else {
    below += "<br>one repeat: no interval";
  }
  const bool claim = c.may_claim() && change.significant();
  return tile(name, coloured(change.difference.mean, format_signed_percent(c.percent(change)), claim), below);
}

std::string rate_tile(const char* name, double before, double after) {
  return tile(name, format_significant(after), "was " + format_significant(before));
}

std::string run_line(const char* letter, const std::string& name, const RunDescription& run) {
  std::string out =
      "<tr><td><strong>" + std::string(letter) + "</strong> " + escape_html(name) + "<td>" +
      escape_html(run.backend + ", " + run.device) + "<td>" + escape_html(run.model + ", " + run.numerics) + "<td>" +
      std::to_string(run.batch_sequences) + "<td>" + std::to_string(run.context_tokens) + "<td>" +
      std::to_string(run.num_repeats) + " × " + std::to_string(run.num_steps) + "<td>" +
      escape_html(run.date.empty() ? "" : run.date.substr(0, 16)) + "<td>" + escape_html(run.commit.substr(0, 10));
  return out;
}

std::string runs_table(const Comparison& c) {
  return "<div class=\"scroll\"><table><tr><th>run<th>device<th>model<th>batch<th>context<th>repeats × "
         "steps<th>date<th>commit" +
         run_line("A", c.name_before, c.run_before) + run_line("B", c.name_after, c.run_after) + "</table></div>";
}

std::string warnings(const Comparison& c) {
  std::string unlike, intended;
  for (const RunDifference& difference : c.differences) {
    (difference.intended ? intended : unlike) += "<br>" + escape_html(difference.text);
  }
  std::string out;
  if (!unlike.empty()) {
    out +=
        "<div class=\"card warn\"><strong>These runs differ in more than the change under test: no win or loss is "
        "claimed.</strong>" +
        unlike + "</div>";
  }
  if (!intended.empty()) out += "<div class=\"card\"><strong>Differs on purpose.</strong>" + intended + "</div>";
  return out;
}

// A scale's step of 1, 2 or 5 times a power of ten, about `num` of them in `span`.
double nice_step(double span, int num) {
  const double raw = std::max(span, 1e-12) / num;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  const double ratio = raw / power;
  return power * (ratio <= 1 ? 1 : ratio <= 2 ? 2 : ratio <= 5 ? 5 : 10);
}

struct Segment {
  std::string name;
  double before_us, after_us;
};

// Both steps, cut into the same categories in the same order: what is wide, and what became wider.
std::vector<Segment> step_segments(const Comparison& c) {
  std::vector<Segment> segments;
  for (const ComparedRow& row : c.categories) {
    segments.push_back({row.category, row.critical.before_us, row.critical.after_us});
  }
  std::stable_sort(segments.begin(), segments.end(), [](const Segment& a, const Segment& b) {
    return std::max(a.before_us, a.after_us) > std::max(b.before_us, b.after_us);
  });
  Segment host{"host", 0, 0};
  std::vector<Segment> rest;
  for (const ComparedRow& row : c.host) {
    if (row.operation == "idle" || row.operation == "unaccounted") {
      rest.push_back({row.operation, std::max(0.0, row.critical.before_us), std::max(0.0, row.critical.after_us)});
    } else {
      host.before_us += row.critical.before_us;
      host.after_us += row.critical.after_us;
    }
  }
  segments.push_back(host);
  segments.insert(segments.end(), rest.begin(), rest.end());
  std::erase_if(segments, [](const Segment& s) { return s.before_us <= 0 && s.after_us <= 0; });
  return segments;
}

std::string step_bar(const std::vector<Segment>& segments, double Segment::* us, double y, double scale, double left) {
  std::string out;
  double x = left;
  for (const Segment& segment : segments) {
    const double width = segment.*us * scale;
    if (width <= 0) continue;
    out += "<rect x=\"" + svg_number(x) + "\" y=\"" + svg_number(y) + "\" width=\"" +
           svg_number(std::max(0.6, width - 1)) + "\" height=\"38\" rx=\"2\" class=\"" + category_class(segment.name) +
           "\"><title>" + escape_html(segment.name) + ": " + format_time_us(segment.*us) +
           " of the step</title></rect>";
    const std::string label = segment.name;
    if (width > 7.0 * static_cast<double>(label.size()) + 10) {
      out += svg_text(x + 7, y + 17, label, category_text_class(segment.name)) +
             svg_text(x + 7, y + 31, format_time_us(segment.*us), category_text_class(segment.name));
    } else if (width > 54) {
      out += svg_text(x + 7, y + 24, format_time_us(segment.*us), category_text_class(segment.name));
    }
    x += width;
  }
  return out;
}

std::string step_picture(const Comparison& c) {
  const std::vector<Segment> segments = step_segments(c);
  double before = 0, after = 0;
  for (const Segment& segment : segments) {
    before += segment.before_us;
    after += segment.after_us;
  }
  const double top = std::max({before, after, 1e-9});
  const double left = 26, scale = (kWidth - left - 90) / top;
  std::string out =
      "<figure class=\"card\"><svg viewBox=\"0 0 1000 128\" role=\"img\" aria-label=\"the step before and "
      "after, by category\">";
  const double step = nice_step(top, 6);
  for (double us = 0; us <= top * 1.0001; us += step) {
    const std::string x = svg_number(left + us * scale);
    out += "<line class=\"grid\" x1=\"" + x + "\" x2=\"" + x + "\" y1=\"4\" y2=\"108\"/>" +
           svg_text(left + us * scale, 122, us == 0 ? "0" : format_tick_us(us), "soft small", "middle");
  }
  out += svg_text(4, 33, "A", "strong") + svg_text(4, 85, "B", "strong");
  out +=
      step_bar(segments, &Segment::before_us, 8, scale, left) + step_bar(segments, &Segment::after_us, 60, scale, left);
  out += svg_text(left + before * scale + 8, 33, format_time_us(c.step.before_us), "strong") +
         svg_text(left + after * scale + 8, 85, format_time_us(c.step.after_us), "strong");
  out += "</svg><div class=\"legend\">";
  for (const Segment& segment : segments) out += legend_item(segment.name);
  return out +
         "</div><figcaption>One step on its critical path: the segments add up to the step's wall time. Work that "
         "runs beside longer work is not in it.</figcaption></figure>";
}

double size_of(const ComparedRow* row) {
  return std::max(std::fabs(row->critical.difference.mean), 0.5 * std::fabs(row->summed.difference.mean));
}

struct ChangedRows {
  std::vector<const ComparedRow*> rows;  // what rose first
  std::size_t num_left_out = 0;          // changed by too little to be drawn
};

// Operations and host rows that changed significantly, or by 2 % of the largest change.
ChangedRows changed_rows(const Comparison& c) {
  std::vector<const ComparedRow*> all;
  for (const auto* list : {&c.operations, &c.host}) {
    for (const ComparedRow& row : *list) {
      if (size_of(&row) > 0) all.push_back(&row);
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const ComparedRow* a, const ComparedRow* b) { return size_of(a) > size_of(b); });
  ChangedRows changed;
  for (const ComparedRow* row : all) {
    const bool counts =
        row->critical.significant() || row->summed.significant() || size_of(row) >= 0.02 * size_of(all[0]);
    if (counts && changed.rows.size() < kMaxBars) changed.rows.push_back(row);
  }
  changed.num_left_out = all.size() - changed.rows.size();
  std::stable_sort(changed.rows.begin(), changed.rows.end(), [](const ComparedRow* a, const ComparedRow* b) {
    return a->critical.difference.mean > b->critical.difference.mean;
  });
  return changed;
}

class DivergingBars {
 public:
  explicit DivergingBars(const std::vector<const ComparedRow*>& rows) : rows_(rows) {
    for (const ComparedRow* row : rows_) {
      for (const Change* change : {&row->critical, &row->summed}) {
        low_ = std::min({low_, change->difference.mean, change == &row->critical ? change->difference.low : 0.0});
        high_ = std::max({high_, change->difference.mean, change == &row->critical ? change->difference.high : 0.0});
      }
    }
    const double span = std::max(high_ - low_, 1e-9);
    low_ -= low_ < 0 ? 0.02 * span : 0;
    high_ += high_ > 0 ? 0.02 * span : 0;
    scale_ = (kWidth - kNameWidth - kFiguresWidth) / std::max(high_ - low_, 1e-9);
  }

  std::string draw() const {
    const double height = 30 * static_cast<double>(rows_.size()) + 34;
    std::string out = "<svg viewBox=\"0 0 1000 " + svg_number(height) +
                      "\" role=\"img\" aria-label=\"change of each operation, per step\">";
    const double step = nice_step(high_ - low_, 6);
    for (double us = std::ceil(low_ / step) * step; us <= high_ * 1.0001; us += step) {
      const std::string x = svg_number(x_of(us));
      out += "<line class=\"grid\" x1=\"" + x + "\" x2=\"" + x + "\" y1=\"2\" y2=\"" + svg_number(height - 26) + "\"/>";
      const bool is_zero = std::fabs(us) < step / 2;
      out += svg_text(x_of(us), height - 10, is_zero ? "0" : (us > 0 ? "+" : "−") + format_tick_us(std::fabs(us)),
                      "soft small", "middle");
    }
    double y = 4;
    for (const ComparedRow* row : rows_) {
      out += bar(*row, y);
      y += 30;
    }
    const std::string zero = svg_number(x_of(0));
    return out + "<line class=\"axis\" x1=\"" + zero + "\" x2=\"" + zero + "\" y1=\"2\" y2=\"" +
           svg_number(height - 26) + "\"/></svg>";
  }

 private:
  double x_of(double us) const { return kNameWidth + (us - low_) * scale_; }

  std::string rect(double us, double y, double height, const std::string& classes) const {
    const double from = std::min(x_of(0), x_of(us)), width = std::fabs(x_of(us) - x_of(0));
    return "<rect x=\"" + svg_number(from) + "\" y=\"" + svg_number(y) + "\" width=\"" + svg_number(width) +
           "\" height=\"" + svg_number(height) + "\" class=\"" + classes + "\"/>";
  }

  std::string bar(const ComparedRow& row, double y) const {
    const double critical = row.critical.difference.mean, summed = row.summed.difference.mean;
    std::string out = "<g><title>" + escape_html(row.label()) + ": on the critical path " + format_signed_ms(critical) +
                      " ms a step, summed " + format_signed_ms(summed) + " ms</title>";
    out += svg_text(kNameWidth - 12, y + 17, row.label(), row.critical.significant() ? "strong" : "", "end");
    if (std::fabs(summed) > 0) out += rect(summed, y + 2, 20, std::string("line-") + direction(summed));
    if (std::fabs(critical) > 0) {
      out += rect(critical, y + 5, 14,
                  std::string("fill-") + direction(critical) + (row.critical.significant() ? "" : " faint"));
    }
    if (row.critical.difference.known && row.critical.difference.high > row.critical.difference.low) {
      const std::string from = svg_number(x_of(row.critical.difference.low)),
                        to = svg_number(x_of(row.critical.difference.high));
      const std::string middle = svg_number(y + 12), above = svg_number(y + 8), below = svg_number(y + 16);
      out += "<path class=\"whisker\" d=\"M" + from + " " + above + "V" + below + "M" + from + " " + middle + "H" + to +
             "M" + to + " " + above + "V" + below + "\" fill=\"none\"/>";
    }
    const char* mark = row.presence == Presence::kNew ? "new" : row.presence == Presence::kVanished ? "gone" : "";
    out += svg_text(kWidth - 84, y + 17, format_signed_ms(critical) + " ms",
                    row.critical.significant() ? "strong" : "soft", "end");
    const std::string percent = *mark != 0 ? mark
                                : row.critical.before_us > 0
                                    ? format_signed_percent(100 * critical / row.critical.before_us)
                                    : "";
    return out + svg_text(kWidth - 4, y + 17, percent, "soft", "end") + "</g>";
  }

  const std::vector<const ComparedRow*>& rows_;
  double low_ = 0, high_ = 0, scale_ = 1;
};

std::string changes_picture(const Comparison& c) {
  const auto [rows, num_left_out] = changed_rows(c);
  if (rows.empty()) return "<p class=\"soft\">Nothing changed.</p>";
  return "<figure class=\"card\">" + DivergingBars(rows).draw() +
         "<figcaption>Change per step, B less A. Filled: on the critical path, what the step gained or lost; pale "
         "where "
         "not significant; the whisker is its 99 % interval. Outline: summed time, overlapped work counted fully: an "
         "outline without a filling is work that changed and did not matter." +
         (num_left_out > 0 ? " " + std::to_string(num_left_out) + " smaller changes are in the tables." : "") +
         "</figcaption></figure>";
}

std::string kernels_line(const char* word, const std::vector<const ComparedRow*>& rows) {
  if (rows.empty()) return "";
  std::string out = "<p><strong>" + std::string(word) + "</strong> ";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    out += (i == 0 ? "" : ", ") + escape_html(rows[i]->label()) + " " +
           coloured(rows[i]->critical.difference.mean, format_signed_ms(rows[i]->critical.difference.mean) + " ms",
                    rows[i]->critical.significant());
  }
  return out + "</p>";
}

std::string rows_table(const Comparison& c, const std::vector<ComparedRow>& rows, const char* name) {
  std::string out = "<div class=\"scroll\"><table><tr><th>" + std::string(name) +
                    "<th>path A, ms<th>path B, ms<th>change<th>%<th>summed A<th>summed B<th>change<th>launches A<th>B";
  for (const ComparedRow& row : rows) {
    const Change& path = row.critical;
    const char* mark = row.presence == Presence::kNew        ? " <span class=\"soft\">new</span>"
                       : row.presence == Presence::kVanished ? " <span class=\"soft\">gone</span>"
                                                             : "";
    out +=
        "<tr><td>" + escape_html(row.label()) + mark + "<td>" + format_ms(path.before_us) + "<td>" +
        format_ms(path.after_us) + "<td>" +
        coloured(path.difference.mean, format_signed_ms(path.difference.mean), path.significant()) + "<td>" +
        (path.before_us > 0 ? format_signed_percent(c.percent(path)) : "") + "<td>" + format_ms(row.summed.before_us) +
        "<td>" + format_ms(row.summed.after_us) + "<td>" +
        coloured(row.summed.difference.mean, format_signed_ms(row.summed.difference.mean), row.summed.significant()) +
        "<td>" + format_significant(row.launches_before) + "<td>" + format_significant(row.launches_after);
  }
  return out + "</table></div>";
}

std::string exposed_table(const Comparison& c) {
  std::string rows;
  const auto cell = [](const std::optional<ExposedTime>& e) {
    if (!e) return std::string("–");
    return format_ms(e->us) + " <span class=\"soft\">[" + format_ms(e->low_us) + ", " + format_ms(e->high_us) +
           "]</span>";
  };
  for (const auto* list : {&c.categories, &c.operations}) {
    for (const ComparedRow& row : *list) {
      if (!row.exposed_before && !row.exposed_after) continue;
      rows +=
          "<tr><td>" + escape_html(row.label()) + "<td>" + cell(row.exposed_before) + "<td>" + cell(row.exposed_after);
    }
  }
  if (rows.empty()) return "";
  return "<h2>Exposed time as measured</h2><p class=\"soft\">What the step changed by when the work ran once more, ms "
         "a "
         "step, with its interval.</p><div class=\"scroll\"><table><tr><th>what<th>A<th>B" +
         rows + "</table></div>";
}

}  // namespace

std::string comparison_html(const Comparison& c) {
  std::string out = page_begin("fathom compare: " + c.name_before + " and " + c.name_after);
  const bool is_plain = c.verdict != Verdict::kNotComparable;  // the card below says the rest
  out += "<h1>" + (is_plain ? escape_html(verdict_sentence(c)) : std::string("NOT COMPARABLE")) + "</h1>" +
         runs_table(c) + warnings(c);
  out += "<div class=\"tiles\">" + change_tile(c, "step", c.step);
  if (c.token.has_value()) out += change_tile(c, "committed token", *c.token);
  out += rate_tile("tok/s", c.tokens_per_s_before, c.tokens_per_s_after) +
         rate_tile("steps/s", c.steps_per_s_before, c.steps_per_s_after) + "</div>";
  out += "<h2>The step before and after</h2>" + step_picture(c);
  for (const std::string& note : c.notes) out += "<p class=\"soft\">Note: " + escape_html(note) + "</p>";
  out += (is_plain ? "<h2>What rose and what fell</h2>" : "<h2>Differences (no claim)</h2>") + changes_picture(c);
  out += kernels_line("New kernels:", c.kernels_of(Presence::kNew)) +
         kernels_line("Gone kernels:", c.kernels_of(Presence::kVanished));
  out += "<h2>Categories</h2>" + rows_table(c, c.categories, "category");
  out += "<h2>Operations</h2>" + rows_table(c, c.operations, "operation");
  out += "<h2>The host</h2>" + rows_table(c, c.host, "phase");
  out += exposed_table(c);
  out += "<details><summary>Every kernel</summary>" + rows_table(c, c.kernels, "kernel") + "</details>";
  out += "<p class=\"soft\">Times are per step. " + escape_html(significance_sentence(c)) + "</p>";
  return out + page_end();
}

}  // namespace fathom
