#include "profile/findings.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <span>
#include <vector>

#include "base/mapped_file.h"
#include "profile/format.h"

namespace fathom {
namespace {

constexpr std::string_view kHeading = "# Profile findings";
constexpr std::string_view kPreamble =
    "\n\nOne entry for each thing tried: hypothesis and prediction, change, what the profiles show, verdict, what is "
    "left.\nAppended by `fathom findings add`; nothing above the end is rewritten.\n";
constexpr double kPredictionTolerance = 0.2;  // of the prediction
constexpr std::size_t kMaxTableRows = 8;

// One paragraph of Markdown that stays one: no line breaks, no headings, no table bars.
std::string one_line(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n' || c == '\r' || c == '\t') {
      if (!out.ends_with(' ')) out += ' ';
    } else if (c == '|') {
      out += "\\|";
    } else {
      out += c;
    }
  }
  while (out.ends_with(' ')) out.pop_back();
  return out;
}

std::string run_line(const char* letter, const std::string& name, const RunDescription& run) {
  return "- " + std::string(letter) + ": `" + one_line(name) + "` (" +
         one_line(run.backend + ", " + run.device + ", " + run.model + ", " + run.numerics) + ", batch " +
         std::to_string(run.batch_sequences) + ", context " + std::to_string(run.context_tokens) + ", " +
         std::to_string(run.num_repeats) + " x " + std::to_string(run.num_steps) + " steps" +
         (run.date.empty() ? "" : ", " + run.date) + (run.commit.empty() ? "" : ", " + run.commit) + ")\n";
}

std::string interval_text(const Change& change) {
  return format_signed_percent(100 * change.difference.low / change.before_us) + " to " +
         format_signed_percent(100 * change.difference.high / change.before_us);
}

std::string change_row(const Comparison& c, const std::string& name, const Change& change) {
  return "| " + name + " | " + format_ms(change.before_us) + " | " + format_ms(change.after_us) + " | " +
         format_signed_ms(change.difference.mean) + " | " +
         (change.before_us > 0 ? format_signed_percent(c.percent(change)) : "") + " | " +
         (change.before_us > 0 && change.difference.known ? interval_text(change) : "") + " |\n";
}

std::string rows_table(const Comparison& c, const char* name, const std::vector<ComparedRow>& rows) {
  std::string out = "\n| " + std::string(name) +
                    " | path A, ms | path B, ms | change | % | summed A | summed B | change | |\n"
                    "|---|---:|---:|---:|---:|---:|---:|---:|---|\n";
  std::size_t shown = 0;
  for (const ComparedRow& row : rows) {
    if (shown == kMaxTableRows) break;
    ++shown;
    const char* mark = row.presence == Presence::kNew ? "new" : row.presence == Presence::kVanished ? "gone" : "";
    out += "| " + one_line(row.label()) + " | " + format_ms(row.critical.before_us) + " | " +
           format_ms(row.critical.after_us) + " | " + format_signed_ms(row.critical.difference.mean) +
           (row.critical.significant() ? " *" : "") + " | " +
           (row.critical.before_us > 0 ? format_signed_percent(c.percent(row.critical)) : "") + " | " +
           format_ms(row.summed.before_us) + " | " + format_ms(row.summed.after_us) + " | " +
           format_signed_ms(row.summed.difference.mean) + (row.summed.significant() ? " *" : "") + " | " + mark +
           " |\n";
  }
  return out;
}

double sum_of(const std::vector<const ComparedRow*>& rows) {
  double us = 0;
  for (const ComparedRow* row : rows) us += row->critical.difference.mean;
  return us;
}

std::string names_of(const std::vector<const ComparedRow*>& rows) {
  std::string out;
  for (std::size_t i = 0; i < rows.size() && i < 3; ++i) {
    out += (i == 0 ? "" : ", ") + rows[i]->label() + " " + format_signed_ms(rows[i]->critical.difference.mean) + " ms";
    if (rows[i]->presence == Presence::kNew) out += " (new)";
    if (rows[i]->presence == Presence::kVanished) out += " (gone)";
  }
  if (rows.size() > 3) out += " and " + std::to_string(rows.size() - 3) + " more";
  return out;
}

// Operations whose summed time moved while the path did not follow: below half of it.
std::string hidden_changes(const Comparison& c) {
  std::string out;
  for (const ComparedRow& row : c.operations) {
    const double summed = row.summed.difference.mean, path = row.critical.difference.mean;
    if (!row.summed.significant() || std::fabs(summed) < 0.01 * c.step.before_us) continue;
    if (path * summed > 0 && std::fabs(path) >= 0.5 * std::fabs(summed)) continue;
    out += (out.empty() ? "" : "; ") + row.label() + " changed by " + format_signed_ms(summed) +
           " ms of summed time, of which the critical path saw " + format_signed_ms(path) + " ms";
  }
  return out;
}

std::string largest_rows(const Comparison& c) {
  std::vector<const ComparedRow*> rows;
  for (const auto* list : {&c.categories, &c.host}) {
    for (const ComparedRow& row : *list) rows.push_back(&row);
  }
  std::stable_sort(rows.begin(), rows.end(), [](const ComparedRow* a, const ComparedRow* b) {
    return a->critical.after_us > b->critical.after_us;
  });
  std::string out = "The largest parts of the step now:";
  for (std::size_t i = 0; i < rows.size() && i < 3; ++i) {
    const double share = c.step.after_us > 0 ? 100 * rows[i]->critical.after_us / c.step.after_us : 0;
    out += (i == 0 ? " " : ", ") + rows[i]->label() + " " + format_ms(rows[i]->critical.after_us) + " ms (" +
           format_significant(std::round(share)) + " %)";
  }
  return out + ".";
}

Status check_words(const Comparison& c, const FindingWords& words) {
  if (one_line(words.hypothesis).empty()) {
    return invalid_argument("hypothesis: found nothing, expected what was believed before the change");
  }
  if (one_line(words.change).empty()) return invalid_argument("change: found nothing, expected what was done");
  if (!std::isfinite(words.predicted_percent) || words.predicted_percent <= -100) {
    return invalid_argument("prediction: found " + format_significant(words.predicted_percent) +
                            " %, expected a change above -100 %");
  }
  if (c.may_claim()) return {};
  std::string reason(verdict_name(c.verdict));
  for (const RunDifference& difference : c.differences) {
    if (!difference.intended) reason += "; " + difference.text;
  }
  return failed_precondition("no finding can be drawn from " + c.name_before + " and " + c.name_after + ": " + reason +
                             " (" + verdict_sentence(c) + ")");
}

}  // namespace

std::string_view prediction_verdict_name(PredictionVerdict verdict) {
  switch (verdict) {
    case PredictionVerdict::kAsPredicted: return "as predicted";
    case PredictionVerdict::kLess: return "less than predicted";
    case PredictionVerdict::kMore: return "more than predicted";
    case PredictionVerdict::kFlat: return "flat";
  }
  return "";
}

PredictionVerdict judge_prediction(const Change& change, double predicted_percent) {
  if (change.before_us <= 0) return PredictionVerdict::kFlat;
  const double to_percent = 100 / change.before_us;
  const double measured = change.difference.mean * to_percent;
  if (!change.significant()) {
    // No effect is what was predicted where the prediction is smaller than what the repeats can tell.
    const double half = std::max(change.difference.high - change.difference.mean, 0.0) * to_percent;
    return std::fabs(predicted_percent) <= half || predicted_percent == 0 ? PredictionVerdict::kAsPredicted
                                                                          : PredictionVerdict::kFlat;
  }
  const bool inside = predicted_percent >= change.difference.low * to_percent &&
                      predicted_percent <= change.difference.high * to_percent;
  if (inside || std::fabs(measured - predicted_percent) <= kPredictionTolerance * std::fabs(predicted_percent)) {
    return PredictionVerdict::kAsPredicted;
  }
  const bool same_sign = measured * predicted_percent > 0;
  if (predicted_percent == 0) return PredictionVerdict::kMore;
  return same_sign && std::fabs(measured) > std::fabs(predicted_percent) ? PredictionVerdict::kMore
                                                                         : PredictionVerdict::kLess;
}

Result<double> parse_signed_percent(std::string_view text) {
  const std::string given(text);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  if (!text.ends_with('%')) return invalid_argument("found \"" + given + "\", expected a percentage such as -10%");
  text.remove_suffix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return invalid_argument("found \"" + given + "\", expected a percentage such as -10%");
  }
  return value;
}

std::string explain_change(const Comparison& c) {
  const auto fell = c.fallen(), rose = c.risen();
  const double down = sum_of(fell), up = sum_of(rose);
  std::string out;
  if (fell.empty() && rose.empty()) {
    out = "No operation or host phase changed the critical path significantly";
  } else if (rose.empty()) {
    out = "On the critical path " + names_of(fell) + "; nothing rose";
  } else if (fell.empty()) {
    out = "On the critical path " + names_of(rose) + "; nothing fell";
  } else {
    const bool is_win = -down >= up;
    const double share = 100 * (is_win ? up / -down : -down / up);
    out = "On the critical path fell " + names_of(fell) + "; rose " + names_of(rose) + ", which " +
          (is_win ? "took back " + format_significant(std::round(share)) + " % of the gain"
                  : "outweighs the gain (" + format_significant(std::round(share)) + " % of the loss was won back)");
  }
  const std::string hidden = hidden_changes(c);
  if (!hidden.empty()) out += ". Off the path: " + hidden;
  return out + ".";
}

Result<std::string> finding_entry(const Comparison& c, const FindingWords& words, std::string_view date) {
  FATHOM_RETURN_IF_ERROR(check_words(c, words));
  const Change& judged = c.judged();
  const char* subject = &judged == &c.step ? "step" : "committed token";
  const PredictionVerdict verdict = judge_prediction(judged, words.predicted_percent);
  std::string out =
      "\n## " + std::string(date) + ": " + one_line(words.title.empty() ? words.change : words.title) + "\n\n";
  out += "**Hypothesis.** " + one_line(words.hypothesis) + "\n\n";
  out += "**Prediction.** " + std::string(subject) + " " + format_signed_percent(words.predicted_percent) + "\n\n";
  out += "**Change.** " + one_line(words.change) + "\n\n";
  out += run_line("A", c.name_before, c.run_before) + run_line("B", c.name_after, c.run_after);
  for (const RunDifference& difference : c.differences)
    out += "- differs on purpose: " + one_line(difference.text) + "\n";
  out += "\n| | A, ms | B, ms | change | % | 95 % interval |\n|---|---:|---:|---:|---:|---:|\n";
  out += change_row(c, "step", c.step);
  if (c.token.has_value()) out += change_row(c, "committed token", *c.token);
  out += "\nsteps/s " + format_significant(c.steps_per_s_before) + " to " + format_significant(c.steps_per_s_after) +
         ", tok/s " + format_significant(c.tokens_per_s_before) + " to " + format_significant(c.tokens_per_s_after) +
         ".\n";
  out += rows_table(c, "category", c.categories) + rows_table(c, "operation", c.operations) +
         rows_table(c, "host", c.host);
  out += "\nPer step; path: on the critical path (adds up to the step), summed: overlapped work counted fully. " +
         significance_sentence(c) + "\n\n";
  out += "**Verdict: " + std::string(prediction_verdict_name(verdict)) + ".** Predicted " +
         format_signed_percent(words.predicted_percent) + ", measured " + format_signed_percent(c.percent(judged)) +
         " (" + interval_text(judged) + "). " + explain_change(c) + "\n\n";
  out += "**Left.** " + (words.left.empty() ? largest_rows(c) : one_line(words.left)) + "\n";
  return out;
}

Status append_finding(const std::string& path, std::string_view entry) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  const int lock = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock < 0) return io_error(path + ": cannot open the folder " + folder + ": " + std::strerror(errno));
  struct Closer {
    int fd;
    ~Closer() { close(fd); }
  } closer{lock};
  while (flock(lock, LOCK_EX) != 0) {
    if (errno != EINTR) return io_error(path + ": cannot lock the folder " + folder + ": " + std::strerror(errno));
  }
  std::string text = std::string(kHeading) + std::string(kPreamble);
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    FATHOM_ASSIGN_OR_RETURN(text, read_text_file(path));
    if (!text.starts_with(kHeading)) {
      return invalid_argument(path + ": found a file that does not begin with \"" + std::string(kHeading) +
                              "\", expected a findings file or none; nothing was written");
    }
    if (!text.ends_with('\n')) text += '\n';
  }
  text += entry;
  return write_file_atomically(path, std::as_bytes(std::span(text)));
}

}  // namespace fathom
