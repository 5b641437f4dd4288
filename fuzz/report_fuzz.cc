// Any text as a profile's report.json: a message, or a report that keeps its rules, is written again as it was read,
// and compares with itself without a difference.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "profile/compare.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto report = fathom::parse_report(std::string_view(reinterpret_cast<const char*>(data), size), "report.json");
  if (!report.ok()) return 0;
  const auto text = fathom::report_to_json(*report);
  FATHOM_CHECK(text.ok(), "what was read can be written");
  const auto again = fathom::parse_report(*text, "report.json");
  FATHOM_CHECK(again.ok() && *fathom::report_to_json(*again) == *text, "and read again");
  const fathom::Comparison same = fathom::compare_reports(*report, *again, "a", "b");
  FATHOM_CHECK(same.differences.empty() && same.risen().empty() && same.fallen().empty(), "no difference to itself");
  FATHOM_CHECK(!fathom::is_slower_by(same, 0), "nor slower");
  (void)fathom::comparison_text(same, 20);
  (void)fathom::comparison_json(same);
  (void)fathom::comparison_html(same);
  return 0;
}
