#include <cstdio>
#include <optional>
#include <span>

#include "base/mapped_file.h"
#include "commands.h"
#include "opened_profiles.h"
#include "standard_streams.h"

namespace fathom::app {
namespace {

Status write_text(const std::string& path, const std::string& text) {
  if (path == "-") return write_standard_output(text);
  return write_file_atomically(path, std::as_bytes(std::span(text)));
}

// What is written besides the exit code.
Status write_comparison(const Comparison& comparison, const CompareCliOptions& options) {
  if (options.json == "-") {
    FATHOM_RETURN_IF_ERROR(write_text("-", comparison_json(comparison)));
  } else {
    FATHOM_RETURN_IF_ERROR(
        write_standard_output(comparison_text(comparison, static_cast<std::size_t>(options.max_rows))));
    if (!options.json.empty()) FATHOM_RETURN_IF_ERROR(write_text(options.json, comparison_json(comparison)));
  }
  if (!options.html.empty()) FATHOM_RETURN_IF_ERROR(write_text(options.html, comparison_html(comparison)));
  return {};
}

}  // namespace

int run_compare(const CompareCliOptions& options) {
  constexpr int kSlower = 1, kBadInput = 2;
  std::optional<double> gate;
  if (!options.fail_if_slower.empty()) {
    const Result<double> fraction = parse_fraction(options.fail_if_slower);
    if (!fraction.ok()) {
      report_failure("compare", fraction.status().with_context("--fail-if-slower"));
      return kBadInput;
    }
    gate = *fraction;
  }
  const Result<Comparison> comparison = compare_profiles(options.before, options.after, options.intended);
  if (!comparison.ok()) {
    report_failure("compare", comparison.status());
    return kBadInput;
  }
  if (const Status written = write_comparison(*comparison, options); !written.ok()) {
    report_failure("compare", written);
    return kBadInput;
  }
  if (!gate.has_value()) return 0;
  if (!comparison->may_claim()) {
    report_failure("compare", failed_precondition("--fail-if-slower: " + verdict_sentence(*comparison)));
    return kBadInput;
  }
  if (!is_slower_by(*comparison, *gate)) return 0;
  std::fprintf(stderr, "fathom compare: slower by %.1f %%, significantly; --fail-if-slower allows %.1f %%\n",
               comparison->percent(comparison->judged()), 100 * *gate);
  return kSlower;
}

}  // namespace fathom::app
