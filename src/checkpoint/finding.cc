#include "checkpoint/finding.h"

#include <algorithm>

namespace fathom {

std::string Finding::to_string() const {
  std::string text = severity == Severity::kError ? "error: " : "warning: ";
  text += kind + ": " + name + ": found " + found;
  if (!expected.empty()) text += ", expected " + expected;
  return text;
}

bool has_errors(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.severity == Severity::kError; });
}

}  // namespace fathom
