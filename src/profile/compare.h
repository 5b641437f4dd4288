// Two profiles side by side: what rose, what fell, and whether the difference can be believed.
//
// Every figure is per step, so that runs of different lengths compare; the step also per committed token. Repeats
// are the samples: a change is significant where Welch's interval of the difference of the repeats' means excludes
// zero, at 95 % for the step and at 99 % for a row (there are many rows). With one repeat nothing is significant.
// Runs that differ in what was measured (batch, context, clocks, ...) get warnings and no claim.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "profile/report.h"
#include "profile/statistics.h"

namespace fathom {

enum class Difference : std::uint8_t {
  kBackend,
  kDevice,
  kClocks,  // core or memory clocks by 2 %; where a core clock is not known, measured ceilings by 10 %
  kModel,
  kNumerics,
  kVariants,
  kBatch,
  kContext,  // 2 %
  kExperts,  // experts hit per step, or the bytes they take, 5 %
  kTokens,   // rows or committed tokens per step, 2 %
  kThreads,
  kCollector,
};
inline constexpr int kNumDifferences = 12;

std::string_view difference_name(Difference difference);  // "variants": for --intended
std::optional<Difference> parse_difference(std::string_view name);

struct RunDifference {
  Difference kind;
  std::string text;       // "batch: 32 sequences against 16"
  bool intended = false;  // the change under test: no obstacle to a claim
};

struct Change {
  double before_us = 0;  // per step
  double after_us = 0;
  Interval difference;  // after - before

  bool significant() const { return difference.excludes_zero(); }
};

enum class Presence : std::uint8_t { kBoth, kNew, kVanished };

// A category, an operation or a kernel of an operation, over all layers.
struct ComparedRow {
  std::string category;
  std::string operation;  // empty in category rows
  std::string kernel;     // empty in category and operation rows
  Presence presence = Presence::kBoth;
  Change critical;                                 // on the critical path: these changes add up to the step's
  Change summed;                                   // all of its time, overlapped or not
  double launches_before = 0, launches_after = 0;  // per step
  double bytes_before = 0, bytes_after = 0;        // per step
  // As measured, where both profiles have it: per step.
  std::optional<ExposedTime> exposed_before, exposed_after;

  // "copy", "linear: gemm_fp8": what a sentence calls it.
  std::string label() const;
};

enum class Verdict : std::uint8_t {
  kFaster,
  kSlower,
  kNoDifference,   // the interval holds zero
  kUnproven,       // one repeat
  kNotComparable,  // an unintended difference
};
std::string_view verdict_name(Verdict verdict);

struct Comparison {
  std::string name_before, name_after;  // as given: folders, files
  RunDescription run_before, run_after;
  std::vector<RunDifference> differences;
  std::vector<std::string> notes;  // what to know of the figures; no obstacle to a claim
  Verdict verdict = Verdict::kUnproven;
  Change step;
  std::optional<Change> token;  // per committed token; absent where a run committed none
  bool judged_per_token = false;
  double steps_per_s_before = 0, steps_per_s_after = 0;
  double tokens_per_s_before = 0, tokens_per_s_after = 0;
  std::int64_t repeats_before = 0, repeats_after = 0;
  // Each by falling size of the change on the critical path, then of the summed one.
  std::vector<ComparedRow> categories;
  std::vector<ComparedRow> operations;
  std::vector<ComparedRow> kernels;
  // Host phases, "idle" and "unaccounted": category "host".
  std::vector<ComparedRow> host;

  // What the verdict looks at: the step, or the committed token where the two commit unlike numbers of tokens.
  const Change& judged() const { return judged_per_token && token.has_value() ? *token : step; }
  double percent(const Change& change) const;  // of what it was before; 0 where that is 0
  bool may_claim() const { return verdict != Verdict::kNotComparable && verdict != Verdict::kUnproven; }
  // Operations and host rows that changed the step significantly, largest first.
  std::vector<const ComparedRow*> risen() const;
  std::vector<const ComparedRow*> fallen() const;
  // Kernels that one side lacks, by falling size: a cast that stands inside an operation shows here.
  std::vector<const ComparedRow*> kernels_of(Presence presence) const;
};

inline constexpr double kStepConfidence = 0.95;
inline constexpr double kRowConfidence = 0.99;

struct CompareOptions {
  std::vector<Difference> intended;
};

Comparison compare_reports(const ProfileReport& before, const ProfileReport& after, std::string name_before,
                           std::string name_after, const CompareOptions& options = {});

// Slower by `fraction` (0.03) or more, and significantly. What a CI gate asks; undefined without may_claim().
bool is_slower_by(const Comparison& comparison, double fraction);

// "3%", "3 %", "0.03"; at least 0.
Result<double> parse_fraction(std::string_view text);

// The verdict and the method, in a sentence each.
std::string verdict_sentence(const Comparison& comparison);
std::string significance_sentence(const Comparison& comparison);

// Tables for a terminal, at most `max_rows` rows in each.
std::string comparison_text(const Comparison& comparison, std::size_t max_rows);
std::string comparison_json(const Comparison& comparison);
// One page without outside references, light and dark.
std::string comparison_html(const Comparison& comparison);

}  // namespace fathom
