// Event pairs around single calls, and the range that ncu listens to.
#include <cuda_profiler_api.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "profile/isolated.h"

namespace fathom {
namespace {

constexpr std::size_t kSweepBytes = std::size_t{256} << 20;  // several times any card's last cache

Status status_of(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return unavailable(std::string(what) + " failed: " + cudaGetErrorString(error));
}

class EventObserver final : public IsolatingObserver {
 public:
  explicit EventObserver(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {}
  ~EventObserver() override {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    cudaFree(sweep_);
  }

  Status open() {
    FATHOM_RETURN_IF_ERROR(status_of(cudaMalloc(&sweep_, kSweepBytes), "memory to sweep the caches with"));
    std::vector<double> nothing;
    for (int i = 0; i < 21; ++i) {
      begin_operation({});
      end_operation({}, 1, {});
    }
    FATHOM_ASSIGN_OR_RETURN(nothing, take_us());
    std::sort(nothing.begin(), nothing.end());
    own_us_ = nothing[nothing.size() / 2];
    return {};
  }

  void begin_operation(const OpScope&) override {
    keep(cudaMemsetAsync(sweep_, static_cast<int>(num_used_ & 1), kSweepBytes, stream_));
    record();
  }
  void end_operation(const OpScope&, std::int32_t, const OpCost&) override { record(); }

  Result<std::vector<double>> take_us() override {
    keep(cudaStreamSynchronize(stream_));
    std::vector<double> times;
    for (std::size_t i = 0; i + 1 < num_used_ && error_ == cudaSuccess; i += 2) {
      float ms = 0;
      keep(cudaEventElapsedTime(&ms, events_[i], events_[i + 1]));
      times.push_back(std::max(0.0, 1000.0 * static_cast<double>(ms) - own_us_));
    }
    num_used_ = 0;
    FATHOM_RETURN_IF_ERROR(status_of(std::exchange(error_, cudaSuccess), "timing single calls"));
    return times;
  }

 private:
  void keep(cudaError_t error) {
    if (error_ == cudaSuccess) error_ = error;
  }
  void record() {
    if (num_used_ == events_.size()) {
      cudaEvent_t event = nullptr;
      keep(cudaEventCreate(&event));
      events_.push_back(event);
    }
    keep(cudaEventRecord(events_[num_used_++], stream_));
  }

  cudaStream_t stream_;
  void* sweep_ = nullptr;
  std::vector<cudaEvent_t> events_;
  std::size_t num_used_ = 0;
  double own_us_ = 0;
  cudaError_t error_ = cudaSuccess;
};

__global__ void nothing() {}

// Two chains, so that what a replay itself costs falls out of the difference.
class EmptyGraphs final : public EmptyLaunches {
 public:
  explicit EmptyGraphs(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {}
  ~EmptyGraphs() override {
    for (cudaGraphExec_t graph : graphs_) {
      if (graph != nullptr) cudaGraphExecDestroy(graph);
    }
    for (cudaEvent_t event : events_) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }

  Status open() {
    int device = 0, num_multiprocessors = 0;
    FATHOM_RETURN_IF_ERROR(status_of(cudaGetDevice(&device), "empty launches"));
    FATHOM_RETURN_IF_ERROR(status_of(
        cudaDeviceGetAttribute(&num_multiprocessors, cudaDevAttrMultiProcessorCount, device), "empty launches"));
    nothing<<<num_multiprocessors, kThreads, 0, stream_>>>();  // loads it, which a capture does not allow
    for (int i = 0; i < 2; ++i) {
      FATHOM_RETURN_IF_ERROR(status_of(cudaEventCreate(&events_[i]), "empty launches"));
      cudaGraph_t graph = nullptr;
      FATHOM_RETURN_IF_ERROR(
          status_of(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "empty launches"));
      for (int k = 0; k < kLengths[i]; ++k) nothing<<<num_multiprocessors, kThreads, 0, stream_>>>();
      FATHOM_RETURN_IF_ERROR(status_of(cudaStreamEndCapture(stream_, &graph), "empty launches"));
      const cudaError_t made = cudaGraphInstantiate(&graphs_[i], graph, 0);
      cudaGraphDestroy(graph);
      FATHOM_RETURN_IF_ERROR(status_of(made, "empty launches"));
    }
    return {};
  }

  Result<double> run_us() override {
    double us[2] = {};
    for (int i = 0; i < 2; ++i) {
      FATHOM_RETURN_IF_ERROR(status_of(cudaEventRecord(events_[0], stream_), "empty launches"));
      FATHOM_RETURN_IF_ERROR(status_of(cudaGraphLaunch(graphs_[i], stream_), "empty launches"));
      FATHOM_RETURN_IF_ERROR(status_of(cudaEventRecord(events_[1], stream_), "empty launches"));
      FATHOM_RETURN_IF_ERROR(status_of(cudaStreamSynchronize(stream_), "empty launches"));
      float ms = 0;
      FATHOM_RETURN_IF_ERROR(status_of(cudaEventElapsedTime(&ms, events_[0], events_[1]), "empty launches"));
      us[i] = 1000.0 * static_cast<double>(ms);
    }
    return (us[1] - us[0]) / (kLengths[1] - kLengths[0]);
  }

 private:
  static constexpr int kLengths[2] = {64, 576};
  static constexpr int kThreads = 256;

  cudaStream_t stream_;
  cudaGraphExec_t graphs_[2] = {};
  cudaEvent_t events_[2] = {};
};

}  // namespace

Result<std::unique_ptr<EmptyLaunches>> open_empty_launches(void* stream) {
  auto launches = std::make_unique<EmptyGraphs>(stream);
  FATHOM_RETURN_IF_ERROR(launches->open());
  return std::unique_ptr<EmptyLaunches>(std::move(launches));
}

Result<std::unique_ptr<IsolatingObserver>> open_isolating_observer(void* stream) {
  auto observer = std::make_unique<EventObserver>(stream);
  FATHOM_RETURN_IF_ERROR(observer->open());
  return std::unique_ptr<IsolatingObserver>(std::move(observer));
}

Status begin_profiler_range() { return status_of(cudaProfilerStart(), "the profiler's start"); }
Status end_profiler_range() { return status_of(cudaProfilerStop(), "the profiler's stop"); }

}  // namespace fathom
