#include "telemetry/step_trace_json.h"

#include <cstdio>
#include <map>
#include <utility>

namespace fathom {
namespace {

void append_member(std::string& out, const char* name, double value) {
  char text[400];
  std::snprintf(text, sizeof text, "\"%s\":%.3f,", name, value);
  out += text;
}

void append_call(std::string& out, std::size_t operation, const OpSample& sample) {
  char text[1024];  // doubles in %.0f can have 309 digits
  std::snprintf(text, sizeof text, "[%zu,%d,%.3f,%.3f,%.0f,%.0f]", operation, sample.scope.layer, sample.begin_us,
                sample.time_us, sample.cost.bytes, sample.cost.flops);
  out += text;
}

}  // namespace

std::string captured_steps_json(std::span<const StepTrace> steps, std::string_view members) {
  // Names are those of the registry: letters, digits and underscores.
  std::map<std::pair<std::string_view, std::string_view>, std::size_t> operations;
  std::string table, rows;
  for (const StepTrace& step : steps) {
    rows += rows.empty() ? "{" : ",\n{";
    for (const auto& [name, count] : {std::pair<const char*, double>{"step", static_cast<double>(step.step)},
                                      {"tokens", step.num_tokens},
                                      {"sequences", step.num_sequences},
                                      {"drafts", step.num_drafts},
                                      {"committed", step.num_committed}}) {
      char text[64];
      std::snprintf(text, sizeof text, "\"%s\":%.0f,", name, count);
      rows += text;
    }
    append_member(rows, "begin_us", step.begin_us);
    append_member(rows, "step_us", step.step_us);
    append_member(rows, "turn_us", step.turn_us);
    append_member(rows, "schedule_us", step.schedule_us);
    append_member(rows, "launch_us", step.launch_us);
    append_member(rows, "wait_us", step.wait_us);
    append_member(rows, "commit_us", step.commit_us);
    append_member(rows, "detokenise_us", step.detokenise_us);
    append_member(rows, "prepare_us", step.prepare_us);
    append_member(rows, "forward_us", step.forward_us);
    append_member(rows, "sample_us", step.sample_us);
    append_member(rows, "draft_us", step.draft_us);
    append_member(rows, "collect_us", step.collect_us);
    rows += "\"calls\":[";
    for (const OpSample& sample : step.samples) {
      const auto [found, fresh] =
          operations.try_emplace({sample.scope.operation, sample.scope.variant}, operations.size());
      if (fresh) {
        table += (table.empty() ? "[\"" : ",[\"") + std::string(sample.scope.operation) + "\",\"" +
                 std::string(sample.scope.variant) + "\"]";
      }
      if (rows.back() == ']') rows += ',';
      append_call(rows, found->second, sample);
    }
    rows += "]}";
  }
  std::string out =
      "{\"format\":\"" + std::string(kCaptureFormat) + "\",\"version\":" + std::to_string(kCaptureVersion);
  if (!members.empty()) out += "," + std::string(members);
  return out + ",\n\"operations\":[" + table + "],\n\"steps\":[\n" + rows + "\n]}\n";
}

}  // namespace fathom
