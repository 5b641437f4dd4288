#include "profile/pictures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "profile/categories.h"
#include "profile/exposed.h"
#include "profile/format.h"
#include "profile/page.h"
#include "profile/tables.h"

namespace fathom {
namespace {

constexpr double kWidth = 1000;
constexpr double kLetterWidth = 6.6;  // of the pictures' text, generously

std::string svg_begin(double height, std::string_view label) {
  return "<svg viewBox=\"0 0 " + svg_number(kWidth) + " " + svg_number(height) + "\" role=\"img\" aria-label=\"" +
         escape_html(label) + "\">";
}

std::string rect(double x, double y, double width, double height, const std::string& classes,
                 const std::string& attributes, const std::string& tip) {
  return "<rect x=\"" + svg_number(x) + "\" y=\"" + svg_number(y) + "\" width=\"" + svg_number(width) + "\" height=\"" +
         svg_number(height) + "\" class=\"" + classes + "\" " + attributes + "><title>" + escape_html(tip) +
         "</title></rect>";
}

std::string line(double x1, double y1, double x2, double y2, const std::string& classes) {
  return "<line x1=\"" + svg_number(x1) + "\" y1=\"" + svg_number(y1) + "\" x2=\"" + svg_number(x2) + "\" y2=\"" +
         svg_number(y2) + "\" class=\"" + classes + "\"/>";
}

std::string percent(double share) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, share < 0.0995 ? "%.1f %%" : "%.0f %%", 100 * share);
  return buffer;
}

double text_width(std::string_view text) { return kLetterWidth * static_cast<double>(text.size()); }

// A step for an axis: 1, 2 or 5 times a power of ten, about `count` of them up to `most`.
double axis_step(double most, int count) {
  const double raw = std::max(most, 1e-9) / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw) return factor * power;
  }
  return 10 * power;
}

struct Segment {
  std::string name;
  std::string category;
  double us = 0;
};

std::vector<Segment> step_segments(const ProfileReport& report) {
  std::vector<Segment> segments;
  for (const TableRow& row : category_table(report)) segments.push_back({row.category, row.category, row.critical_us});
  double host = 0;
  for (const HostRow& row : host_table(report)) {
    if (row.name == "idle" || row.name == "unaccounted") {
      segments.push_back({row.name, row.name, row.critical_us});
    } else {
      host += row.critical_us;
    }
  }
  segments.push_back({"host", "host", host});
  std::stable_sort(segments.begin(), segments.end(), [](const Segment& a, const Segment& b) { return a.us > b.us; });
  std::erase_if(segments, [](const Segment& s) { return s.us <= 0; });
  return segments;
}

}  // namespace

std::string step_bar_svg(const ProfileReport& report) {
  const std::vector<Segment> segments = step_segments(report);
  double total = 0;
  for (const Segment& segment : segments) total += segment.us;
  if (total <= 0) return "";
  // Names that do not fit into their segment stand in columns below, in the bar's order.
  const std::size_t columns = 3;
  const std::size_t rows = (segments.size() + columns - 1) / columns;
  std::string out = svg_begin(78 + 22 * static_cast<double>(rows), "The step by category");
  double x = 0;
  for (const Segment& segment : segments) {
    const double width = kWidth * segment.us / total;
    out += rect(x, 8, std::max(0.5, width - 1.5), 46, category_class(segment.category), "rx=\"2\"",
                segment.name + ": " + format_time_us(segment.us) + ", " + percent(segment.us / total));
    const std::string value = format_time_us(segment.us);
    if (width > text_width(segment.name) + 10) {
      const std::string ink = category_text_class(segment.category);
      out += svg_text(x + 7, 28, segment.name, ink);
      if (width > text_width(value) + 10) out += svg_text(x + 7, 45, value, ink);
    } else if (width > 40) {
      out += svg_text(x + 5, 36, percent(segment.us / total), category_text_class(segment.category));
    }
    x += width;
  }
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const double left = kWidth / columns * static_cast<double>(i % columns);
    const double y = 84 + 22 * static_cast<double>(i / columns);
    out += rect(left, y - 9, 10, 10, category_class(segments[i].category), "rx=\"2\"", segments[i].name);
    out += svg_text(left + 16, y, segments[i].name);
    out += svg_text(left + kWidth / columns - 22, y,
                    format_time_us(segments[i].us) + "  " + percent(segments[i].us / total), "soft", "end");
  }
  return out + "</svg>";
}

std::string exposed_svg(const ProfileReport& report) {
  std::vector<TableRow> rows;
  for (const auto& table : {category_table(report), operation_table(report)}) {
    for (const TableRow& row : table) {
      if (row.exposed != nullptr || row.left_out != nullptr) rows.push_back(row);
    }
  }
  if (rows.empty()) return "";
  double most = 0;
  for (const TableRow& row : rows) {
    most = std::max({most, row.time_us, row.critical_us});
    for (const ExposedTime* e : {row.exposed, row.left_out}) {
      if (e != nullptr && is_resolved(*e)) most = std::max(most, e->high_us);
    }
  }
  most *= 1.15;
  const double left = 210, right = 190, row_height = 30;
  const double height = row_height * static_cast<double>(rows.size()) + 34;
  // What is not resolved may reach far beyond: its line is cut off.
  const auto at = [&](double us) { return left + (kWidth - left - right) * std::clamp(us / most, 0.0, 1.0); };
  std::string out = svg_begin(height, "Exposed time");
  const double step = axis_step(most, 6);
  for (double tick = 0; tick <= most; tick += step) {
    out += line(at(tick), 20, at(tick), height, "grid");
    out += svg_text(at(tick), 13, format_tick_us(tick), "soft small", "middle");
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const TableRow& row = rows[i];
    const double y = 24 + row_height * static_cast<double>(i);
    const bool whole = row.operation.empty();
    out += svg_text(left - 8, y + 16, whole ? row.category : row.operation, whole ? "strong" : "", "end");
    out += rect(at(0), y + 3, at(row.time_us) - at(0), 20, category_class(row.category) + " faint", "rx=\"2\"",
                "summed time " + format_time_us(row.time_us));
    out += rect(at(0), y + 8, std::max(0.5, at(row.critical_us) - at(0)), 10, category_class(row.category), "rx=\"1\"",
                "critical path " + format_time_us(row.critical_us));
    const ExposedTime& e = row.left_out != nullptr ? *row.left_out : *row.exposed;
    out += line(at(e.low_us), y + 13, at(e.high_us), y + 13, "whisker");
    for (const double edge : {e.low_us, e.high_us}) {
      if (edge >= 0 && edge <= most) out += line(at(edge), y + 9, at(edge), y + 17, "whisker");
    }
    out += "<circle cx=\"" + svg_number(at(e.us)) + "\" cy=\"" + svg_number(y + 13) +
           "\" r=\"4\" class=\"dot\"><title>" + escape_html(e.method + ": " + format_time_us(e.us)) +
           "</title></circle>";
    out += svg_text(kWidth - right + 12, y + 17,
                    is_resolved(e) ? format_time_us(e.us) + (e.method == "left out" ? " (left out)" : "")
                                   : "not resolved (" + format_time_us(e.us) + ")",
                    is_resolved(e) ? "" : "soft");
  }
  return out + "</svg>";
}

std::string heat_map_svg(const ProfileReport& report) {
  const std::vector<TableRow> cells = layer_table(report);
  std::vector<std::string> operations;
  std::set<std::int64_t> layer_set;
  double most = 0;
  for (const TableRow& cell : cells) {
    if (operations.empty() || operations.back() != cell.operation) operations.push_back(cell.operation);
    layer_set.insert(cell.layer);
    most = std::max(most, cell.time_us);
  }
  if (most <= 0) return "";
  const std::vector<std::int64_t> layers(layer_set.begin(), layer_set.end());
  const double left = 150, top = 24, row_height = 25;
  const double cell_width = (kWidth - left) / static_cast<double>(layers.size());
  const double height = top + row_height * static_cast<double>(operations.size()) + 4;
  std::string out = svg_begin(height, "Time by operation and layer");
  const auto every = static_cast<std::size_t>(std::ceil(34 / cell_width));
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (i % every != 0 && layers[i] >= 0) continue;
    const std::string name = layers[i] < 0 ? (cell_width > 50 ? "outside" : "-") : std::to_string(layers[i]);
    out += svg_text(left + cell_width * (static_cast<double>(i) + 0.5), top - 8, name, "soft small", "middle");
  }
  for (std::size_t r = 0; r < operations.size(); ++r) {
    out += svg_text(left - 8, top + row_height * (static_cast<double>(r) + 0.66), operations[r], "", "end");
  }
  for (const TableRow& cell : cells) {
    const auto row =
        static_cast<double>(std::find(operations.begin(), operations.end(), cell.operation) - operations.begin());
    const auto column =
        static_cast<double>(std::lower_bound(layers.begin(), layers.end(), cell.layer) - layers.begin());
    const double x = left + cell_width * column, y = top + row_height * row;
    const double share = cell.time_us / most;
    char opacity[48];
    std::snprintf(opacity, sizeof opacity, "fill-opacity=\"%.3f\" rx=\"2\"", 0.06 + 0.9 * std::sqrt(share));
    out += rect(x + 1, y + 1, cell_width - 2, row_height - 2, "heat", opacity,
                cell.operation + ", layer " + std::to_string(cell.layer) + ": " + format_time_us(cell.time_us) +
                    " in " + format_significant(cell.launches) + " launches");
    if (cell_width >= 38) {
      out += svg_text(x + cell_width / 2, y + row_height * 0.67,
                      cell.time_us >= 99.95 ? std::to_string(std::llround(cell.time_us)) : svg_number(cell.time_us),
                      share > 0.3 ? "small on-fill" : "small", "middle");
    }
  }
  return out + "</svg>";
}

namespace {

// Places labels beside their points; one that would cover another moves down.
class Labels {
 public:
  // Nothing is written over a point.
  void keep_free(double x, double y, double radius) {
    boxes_.push_back({x - radius, y - radius, 2 * radius, 2 * radius});
  }
  void add(double x, double y, double radius, const std::string& text) {
    const double width = text_width(text);
    Box box{x + radius + 3, y - 8, width, 14};
    if (box.x + width > kWidth - 4) box.x = x - radius - 3 - width;
    // The nearest free place, below and above in turn.
    const double wanted = box.y;
    for (int tries = 1; tries < 60 && collides(box); ++tries) {
      box.y = wanted + (tries % 2 == 1 ? 6.0 : -6.0) * ((tries + 1) / 2);
    }
    boxes_.push_back(box);
    if (box.y > y || box.y + 16 < y) out_ += line(x, y, box.x < x ? box.x + width : box.x - 1, box.y + 7, "axis");
    out_ += svg_text(box.x, box.y + 12, text, "small");
  }
  const std::string& svg() const { return out_; }

 private:
  struct Box {
    double x, y, width, height;
  };
  bool collides(const Box& a) const {
    return std::any_of(boxes_.begin(), boxes_.end(), [&](const Box& b) {
      return a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
    });
  }
  std::vector<Box> boxes_;
  std::string out_;
};

std::string short_rate(double per_s, const char* unit) {
  constexpr std::array<std::pair<double, const char*>, 5> kPrefixes = {
      {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}, {1, ""}}};
  for (const auto& [size, prefix] : kPrefixes) {
    if (per_s >= size) return format_significant(std::round(1000 * per_s / size) / 1000) + " " + prefix + unit;
  }
  return "0 " + std::string(unit);
}

}  // namespace

std::string roofline_svg(const ProfileReport& report) {
  const Ceilings& ceilings = report.ceilings;
  std::vector<TableRow> rows;
  for (TableRow& row : operation_table(report)) {
    if (row.bytes > 0 && row.flops > 0) rows.push_back(std::move(row));
  }
  if (rows.empty() || ceilings.memory_bytes_per_s <= 0 || ceilings.flops_per_s <= 0) return "";
  const double ridge = ceilings.flops_per_s / ceilings.memory_bytes_per_s;
  double low_x = ridge / 10, high_x = ridge * 10, low_y = ceilings.flops_per_s / 1e3, longest = 0;
  for (const TableRow& row : rows) {
    low_x = std::min(low_x, row.flops / row.bytes / 2);
    high_x = std::max(high_x, row.flops / row.bytes * 4);
    low_y = std::min(low_y, row.flops_per_s / 2);
    longest = std::max(longest, row.time_us);
  }
  const double high_y = ceilings.flops_per_s * 4;
  const double left = 92, top = 12, bottom = 380, right = kWidth - 8;
  const auto x_of = [&](double v) { return left + (right - left) * std::log(v / low_x) / std::log(high_x / low_x); };
  const auto y_of = [&](double v) { return bottom - (bottom - top) * std::log(v / low_y) / std::log(high_y / low_y); };
  std::string out = svg_begin(bottom + 42, "Roofline");
  for (double v = std::pow(10, std::ceil(std::log10(low_x))); v < high_x; v *= 10) {
    out += line(x_of(v), top, x_of(v), bottom, "grid") +
           svg_text(x_of(v), bottom + 16, format_significant(v), "soft small", "middle");
  }
  for (double v = std::pow(10, std::ceil(std::log10(low_y))); v < high_y; v *= 10) {
    out += line(left, y_of(v), right, y_of(v), "grid") +
           svg_text(left - 6, y_of(v) + 4, short_rate(v, "FLOP/s"), "soft small", "end");
  }
  out += svg_text((left + right) / 2, bottom + 35, "FLOPs per byte", "soft", "middle");
  const double slope_begin = std::max(low_x, low_y / ceilings.memory_bytes_per_s);
  out += line(x_of(slope_begin), y_of(slope_begin * ceilings.memory_bytes_per_s), x_of(ridge),
              y_of(ceilings.flops_per_s), "roof");
  out += line(x_of(ridge), y_of(ceilings.flops_per_s), right, y_of(ceilings.flops_per_s), "roof");
  out += svg_text(right, y_of(ceilings.flops_per_s) - 7, short_rate(ceilings.flops_per_s, "FLOP/s"), "strong", "end");
  const double middle = std::sqrt(slope_begin * ridge);
  out += svg_text(x_of(middle) - 10, y_of(middle * ceilings.memory_bytes_per_s) - 8,
                  short_rate(ceilings.memory_bytes_per_s, "B/s"), "strong", "end");
  Labels labels;
  const auto radius_of = [&](const TableRow& row) { return 3.5 + 11 * std::sqrt(row.time_us / longest); };
  for (const TableRow& row : rows) labels.keep_free(x_of(row.flops / row.bytes), y_of(row.flops_per_s), radius_of(row));
  for (const TableRow& row : rows) {
    const double x = x_of(row.flops / row.bytes), y = y_of(row.flops_per_s);
    const double radius = radius_of(row);
    out += "<circle cx=\"" + svg_number(x) + "\" cy=\"" + svg_number(y) + "\" r=\"" + svg_number(radius) +
           "\" class=\"" + category_class(row.category) + " bubble\"><title>" +
           escape_html(row.operation + ": " + short_rate(row.bytes_per_s, "B/s") + " (" + percent(row.memory_share) +
                       " of memory), " + short_rate(row.flops_per_s, "FLOP/s") + " (" + percent(row.compute_share) +
                       " of peak), " + format_time_us(row.time_us) + " a step") +
           "</title></circle>";
    labels.add(x, y, radius, row.operation + " " + percent(std::max(row.memory_share, row.compute_share)));
  }
  return out + labels.svg() + "</svg>";
}

namespace {

constexpr double kLaneLeft = 66;

// One stretch of the step: a lane for the host, one for each lane of calls.
class TimelineRow {
 public:
  TimelineRow(double begin_us, double end_us, double top) : begin_us_(begin_us), end_us_(end_us), top_(top) {}

  void lane(const std::string& name, int index) {
    out_ += svg_text(kLaneLeft - 8, y_of(index) + 15, name, "soft small", "end");
  }
  void bar(int lane, double begin_us, double time_us, std::string_view category, const std::string& more_classes,
           const std::string& name, const std::string& tip) {
    const double from = std::max(begin_us, begin_us_), to = std::min(begin_us + time_us, end_us_);
    if (to <= from) return;
    const double x = x_of(from), width = x_of(to) - x;
    out_ += rect(x, y_of(lane), std::max(0.4, width - 0.4), 21, category_class(category) + more_classes, "", tip);
    if (width > text_width(name) * 0.88 + 6)
      out_ += svg_text(x + 4, y_of(lane) + 15, name,
                       more_classes.empty() ? category_text_class(category) + " small" : "soft small");
  }
  void layer_tick(std::int32_t layer, double at_us, int lanes) {
    if (at_us < begin_us_ || at_us > end_us_) return;
    out_ += line(x_of(at_us), top_ + 14, x_of(at_us), y_of(lanes), "grid");
    if (x_of(at_us) < kWidth - 24 && x_of(at_us) > next_label_x_) {
      const std::string name = layer < 0 ? "out" : "L" + std::to_string(layer);
      out_ += svg_text(x_of(at_us) + 2, top_ + 11, name, "soft small");
      next_label_x_ = x_of(at_us) + text_width(name) + 6;
    }
  }
  std::string take() { return std::move(out_); }

 private:
  double x_of(double us) const { return kLaneLeft + (kWidth - kLaneLeft) * (us - begin_us_) / (end_us_ - begin_us_); }
  double y_of(int lane) const { return top_ + 17 + 24 * lane; }
  double begin_us_, end_us_, top_, next_label_x_ = 0;
  std::string out_;
};

}  // namespace

std::string timeline_svg(const TimelineStep& step) {
  if (step.total_us <= 0) return "";
  std::map<std::int32_t, int> lanes;  // lane of calls -> place below the host's
  for (const TimelineCall& call : step.calls) lanes.try_emplace(call.lane, 0);
  int num_lanes = 1;
  for (auto& [lane, place] : lanes) place = num_lanes++;
  const int num_rows = static_cast<int>(std::clamp<std::size_t>(step.calls.size() / 24, 1, 8));
  const double row_height = 17 + 24 * num_lanes + 22;
  std::string out = svg_begin(row_height * num_rows + 2, "Timeline of one step");
  for (int r = 0; r < num_rows; ++r) {
    const double begin = step.total_us * r / num_rows, end = step.total_us * (r + 1) / num_rows;
    TimelineRow row(begin, end, row_height * r);
    row.lane("host", 0);
    for (const auto& [lane, place] : lanes) {
      row.lane(!step.on_device ? "operations" : lanes.size() == 1 ? "device" : "stream " + std::to_string(lane), place);
    }
    std::int32_t layer = -2;
    for (const TimelineCall& call : step.calls) {
      if (call.layer != layer) row.layer_tick(layer = call.layer, call.begin_us, num_lanes);
    }
    for (const HostPhase& phase : step.phases) {
      row.bar(0, phase.begin_us, phase.time_us, "host", phase.container ? " faint" : "", phase.name,
              phase.name + ": " + format_time_us(phase.time_us));
    }
    for (const TimelineCall& call : step.calls) {
      row.bar(lanes[call.lane], call.begin_us, call.time_us, category_of(call.operation), "", call.operation,
              call.operation + "/" + call.variant + ", layer " + std::to_string(call.layer) + ": " +
                  format_time_us(call.time_us) + (call.kernel.empty() ? "" : ", " + call.kernel));
    }
    out += row.take();
    const double y = row_height * (r + 1) - 8;
    out += svg_text(kLaneLeft, y, format_time_us(begin), "soft small");
    out += svg_text(kWidth, y, format_time_us(end), "soft small", "end");
  }
  return out + "</svg>";
}

}  // namespace fathom
