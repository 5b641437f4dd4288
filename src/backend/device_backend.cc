#include "backend/device_backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/units.h"

namespace fathom {

// Notes, while a step is captured, which nodes each call adds, and puts events between segments.
class DeviceBackend::CaptureNotes final : public OpObserver {
 public:
  CaptureNotes(DeviceApi& api, void* stream, SegmentTiming timing) : api_(api), stream_(stream), timing_(timing) {}

  void begin_operation(const OpScope& scope) override {
    const bool starts =
        timing_ == SegmentTiming::kOperations ||
        (timing_ == SegmentTiming::kLayers && (events_.empty() || scope.layer != segments_.back().layer));
    if (starts) {
      record();
      segments_.push_back({scope.layer, static_cast<std::int32_t>(calls_.size()), 0});
    }
    before_ = newest();
  }
  void end_operation(const OpScope& scope, std::int32_t num_repeats, const OpCost& cost) override {
    calls_.push_back({scope, num_repeats, cost, 0, 0});
    marks_.push_back({before_, newest()});
    if (!segments_.empty()) ++segments_.back().num_calls;
  }
  // Behind the last call.
  void end() {
    if (timing_ != SegmentTiming::kNone && !segments_.empty()) record();
  }

  std::vector<CapturedCall> calls_;
  std::vector<CallMarks> marks_;
  std::vector<CapturedSegment> segments_;
  std::vector<void*> events_;
  Status status_;

 private:
  void keep(const Status& status) {
    if (status_.ok()) status_ = status;
  }
  void record() {
    Result<void*> event = api_.create_event();
    keep(event.status());
    if (!event.ok()) return;
    events_.push_back(*event);
    keep(api_.record_event(*event, stream_));
  }
  NodeHandle newest() {
    const Result<NodeHandle> node = api_.newest_node(stream_);
    keep(node.status());
    return node.ok() ? *node : 0;
  }

  DeviceApi& api_;
  void* stream_;
  SegmentTiming timing_;
  NodeHandle before_ = 0;
};

Result<std::unique_ptr<Backend>> DeviceBackend::open(std::unique_ptr<DeviceApi> api,
                                                     const DeviceBackendOptions& options) {
  FATHOM_ASSIGN_OR_RETURN(DeviceCard card, api->open());
  FATHOM_ASSIGN_OR_RETURN(void* stream, api->create_stream());
  return std::unique_ptr<Backend>(new DeviceBackend(std::move(api), std::move(card), stream, options));
}

DeviceBackend::DeviceBackend(std::unique_ptr<DeviceApi> api, DeviceCard card, void* stream,
                             const DeviceBackendOptions& options)
    : api_(std::move(api)), card_(std::move(card)), stream_(stream), options_(options) {
  if (card_.is_emulated) {
    card_.info.num_threads = options.num_threads;
    threads_ = std::make_unique<ThreadPool>(options.num_threads);
  }
}

DeviceBackend::~DeviceBackend() {
  static_cast<void>(api_->synchronise(stream_, options_.timeout_us));
  drop_captured();
  if (staging_ != nullptr) api_->free_pinned(staging_);
  weights_.clear();
  api_->destroy_stream(stream_);
}

Result<std::int64_t> DeviceBackend::free_memory_bytes() {
  FATHOM_ASSIGN_OR_RETURN(const DeviceMemoryInfo memory, api_->memory_info());
  return memory.free_bytes;
}

Result<DeviceMemory> DeviceBackend::allocate(std::int64_t num_bytes, std::string_view purpose) {
  Result<void*> data = api_->allocate(std::max<std::int64_t>(num_bytes, 1));
  if (!data.ok()) {
    const Result<DeviceMemoryInfo> memory = api_->memory_info();
    const std::string left =
        memory.ok() ? ": " + format_bytes(memory->free_bytes) + " of " + format_bytes(memory->total_bytes) + " are free"
                    : "";
    return data.status().with_context("cannot allocate " + format_bytes(num_bytes) + " on " + card_.name + " for " +
                                      std::string(purpose) + left);
  }
  DeviceMemory memory;
  memory.data = static_cast<std::byte*>(*data);
  memory.num_bytes = num_bytes;
  memory.owner = std::shared_ptr<void>(*data, [api = api_](void* p) { api->free(p); });
  return memory;
}

// Through pinned staging in order with the stream: the host's bytes are free again at once.
Status DeviceBackend::upload(std::byte* device_data, const std::byte* host, std::int64_t num_bytes) {
  if (num_bytes == 0) return {};
  if (num_bytes > kStagingBytes) {
    FATHOM_RETURN_IF_ERROR(api_->copy(device_data, host, num_bytes, CopyKind::kToDevice, stream_));
    return finish();
  }
  if (staging_ == nullptr) {
    FATHOM_ASSIGN_OR_RETURN(staging_, api_->allocate_pinned(kStagingBytes));
  }
  if (staging_used_ + num_bytes > kStagingBytes) FATHOM_RETURN_IF_ERROR(finish());
  std::byte* from = static_cast<std::byte*>(staging_) + staging_used_;
  std::memcpy(from, host, static_cast<std::size_t>(num_bytes));
  staging_used_ += round_up(num_bytes, 256);
  return api_->copy(device_data, from, num_bytes, CopyKind::kToDevice, stream_);
}

Status DeviceBackend::download(std::byte* host, const std::byte* device_data, std::int64_t num_bytes) {
  if (num_bytes == 0) return {};
  FATHOM_RETURN_IF_ERROR(api_->copy(host, device_data, num_bytes, CopyKind::kToHost, stream_));
  return finish();
}

Status DeviceBackend::copy(std::byte* to, const std::byte* from, std::int64_t num_bytes) {
  if (num_bytes == 0) return {};
  return api_->copy(to, from, num_bytes, CopyKind::kOnDevice, stream_);
}

Status DeviceBackend::copy_rows(const RowCopies& copies) {
  FATHOM_CHECK(copies.row_bytes % 16 == 0, "rows move in pieces of 16 bytes");
  if (copies.count == 0) return {};
  return api_->copy_rows(copies, stream_);
}

Status DeviceBackend::finish() {
  FATHOM_RETURN_IF_ERROR(api_->synchronise(stream_, options_.timeout_us));
  staging_used_ = 0;
  return api_->take_launch_error();
}

Result<View> DeviceBackend::place_weight(const View& host, bool) {
  FATHOM_ASSIGN_OR_RETURN(DeviceMemory memory, allocate(host.num_bytes(), "a weight"));
  FATHOM_RETURN_IF_ERROR(upload(memory.data, host.data, host.num_bytes()));
  weights_.push_back(memory);
  return make_view(memory.data, host.dtype, host.shape);
}

Result<const void*> DeviceBackend::place_experts(std::vector<ExpertWeights>& experts, std::int32_t layer) {
  if (card_.is_emulated) return static_cast<const void*>(nullptr);  // its memory is the host's: the map serves
  const std::string purpose = "the experts of layer " + std::to_string(layer);
  Result<DeviceExperts> layout = plan_device_experts(experts);
  if (!layout.ok()) return layout.status().with_context(purpose);
  std::vector<std::byte> slab(static_cast<std::size_t>(layout->num_bytes()));
  const Status packed = pack_device_experts(*layout, experts, slab);
  if (!packed.ok()) return packed.with_context(purpose);
  FATHOM_ASSIGN_OR_RETURN(DeviceMemory memory, allocate(layout->num_bytes(), purpose));
  FATHOM_RETURN_IF_ERROR(upload(memory.data, slab.data(), layout->num_bytes()));
  FATHOM_RETURN_IF_ERROR(finish());
  weights_.push_back(memory);
  auto placed = std::make_unique<DeviceExperts>(*layout);
  placed->slab = memory.data;
  experts_.push_back(std::move(placed));
  return static_cast<const void*>(experts_.back().get());
}

ExecutionContext DeviceBackend::make_context() {
  ExecutionContext context;
  context.stream = stream_;
  context.threads = threads_.get();
  return context;
}

Status DeviceBackend::launch_captured(const CaptureKey& key, ExecutionContext& context,
                                      const std::function<void(ExecutionContext&)>& launches) {
  last_captured_.reset();
  if (!card_.replays_graphs) {
    launches(context);
    return api_->take_launch_error();
  }
  GraphKey graph_key{key, context.repeats, {}, context.segments};
  for (std::size_t op = 0; op < graph_key.variants.size() && context.variants != nullptr; ++op) {
    const auto kind = static_cast<OpKind>(op);
    if (context.variants->has(kind))
      graph_key.variants[op] = reinterpret_cast<std::uintptr_t>((*context.variants)[kind].run);
  }
  const auto found = graphs_.find(graph_key);
  if (found != graphs_.end()) return replay(found->second);
  ++num_first_uses_;
  // The first time runs uncaptured: it loads kernels and raises their limits, which capture does not allow. The same
  // launches without segments have done that too.
  GraphKey plain = graph_key;
  plain.segments = SegmentTiming::kNone;
  if (!graphs_.contains(plain) && warm_.insert(graph_key).second) {
    launches(context);
    return api_->take_launch_error();
  }
  FATHOM_ASSIGN_OR_RETURN(Graph graph, capture(key, context, launches));
  return replay(graphs_.emplace(graph_key, std::move(graph)).first->second);
}

Status DeviceBackend::replay(const Graph& graph) {
  last_captured_ = graph.step;
  if (replays_ != nullptr) replays_->push_back(graph.step);
  return api_->launch_graph(graph.exec, stream_);
}

Result<DeviceBackend::Graph> DeviceBackend::capture(const CaptureKey& key, ExecutionContext& context,
                                                    const std::function<void(ExecutionContext&)>& launches) {
  FATHOM_RETURN_IF_ERROR(api_->begin_capture(stream_));
  CaptureNotes notes(*api_, stream_, context.segments);
  OpObserver* const before = std::exchange(context.observer, &notes);
  launches(context);
  context.observer = before;
  notes.end();
  Result<DeviceGraph> made = api_->end_capture(stream_);
  Graph graph;
  graph.events = std::move(notes.events_);
  if (!made.ok() || !notes.status_.ok()) {
    if (made.ok()) graph.exec = made->exec;
    destroy(graph);
    return made.ok() ? notes.status_ : made.status();
  }
  graph.exec = made->exec;
  auto step = std::make_shared<CapturedStep>();
  step->key = key;
  step->id = num_captured_++;
  step->calls = std::move(notes.calls_);
  step->segments = std::move(notes.segments_);
  step->nodes = std::move(made->nodes);
  step->fault = std::move(made->fault);
  if (step->fault.empty()) {
    const Status attributed = attribute_nodes(made->chain, notes.marks_, step->calls, step->nodes);
    if (!attributed.ok()) step->fault = attributed.message();
  }
  if (!step->fault.empty()) step->nodes.clear();
  graph.step = std::move(step);
  return graph;
}

std::vector<std::shared_ptr<const CapturedStep>> DeviceBackend::captured_steps() const {
  std::vector<std::shared_ptr<const CapturedStep>> steps;
  for (const auto& [key, graph] : graphs_) steps.push_back(graph.step);
  std::sort(steps.begin(), steps.end(), [](const auto& a, const auto& b) { return a->id < b->id; });
  return steps;
}

Result<std::vector<double>> DeviceBackend::segment_times_us(const CapturedStep& step) {
  const std::string name = "segment times of captured step " + std::to_string(step.id);
  for (const auto& [key, graph] : graphs_) {
    if (graph.step->id != step.id) continue;
    if (graph.events.empty()) return failed_precondition(name + ": it was captured without segments");
    std::vector<double> times;
    for (std::size_t i = 0; i + 1 < graph.events.size(); ++i) {
      Result<double> time = api_->elapsed_us(graph.events[i], graph.events[i + 1]);
      if (!time.ok()) return time.status().with_context(name);
      times.push_back(*time);
    }
    return times;
  }
  return failed_precondition(name + ": it was dropped");
}

void DeviceBackend::destroy(Graph& graph) {
  if (graph.exec != nullptr) api_->destroy_graph(graph.exec);
  for (void* event : graph.events) api_->destroy_event(event);
  graph = {};
}

void DeviceBackend::drop_captured() {
  for (auto& [key, graph] : graphs_) destroy(graph);
  graphs_.clear();
  warm_.clear();
  last_captured_.reset();
}

}  // namespace fathom
