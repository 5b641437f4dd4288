#include "profile/record_tracer.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace fathom {
namespace {

DeviceSample sample_of(TimelineCall call) {
  DeviceSample out;
  out.layer = call.layer;
  out.lane = call.lane;
  out.operation = std::move(call.operation);
  out.variant = std::move(call.variant);
  out.kernel = std::move(call.kernel);
  out.begin_us = call.begin_us;
  out.time_us = call.time_us;
  out.cost = {call.bytes, call.flops};
  return out;
}

class RecordTracer final : public DeviceTracer, public OpObserver {
 public:
  explicit RecordTracer(std::function<Result<std::unique_ptr<DeviceRecorder>>()> open) : open_(std::move(open)) {}

  Status start() override {
    places_.clear();
    FATHOM_ASSIGN_OR_RETURN(recorder_, open_());
    return recorder_->take().status();
  }
  void stop() override { recorder_.reset(); }
  void begin_step() override {
    launched_.clear();
    origin_us_ = recorder_->now_us();
  }
  OpObserver* observer() override { return this; }

  void begin_operation(const OpScope& scope) override {
    launched_.push_back({scope, recorder_->now_us(), std::numeric_limits<double>::infinity(), {}, false});
  }
  void end_operation(const OpScope&, std::int32_t num_repeats, const OpCost& cost) override {
    launched_.back().end_us = recorder_->now_us();
    launched_.back().cost = {cost.bytes * num_repeats, cost.flops * num_repeats};
  }

  Result<std::vector<DeviceSample>> end_step(std::span<const std::shared_ptr<const CapturedStep>> replayed) override {
    FATHOM_ASSIGN_OR_RETURN(std::vector<DeviceRecord> records, recorder_->take());
    order_records(records);
    std::vector<DeviceSample> out;
    // Launches of graphs, in the order of their first record.
    std::vector<std::vector<DeviceRecord>> graphs;
    std::map<std::uint64_t, std::size_t> graph_index;
    for (DeviceRecord& record : records) {
      if (record.graph_node == 0) {
        out.push_back(launched_sample(record));
        continue;
      }
      const auto [found, fresh] = graph_index.try_emplace(record.graph, graphs.size());
      if (fresh) graphs.emplace_back();
      graphs[found->second].push_back(std::move(record));
    }
    if (graphs.size() != replayed.size()) {
      return data_loss("a step replayed " + std::to_string(replayed.size()) + " graphs and there are records of " +
                       std::to_string(graphs.size()));
    }
    for (std::size_t i = 0; i < graphs.size(); ++i) {
      if (!replayed[i]->fault.empty()) return failed_precondition(replayed[i]->fault);
      FATHOM_ASSIGN_OR_RETURN(std::vector<TimelineCall> calls, calls_of_records(*replayed[i], std::move(graphs[i]),
                                                                                origin_us_, places_[replayed[i]->id]));
      for (TimelineCall& call : calls) out.push_back(sample_of(std::move(call)));
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const DeviceSample& a, const DeviceSample& b) { return a.begin_us < b.begin_us; });
    return out;
  }

 private:
  struct LaunchedCall {
    OpScope scope;
    double begin_us = 0, end_us = 0;
    OpCost cost;
    bool is_costed = false;
  };

  // Of the call that launched it: the last to begin before the launch, if it had not ended.
  DeviceSample launched_sample(const DeviceRecord& record) {
    TimelineCall call;
    call.begin_us = record.begin_us - origin_us_;
    call.time_us = record.end_us - record.begin_us;
    call.lane = record.stream;
    call.operation = record.kind == NodeKind::kKernel ? "kernel" : "copy";
    call.variant = record.kind == NodeKind::kSet ? "set" : "copy";
    call.kernel = record.kind == NodeKind::kKernel ? bare_kernel_name(record.kernel) : call.variant;
    if (record.kind != NodeKind::kKernel) return sample_of(std::move(call));
    call.variant = "launched";
    auto found = std::upper_bound(launched_.begin(), launched_.end(), record.launched_us,
                                  [](double us, const LaunchedCall& one) { return us < one.begin_us; });
    if (record.launched_us > 0 && found != launched_.begin() && record.launched_us <= (--found)->end_us) {
      call.layer = found->scope.layer;
      call.operation = found->scope.operation;
      call.variant = found->scope.variant;
      if (!std::exchange(found->is_costed, true)) {
        call.bytes = found->cost.bytes;
        call.flops = found->cost.flops;
      }
    }
    return sample_of(std::move(call));
  }

  std::function<Result<std::unique_ptr<DeviceRecorder>>()> open_;
  std::unique_ptr<DeviceRecorder> recorder_;
  double origin_us_ = 0;
  std::vector<LaunchedCall> launched_;         // of this step, by begin
  std::map<std::int64_t, NodePlaces> places_;  // by CapturedStep::id
};

}  // namespace

std::unique_ptr<DeviceTracer> make_record_tracer(std::function<Result<std::unique_ptr<DeviceRecorder>>()> open) {
  return std::make_unique<RecordTracer>(std::move(open));
}

}  // namespace fathom
