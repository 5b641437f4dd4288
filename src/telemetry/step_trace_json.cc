#include "telemetry/step_trace_json.h"

#include <cstdio>
#include <map>
#include <vector>

namespace fathom {
namespace {

void append_member(std::string& out, const char* name, double value) {
  char text[400];
  std::snprintf(text, sizeof text, "\"%s\":%.3f,", name, value);
  out += text;
}

void append_call(std::string& out, std::size_t operation, std::int32_t layer, double begin_us, double time_us,
                 const OpCost& cost) {
  char text[1024];  // doubles in %.0f can have 309 digits
  std::snprintf(text, sizeof text, "%s[%zu,%d,%.3f,%.3f,%.0f,%.0f", out.back() == ']' ? "," : "", operation, layer,
                begin_us, time_us, cost.bytes, cost.flops);
  out += text;
}

void append_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  }
  out += '"';
}

// Names by the order in which they were first seen.
class NameTable {
 public:
  std::size_t index_of(const std::vector<std::string>& names) {
    const auto [found, fresh] = indices_.try_emplace(names, indices_.size());
    if (fresh) {
      text_ += text_.empty() ? "" : ",";
      if (names.size() > 1) text_ += '[';
      for (std::size_t i = 0; i < names.size(); ++i) {
        if (i > 0) text_ += ',';
        append_string(text_, names[i]);
      }
      if (names.size() > 1) text_ += ']';
    }
    return found->second;
  }
  const std::string& text() const { return text_; }

 private:
  std::map<std::vector<std::string>, std::size_t> indices_;
  std::string text_;
};

void append_device(std::string& out, const TracedStep& step, NameTable& operations, NameTable& kernels) {
  if (!step.device_fault.empty()) {
    out += ",\"device_fault\":";
    append_string(out, step.device_fault);
    return;
  }
  out += ",\"device\":[";
  for (const DeviceSample& sample : step.device) {
    append_call(out, operations.index_of({sample.operation, sample.variant}), sample.layer, sample.begin_us,
                sample.time_us, sample.cost);
    out += "," + std::to_string(kernels.index_of({sample.kernel})) + "," + std::to_string(sample.lane) + "]";
  }
  out += "]";
}

}  // namespace

std::string captured_steps_json(std::span<const TracedStep> steps, std::string_view members) {
  NameTable operations, kernels;
  std::string rows;
  for (const TracedStep& step : steps) {
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
      append_call(rows, operations.index_of({std::string(sample.scope.operation), std::string(sample.scope.variant)}),
                  sample.scope.layer, sample.begin_us, sample.time_us, sample.cost);
      rows += ']';
    }
    rows += ']';
    if (step.on_device) append_device(rows, step, operations, kernels);
    rows += '}';
  }
  std::string out =
      "{\"format\":\"" + std::string(kCaptureFormat) + "\",\"version\":" + std::to_string(kCaptureVersion);
  if (!members.empty()) out += "," + std::string(members);
  out += ",\n\"operations\":[" + operations.text() + "]";
  if (!kernels.text().empty()) out += ",\n\"kernels\":[" + kernels.text() + "]";
  return out + ",\n\"steps\":[\n" + rows + "\n]}\n";
}

}  // namespace fathom
