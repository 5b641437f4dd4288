#include <cstdio>
#include <set>

#include "profile/categories.h"
#include "profile/timeline.h"

namespace fathom {
namespace {

constexpr int kHostThread = 0;

void append_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += escape;
    } else {
      out += c;
    }
  }
  out += '"';
}

void append_slice(std::string& out, std::string_view name, std::string_view category, int thread, double begin_us,
                  double time_us, const std::string& arguments) {
  char numbers[128];
  std::snprintf(numbers, sizeof numbers, ",\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"args\":{",
                thread, begin_us, time_us);
  out += ",\n{\"name\":";
  append_string(out, name);
  out += ",\"cat\":";
  append_string(out, category);
  out += numbers;
  out += arguments;
  out += "}}";
}

std::string call_arguments(const TimelineCall& call) {
  char numbers[160];
  std::snprintf(numbers, sizeof numbers, "\"layer\":%d,\"bytes\":%.0f,\"flops\":%.0f,\"variant\":", call.layer,
                call.bytes, call.flops);
  std::string out = numbers;
  append_string(out, call.variant);
  if (!call.kernel.empty()) {
    out += ",\"operation\":";
    append_string(out, call.operation);
  }
  return out;
}

void append_name(std::string& out, const char* what, int thread, std::string_view name) {
  out += (out.back() == '[' ? "\n{\"name\":\"" : ",\n{\"name\":\"") + std::string(what) +
         "\",\"ph\":\"M\",\"pid\":1,\"tid\":" + std::to_string(thread) + ",\"args\":{\"name\":";
  append_string(out, name);
  out += "}}";
}

}  // namespace

std::string chrome_trace_json(std::span<const TimelineStep> steps, std::string_view title) {
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  append_name(out, "process_name", 0, title);
  append_name(out, "thread_name", kHostThread, "host: engine thread");
  std::set<std::int32_t> lanes;
  for (const TimelineStep& step : steps) {
    for (const TimelineCall& call : step.calls) lanes.insert(call.lane);
  }
  const bool on_device = !steps.empty() && steps.front().on_device;
  for (const std::int32_t lane : lanes) {
    append_name(out, "thread_name", lane + 1, on_device ? "device: stream " + std::to_string(lane) : "operations");
  }
  double begin_us = 0;
  for (const TimelineStep& step : steps) {
    append_slice(
        out, "step " + std::to_string(step.step), "step", kHostThread, begin_us, step.total_us,
        "\"tokens\":" + std::to_string(step.num_tokens) + ",\"sequences\":" + std::to_string(step.num_sequences));
    for (const HostPhase& phase : step.phases) {
      append_slice(out, phase.name, "host", kHostThread, begin_us + phase.begin_us, phase.time_us, "");
    }
    for (const TimelineCall& call : step.calls) {
      append_slice(out, call.kernel.empty() ? call.operation : call.kernel, category_of(call.operation), call.lane + 1,
                   begin_us + call.begin_us, call.time_us, call_arguments(call));
    }
    begin_us += step.total_us;
  }
  return out + "\n]}\n";
}

}  // namespace fathom
