#include "profile/device_timeline.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace fathom {
namespace {

constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

TimelineCall call_of(const CapturedCall& call) {
  TimelineCall out;
  out.layer = call.scope.layer;
  out.operation = call.scope.operation;
  out.variant = call.scope.variant;
  return out;
}

void add_cost(const CapturedCall& call, TimelineCall& out) {
  out.bytes = call.cost.bytes * call.num_repeats;
  out.flops = call.cost.flops * call.num_repeats;
}

}  // namespace

std::string bare_kernel_name(std::string_view name) {
  if (name.starts_with("void ")) name.remove_prefix(5);
  int depth = 0;
  std::string out;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (constexpr std::string_view kUnnamed = "(anonymous namespace)::"; name.substr(i).starts_with(kUnnamed)) {
      i += kUnnamed.size() - 1;
      continue;
    }
    if (c == '<') ++depth;
    if (c == '>') --depth;
    if (c == '(' && depth <= 0) break;
    if (c != ' ') out += c;
  }
  return out;
}

void order_records(std::vector<DeviceRecord>& records) {
  std::stable_sort(records.begin(), records.end(),
                   [](const DeviceRecord& a, const DeviceRecord& b) { return a.begin_us < b.begin_us; });
  std::map<std::int32_t, double> ends;  // by stream
  for (DeviceRecord& record : records) {
    double& end_us = ends.try_emplace(record.stream, record.begin_us).first->second;
    record.begin_us = std::min(std::max(record.begin_us, end_us), record.end_us);
    end_us = std::max(end_us, record.end_us);
  }
}

namespace {

bool is_timed(NodeKind kind) { return kind == NodeKind::kKernel || kind == NodeKind::kCopy || kind == NodeKind::kSet; }

// A step's host phases, and its calls where they were traced.
TimelineStep host_of(const ModelStep& step, double total_us, bool on_device) {
  StepTrace trace;
  if (!on_device) trace = step.trace();
  const StepParts& parts = step.parts();
  trace.num_tokens = trace.num_sequences = trace.num_committed = step.num_rows();
  trace.launch_us = trace.step_us = total_us;
  trace.prepare_us = parts.prepare_us;
  trace.forward_us = parts.forward_us;
  trace.sample_us = parts.sample_us;
  trace.draft_us = parts.draft_us;
  TimelineStep out = step_of_trace(trace);
  out.on_device = on_device;
  return out;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class Collection {
 public:
  Collection(Model& model, ModelStep& step, DeviceRecorder* recorder, const DeviceLoadOptions& options,
             ClockSource* clocks)
      : backend_(model.backend()), step_(step), recorder_(recorder), options_(options), clocks_(clocks) {}

  Result<DeviceSteps> run() {
    FATHOM_RETURN_IF_ERROR(run_plain());
    FATHOM_ASSIGN_OR_RETURN(experts_hit_, step_.count_experts());
    if (backend_.last_captured() == nullptr) {
      FATHOM_RETURN_IF_ERROR(collect(Source::kScopes));
      return finish("scopes");
    }
    if (recorder_ != nullptr) {
      const Status recorded = collect(Source::kRecords);
      if (recorded.ok()) return finish("cupti");
      out_.notes.push_back("CUPTI records were not used: " + recorded.message());
    }
    FATHOM_RETURN_IF_ERROR(collect(Source::kEvents));
    return finish("events");
  }

 private:
  enum class Source : std::uint8_t { kRecords, kEvents, kScopes };

  Status run_plain() {
    std::vector<double> times;
    for (std::int32_t i = 0; i < options_.num_warmup + 15; ++i) {
      FATHOM_ASSIGN_OR_RETURN(const RepeatableStep::Run run, step_.run({}, 1));
      if (i >= options_.num_warmup) times.push_back(run.step_us);
    }
    out_.plain_step_us = median(times);
    return {};
  }

  Status collect(Source source) {
    out_.repeats.clear();
    core_mhz_.clear(), memory_mhz_.clear();
    step_.executor().context().segments = source == Source::kEvents ? SegmentTiming::kOperations : SegmentTiming::kNone;
    const Status status = collect_repeats(source);
    step_.executor().context().segments = SegmentTiming::kNone;
    return status;
  }

  Status collect_repeats(Source source) {
    for (std::int32_t r = 0; r < options_.num_repeats; ++r) {
      std::vector<TimelineStep> steps;
      // The first runs launch without a graph and capture it.
      for (std::int32_t i = -std::max(3, options_.num_warmup); i < options_.num_steps; ++i) {
        FATHOM_ASSIGN_OR_RETURN(TimelineStep step, run_step(source, i < 0));
        if (i < 0) continue;
        step.step = i;
        step.experts_hit = experts_hit_;
        steps.push_back(std::move(step));
      }
      read_clocks();
      out_.repeats.push_back(std::move(steps));
    }
    return {};
  }

  void read_clocks() {
    if (clocks_ == nullptr) return;
    const Result<Clocks> read = clocks_->read();
    if (!read.ok()) {
      out_.notes.push_back("clocks were not read: " + read.status().message());
      clocks_ = nullptr;
      return;
    }
    core_mhz_.push_back(read->core_mhz);
    memory_mhz_.push_back(read->memory_mhz);
  }

  Result<TimelineStep> run_step(Source source, bool warm_up) {
    if (source == Source::kScopes) {
      FATHOM_ASSIGN_OR_RETURN(const RepeatableStep::Run run, step_.run_taking(Taking::kTrace));
      return host_of(step_, run.step_us, false);
    }
    if (source == Source::kRecords) FATHOM_RETURN_IF_ERROR(recorder_->take().status());
    const double begin_us = source == Source::kRecords ? recorder_->now_us() : 0;
    FATHOM_ASSIGN_OR_RETURN(const RepeatableStep::Run run, step_.run({}, 1));
    if (warm_up) return TimelineStep{};
    if (source == Source::kRecords) return recorded_step(run, begin_us);
    return timed_step(run);
  }

  Result<std::shared_ptr<const CapturedStep>> replayed() const {
    std::shared_ptr<const CapturedStep> captured = backend_.last_captured();
    if (captured == nullptr) return failed_precondition("the step was launched, not replayed: nothing knows its calls");
    return captured;
  }

  Result<TimelineStep> timed_step(const RepeatableStep::Run& run) {
    FATHOM_ASSIGN_OR_RETURN(const auto captured, replayed());
    FATHOM_ASSIGN_OR_RETURN(const std::vector<double> segments, backend_.segment_times_us(*captured));
    TimelineStep step = host_of(step_, run.step_us, true);
    double device_us = 0;
    for (const double us : segments) device_us += us;
    // Events have no host clock: the device ends when the host has waited for it.
    double forward_end_us = step_.parts().prepare_us + step_.parts().forward_us;
    step.calls = calls_of_segments(*captured, segments, std::max(0.0, forward_end_us - device_us));
    return step;
  }

  Result<TimelineStep> recorded_step(const RepeatableStep::Run& run, double begin_us) {
    FATHOM_ASSIGN_OR_RETURN(const auto captured, replayed());
    if (!captured->fault.empty()) return failed_precondition(captured->fault);
    FATHOM_ASSIGN_OR_RETURN(std::vector<DeviceRecord> records, recorder_->take());
    std::vector<DeviceRecord> graph, beside;
    for (DeviceRecord& record : records) (record.graph_node != 0 ? graph : beside).push_back(std::move(record));
    TimelineStep step = host_of(step_, run.step_us, true);
    FATHOM_ASSIGN_OR_RETURN(step.calls, calls_of_records(*captured, std::move(graph), begin_us, places_));
    for (const DeviceRecord& record : beside) {
      // Behind the step its logits are fetched, for their hash.
      if (record.begin_us - begin_us >= run.step_us) continue;
      TimelineCall call;
      call.begin_us = record.begin_us - begin_us;
      call.time_us = record.end_us - record.begin_us;
      call.operation = record.kind == NodeKind::kKernel ? "kernel" : "copy";
      call.variant = record.kind == NodeKind::kSet ? "set" : "copy";
      call.kernel = record.kind == NodeKind::kKernel ? bare_kernel_name(record.kernel) : call.variant;
      call.lane = record.stream;
      step.calls.push_back(std::move(call));
    }
    std::stable_sort(step.calls.begin(), step.calls.end(),
                     [](const TimelineCall& a, const TimelineCall& b) { return a.begin_us < b.begin_us; });
    return step;
  }

  Result<DeviceSteps> finish(const char* collector) {
    out_.collector = collector;
    out_.clocks = {median(core_mhz_), median(memory_mhz_)};
    return std::move(out_);
  }

  Backend& backend_;
  ModelStep& step_;
  DeviceRecorder* recorder_;
  const DeviceLoadOptions& options_;
  ClockSource* clocks_;
  NodePlaces places_;
  double experts_hit_ = 0;
  std::vector<double> core_mhz_, memory_mhz_;
  DeviceSteps out_;
};

}  // namespace

std::vector<TimelineCall> calls_of_segments(const CapturedStep& step, std::span<const double> segment_us,
                                            double begin_us) {
  std::vector<TimelineCall> out;
  for (std::size_t i = 0; i < step.segments.size() && i < segment_us.size(); ++i) {
    const CapturedSegment& segment = step.segments[i];
    // A segment of several calls (a layer) is shared out by their bytes.
    double bytes = 0;
    for (std::int32_t c = 0; c < segment.num_calls; ++c) bytes += step.calls[at(segment.first_call + c)].cost.bytes;
    for (std::int32_t c = 0; c < segment.num_calls; ++c) {
      const CapturedCall& call = step.calls[at(segment.first_call + c)];
      const double share = segment.num_calls == 1 ? 1.0 : bytes > 0 ? call.cost.bytes / bytes : 1.0 / segment.num_calls;
      TimelineCall timed = call_of(call);
      timed.begin_us = begin_us;
      timed.time_us = std::max(0.0, segment_us[i] * share);
      add_cost(call, timed);
      begin_us += timed.time_us;
      out.push_back(std::move(timed));
    }
  }
  return out;
}

Result<std::vector<TimelineCall>> calls_of_records(const CapturedStep& step, std::vector<DeviceRecord> records,
                                                   double origin_us, NodePlaces& places) {
  order_records(records);
  std::vector<std::int32_t> timed;
  for (std::size_t i = 0; i < step.nodes.size(); ++i) {
    if (is_timed(step.nodes[i].kind)) timed.push_back(static_cast<std::int32_t>(i));
  }
  if (records.size() != timed.size()) {
    return data_loss("a replay left " + std::to_string(records.size()) + " records and its graph has " +
                     std::to_string(timed.size()) + " kernels, copies and sets: the capture was cut off");
  }
  const bool first = places.empty();
  std::vector<TimelineCall> out;
  std::vector<bool> costed(step.calls.size());
  for (std::size_t i = 0; i < records.size(); ++i) {
    const DeviceRecord& record = records[i];
    const CapturedNode& node = step.nodes[at(timed[i])];
    if (node.kind != record.kind || bare_kernel_name(node.kernel) != bare_kernel_name(record.kernel)) {
      return data_loss("record " + std::to_string(i) + " of a replay is \"" + record.kernel +
                       "\" and its graph has \"" + node.kernel + "\" there");
    }
    if (first) {
      if (!places.try_emplace(record.graph_node, timed[i]).second) {
        places.clear();
        return data_loss("node " + std::to_string(record.graph_node) + " was recorded twice in one replay");
      }
    } else if (const auto found = places.find(record.graph_node); found == places.end() || found->second != timed[i]) {
      return data_loss("node " + std::to_string(record.graph_node) + " ran in another place than at the first replay");
    }
    TimelineCall call;
    if (node.call >= 0) {
      call = call_of(step.calls[at(node.call)]);
      if (!costed[at(node.call)]) add_cost(step.calls[at(node.call)], call);
      costed[at(node.call)] = true;
    } else {
      call.operation = record.kind == NodeKind::kKernel ? "kernel" : "copy";
      call.variant = record.kind == NodeKind::kSet ? "set" : "copy";
    }
    call.kernel = record.kind == NodeKind::kKernel ? bare_kernel_name(record.kernel)
                  : record.kind == NodeKind::kCopy ? "copy"
                                                   : "set";
    call.lane = record.stream;
    call.begin_us = record.begin_us - origin_us;
    call.time_us = record.end_us - record.begin_us;
    out.push_back(std::move(call));
  }
  return out;
}

Result<DeviceSteps> collect_device_steps(Model& model, ModelStep& step, DeviceRecorder* recorder,
                                         const DeviceLoadOptions& options, ClockSource* clocks) {
  return Collection(model, step, recorder, options, clocks).run();
}

}  // namespace fathom
