#include <cstdio>
#include <ctime>

#include "commands.h"
#include "opened_profiles.h"
#include "profile/findings.h"
#include "standard_streams.h"

namespace fathom::app {
namespace {

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char date[16];
  std::strftime(date, sizeof date, "%Y-%m-%d", &utc);
  return date;
}

Result<std::string> make_entry(const FindingsAddOptions& options) {
  const Result<double> predicted = parse_signed_percent(options.predict);
  if (!predicted.ok()) return predicted.status().with_context("--predict");
  FATHOM_ASSIGN_OR_RETURN(const Comparison comparison,
                          compare_profiles(options.before, options.after, options.intended));
  FindingWords words;
  words.title = options.title;
  words.hypothesis = options.hypothesis;
  words.change = options.change;
  words.predicted_percent = *predicted;
  words.left = options.left;
  return finding_entry(comparison, words, today());
}

}  // namespace

int run_findings_add(const FindingsAddOptions& options) {
  constexpr int kBadInput = 2;
  const Result<std::string> entry = make_entry(options);
  if (!entry.ok()) {
    report_failure("findings add", entry.status());
    return kBadInput;
  }
  if (const Status appended = append_finding(options.file, *entry); !appended.ok()) {
    report_failure("findings add", appended);
    return kBadInput;
  }
  if (const Status written = write_standard_output(*entry); !written.ok()) {
    return report_failure("findings add", written);
  }
  std::fprintf(stderr, "fathom findings add: appended to %s\n", options.file.c_str());
  return 0;
}

}  // namespace fathom::app
