// PROFILE_FINDINGS.md: one dated entry for each thing that was tried, written from two profiles.
//
// An entry holds the hypothesis and its prediction as they were said, the change, what the profiles show, a verdict
// on the prediction with the reason that the difference of the profiles shows, and what is left. Entries are only
// ever appended.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "profile/compare.h"

namespace fathom {

struct FindingWords {
  std::string title;             // empty: the change
  std::string hypothesis;        // required
  std::string change;            // required: what was done
  double predicted_percent = 0;  // of the judged time: -10 is a step that takes a tenth less
  std::string left;              // what is left to try; empty: the largest rows are named
};

enum class PredictionVerdict : std::uint8_t { kAsPredicted, kLess, kMore, kFlat };
std::string_view prediction_verdict_name(PredictionVerdict verdict);

// How the measured change stands to the predicted one.
//   flat:         the interval of the change holds zero, and the prediction was not inside it
//   as predicted: the prediction lies in the interval, or the change is within a fifth of it
//   less, more:   the effect is smaller (or of the other sign), or larger
PredictionVerdict judge_prediction(const Change& change, double predicted_percent);

// "-10%", "+3 %", "-0.5%": percent, signed.
Result<double> parse_signed_percent(std::string_view text);

// Why, in the words of the difference: what fell, what rose and took back how much, what only fell off the path.
std::string explain_change(const Comparison& comparison);

// The entry as Markdown. Refuses words that are missing, and a comparison that may claim nothing: unlike runs, one
// repeat. `date`: "2026-11-29".
Result<std::string> finding_entry(const Comparison& comparison, const FindingWords& words, std::string_view date);

// Appends under a lock on the folder, by a new file and a rename: another program sees the old file or the new one,
// and two at once both get their entry. A new file gets a heading. Refuses a file that is not a findings file.
Status append_finding(const std::string& path, std::string_view entry);

}  // namespace fathom
