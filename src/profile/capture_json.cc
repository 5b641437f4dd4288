#include <map>
#include <nlohmann/json.hpp>

#include "profile/timeline.h"
#include "telemetry/step_trace_json.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostLanes = 4096;  // streams have small numbers; pictures and traces have a row for each

// Reads members of one object; the first that is wrong is kept.
class Fields {
 public:
  Fields(const Json& object, std::string where, Status& failure)
      : object_(object), where_(std::move(where)), failure_(failure) {
    if (!object.is_object()) fail("", "an object");
  }

  double number(const char* name) {
    const Json* value = find(name);
    if (value == nullptr || !value->is_number()) {
      fail(name, "a number");
      return 0;
    }
    return value->get<double>();
  }
  // A time or a count: at least 0.
  double amount(const char* name) {
    const double value = number(name);
    if (!(value >= 0)) fail(name, "0 or more");
    return value;
  }
  std::string text(const char* name) {
    const Json* value = find(name);
    if (value == nullptr || !value->is_string()) {
      fail(name, "a string");
      return {};
    }
    return value->get<std::string>();
  }
  const Json& array(const char* name) {
    static const Json kNone = Json::array();
    const Json* value = find(name);
    if (value != nullptr && value->is_array()) return *value;
    fail(name, "an array");
    return kNone;
  }
  void fail(const std::string& name, const std::string& expected) {
    if (!failure_.ok()) return;
    const Json* value = name.empty() ? &object_ : find(name.c_str());
    const std::string found = value == nullptr ? "nothing" : value->dump().substr(0, 40);
    failure_ = data_loss(where_ + (name.empty() ? "" : "." + name) + ": found " + found + ", expected " + expected);
  }

 private:
  const Json* find(const char* name) const {
    if (!object_.is_object()) return nullptr;
    const auto found = object_.find(name);
    return found == object_.end() ? nullptr : &*found;
  }
  const Json& object_;
  std::string where_;
  Status& failure_;
};

struct OperationName {
  std::string operation, variant;
};

struct Names {
  std::vector<OperationName> operations;
  std::vector<std::string> kernels;
};

// `on_device`: two members more, the kernel and its stream.
void read_calls(const Json& calls, const Names& names, bool on_device, const std::string& where, double origin_us,
                TimelineStep& step, Status& failure) {
  const std::size_t size = on_device ? 8 : 6;
  for (std::size_t i = 0; i < calls.size() && failure.ok(); ++i) {
    const Json& call = calls[i];
    bool good = call.is_array() && call.size() == size;
    for (std::size_t k = 0; good && k < size; ++k) good = call[k].is_number();
    good = good && call[0].is_number_unsigned() && call[0].get<std::size_t>() < names.operations.size() &&
           call[1].is_number_integer() && call[3].get<double>() >= 0;
    if (on_device) {
      good = good && call[6].is_number_unsigned() && call[6].get<std::size_t>() < names.kernels.size() &&
             call[7].is_number_integer() && call[7].get<std::int64_t>() >= 0 &&
             call[7].get<std::int64_t>() < kMostLanes;
    }
    if (!good) {
      failure = data_loss(where + "[" + std::to_string(i) + "]: found " + call.dump().substr(0, 60) +
                          ", expected [operation, layer, begin_us, time_us, bytes, flops" +
                          (on_device ? ", kernel, stream]" : "]"));
      return;
    }
    TimelineCall out;
    const OperationName& name = names.operations[call[0].get<std::size_t>()];
    out.operation = name.operation;
    out.variant = name.variant;
    if (on_device) {
      out.kernel = names.kernels[call[6].get<std::size_t>()];
      out.lane = call[7].get<std::int32_t>();
    }
    out.layer = call[1].get<std::int32_t>();
    out.begin_us = origin_us + call[2].get<double>();
    out.time_us = call[3].get<double>();
    out.bytes = call[4].get<double>();
    out.flops = call[5].get<double>();
    step.calls.push_back(std::move(out));
  }
}

// `faults`: why steps have no samples of the device, each reason once.
TimelineStep read_step(const Json& json, const Names& names, const std::string& where,
                       std::map<std::string, std::int64_t>& faults, Status& failure) {
  Fields fields(json, where, failure);
  StepTrace trace;
  trace.step = static_cast<std::int64_t>(fields.amount("step"));
  trace.num_tokens = static_cast<std::int32_t>(fields.amount("tokens"));
  trace.num_sequences = static_cast<std::int32_t>(fields.amount("sequences"));
  trace.num_drafts = static_cast<std::int32_t>(fields.amount("drafts"));
  trace.num_committed = static_cast<std::int32_t>(fields.amount("committed"));
  trace.step_us = fields.amount("step_us");
  trace.turn_us = fields.amount("turn_us");
  trace.schedule_us = fields.amount("schedule_us");
  trace.launch_us = fields.amount("launch_us");
  trace.wait_us = fields.amount("wait_us");
  trace.commit_us = fields.amount("commit_us");
  trace.detokenise_us = fields.amount("detokenise_us");
  trace.prepare_us = fields.amount("prepare_us");
  trace.forward_us = fields.amount("forward_us");
  trace.sample_us = fields.amount("sample_us");
  trace.draft_us = fields.amount("draft_us");
  trace.collect_us = fields.amount("collect_us");
  TimelineStep step = step_of_trace(trace);
  const double origin_us = trace.turn_us + trace.schedule_us;
  read_calls(fields.array("calls"), names, false, where + ".calls", origin_us, step, failure);
  if (!failure.ok()) return step;
  if (json.contains("device_fault")) {
    ++faults[fields.text("device_fault")];
  } else if (json.contains("device")) {
    step.on_device = true;
    read_calls(fields.array("device"), names, true, where + ".device", origin_us, step, failure);
  }
  return step;
}

void read_run(const Json& json, const std::string& source, ParsedCapture& out, Status& failure) {
  const auto found = json.find("run");
  if (found == json.end()) return;
  Fields run(*found, source + ": run", failure);
  out.run.backend = run.text("backend");
  out.run.device = run.text("device");
  out.run.model = run.text("model");
  out.run.numerics = run.text("numerics");
  if (found->contains("commit")) out.run.commit = run.text("commit");
  out.run.num_threads = static_cast<std::int64_t>(run.amount("threads"));
  const auto variants = found->find("variants");
  if (variants == found->end() || !variants->is_object()) return run.fail("variants", "an object");
  for (const auto& [operation, variant] : variants->items()) {
    if (!variant.is_string()) return run.fail("variants", "names of variants");
    out.run.variants[operation] = variant.get<std::string>();
  }
}

}  // namespace

Result<ParsedCapture> parse_capture(std::string_view text, std::string_view source_name) {
  const std::string source(source_name);
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    return data_loss(source + ": found an empty capture, expected the JSON of /stop_profile");
  }
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) {
    return data_loss(source + ": not JSON; a capture of " + std::to_string(text.size()) +
                     " bytes that ends in the middle was cut off: take it again");
  }
  if (!json.is_object() || json.value("format", Json()) != kCaptureFormat) {
    return data_loss(source + ": found " + json.dump().substr(0, 40) + ", expected a capture (\"format\":\"" +
                     std::string(kCaptureFormat) + "\")");
  }
  if (json.value("version", Json()) != kCaptureVersion) {
    return failed_precondition(source + ": found version " + json.value("version", Json()).dump() + ", expected " +
                               std::to_string(kCaptureVersion) + ": use the program that made it");
  }
  Status failure;
  ParsedCapture out;
  Fields fields(json, source, failure);
  read_run(json, source, out, failure);
  if (json.contains("http_us")) out.http_us = fields.amount("http_us");
  Names names;
  if (json.contains("kernels")) {
    for (const Json& entry : fields.array("kernels")) {
      if (!entry.is_string()) {
        return data_loss(source + ": kernels: found " + entry.dump().substr(0, 40) + ", expected a name");
      }
      names.kernels.push_back(entry.get<std::string>());
    }
  }
  for (const Json& entry : fields.array("operations")) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_string()) {
      return data_loss(source + ": operations: found " + entry.dump().substr(0, 40) +
                       ", expected [operation, variant]");
    }
    names.operations.push_back({entry[0].get<std::string>(), entry[1].get<std::string>()});
  }
  const Json& steps = fields.array("steps");
  std::map<std::string, std::int64_t> faults;
  for (std::size_t i = 0; i < steps.size() && failure.ok(); ++i) {
    TimelineStep step = read_step(steps[i], names, source + ": steps[" + std::to_string(i) + "]", faults, failure);
    // A step of a device whose records are missing says nothing of where its time went.
    if (steps[i].contains("device_fault")) continue;
    out.steps.push_back(std::move(step));
  }
  FATHOM_RETURN_IF_ERROR(failure);
  for (const auto& [fault, count] : faults) {
    out.notes.push_back(std::to_string(count) +
                        " steps are left out, the device's records of them are missing: " + fault);
  }
  out.run.collector = !out.steps.empty() && out.steps.front().on_device ? "cupti" : "scopes";
  if (out.steps.empty() && !faults.empty()) return failed_precondition(source + ": " + out.notes.front());
  if (out.steps.empty()) {
    return failed_precondition(source +
                               ": the capture holds no steps: nothing ran between its start and its stop; send "
                               "requests meanwhile");
  }
  return out;
}

}  // namespace fathom
