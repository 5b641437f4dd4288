#include "checkpoint/finding.h"

#include <algorithm>

namespace fathom {

std::string Finding::to_string() const {
  std::string text = severity == Severity::kError ? "error: " : "warning: ";
  if (expected.empty()) return text + kind + ": " + found;
  return text + kind + ": " + name + ": found " + found + ", expected " + expected;
}

bool has_errors(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.severity == Severity::kError; });
}

}  // namespace fathom
