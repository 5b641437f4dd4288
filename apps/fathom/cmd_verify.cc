#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/units.h"
#include "checkpoint/verify.h"
#include "commands.h"
#include "model/tokenizer_of_checkpoint.h"

namespace fathom::app {
namespace {

// Findings of one kind that are printed in full; the rest is counted. JSON holds all.
constexpr int kShownOfAKind = 50;

void print_json(const VerifyOptions& options, const VerifyReport& report) {
  nlohmann::ordered_json json;
  json["model"] = options.model;
  json["ok"] = report.ok();
  json["num_tensors"] = report.num_tensors;
  json["total_bytes"] = report.total_bytes;
  json["draft"] = draft_kind_name(report.draft);
  json["findings"] = nlohmann::ordered_json::array();
  for (const Finding& finding : report.findings) {
    json["findings"].push_back({{"severity", finding.severity == Severity::kError ? "error" : "warning"},
                                {"kind", finding.kind},
                                {"name", finding.name},
                                {"found", finding.found},
                                {"expected", finding.expected}});
  }
  std::printf("%s\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

void print_text(const VerifyOptions& options, const VerifyReport& report) {
  std::map<std::string, int> shown;
  int num_errors = 0;
  int num_warnings = 0;
  for (const Finding& finding : report.findings) {
    ++(finding.severity == Severity::kError ? num_errors : num_warnings);
    if (++shown[finding.kind] <= kShownOfAKind) std::printf("%s\n", finding.to_string().c_str());
  }
  for (const auto& [kind, count] : shown) {
    if (count > kShownOfAKind) {
      std::printf("... and %d more findings of kind %s (--json lists them)\n", count - kShownOfAKind, kind.c_str());
    }
  }
  std::printf("%s: %s, %lld tensors, %s, draft %s; %d errors, %d warnings\n", options.model.c_str(),
              report.ok() ? "right" : "wrong", static_cast<long long>(report.num_tensors),
              format_bytes(report.total_bytes).c_str(), std::string(draft_kind_name(report.draft)).c_str(), num_errors,
              num_warnings);
}

// The path is no model at all: one finding says so.
bool is_unopened(const VerifyReport& report) {
  return report.findings.size() == 1 && report.findings.front().kind == "open";
}

}  // namespace

int run_verify(const VerifyOptions& options) {
  VerifyReport report = verify_path(options.model);
  if (!is_unopened(report)) {
    for (Finding& finding : verify_tokenizer(options.model)) {
      // Errors stand first.
      const bool first = finding.severity == Severity::kError;
      report.findings.insert(first ? report.findings.begin() : report.findings.end(), std::move(finding));
    }
  }
  if (options.json) {
    print_json(options, report);
  } else {
    print_text(options, report);
  }
  return report.ok() ? 0 : 1;
}

}  // namespace fathom::app
