// Timelines of steps that a device replays as captured graphs: by events between calls, or by records of every node.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/captured_step.h"
#include "profile/model_step.h"
#include "profile/timeline.h"

namespace fathom {

// What the device did, on the clock of the record source.
struct DeviceRecord {
  NodeKind kind = NodeKind::kKernel;
  std::string kernel;  // demangled; empty where kind is no kernel
  double begin_us = 0;
  double end_us = 0;
  std::int32_t stream = 0;
  std::uint64_t graph = 0;       // unlike for unlike launches of graphs
  std::uint64_t graph_node = 0;  // of the instantiated graph; 0: not of a graph
  double launched_us = 0;        // when the host launched it; 0: not asked for, or a node of a graph
};

// Where records come from: CUPTI, loaded at run time.
class DeviceRecorder {
 public:
  virtual ~DeviceRecorder() = default;
  virtual double now_us() = 0;  // on the clock of the records
  // All that ended since the last call, in no order.
  virtual Result<std::vector<DeviceRecord>> take() = 0;
};
// In the order of their beginnings, and each counted from the end of the one before on its stream: a kernel may begin
// earlier (ops/cuda/launch_early.cuh), but then it waits for that one, whose time it is.
void order_records(std::vector<DeviceRecord>& records);

// Failure: built without CUDA, no libcupti, or a device that it does not support. The message says which.
Result<std::unique_ptr<DeviceRecorder>> open_cupti();
// Also with the moments of the launches.
Result<std::unique_ptr<DeviceRecorder>> open_cupti_with_launches();

// Of the CUDA card, measured now. Failure: built without CUDA, or the card's.
Result<Ceilings> measure_cuda_ceilings();

// What the card runs at now. Loads follow each other closely in a profile, so a reading between two steps is of the
// load.
struct Clocks {
  double core_mhz = 0;
  double memory_mhz = 0;
};
class ClockSource {
 public:
  virtual ~ClockSource() = default;
  virtual Result<Clocks> read() = 0;
};
// Of the CUDA card: NVML. Failure: built without CUDA, or no NVML; the message says which.
Result<std::unique_ptr<ClockSource>> open_card_clocks();

// "void f<int>(int)" and "f<int>(int)" are one: the name up to its arguments, without the return type.
std::string bare_kernel_name(std::string_view name);

// One call of the timeline for each of the step's, lying end to end from begin_us.
std::vector<TimelineCall> calls_of_segments(const CapturedStep& step, std::span<const double> segment_us,
                                            double begin_us);

// Node ids of an instantiated graph -> place in CapturedStep::nodes.
using NodePlaces = std::map<std::uint64_t, std::int32_t>;

// One call of the timeline for each record of one replay of the step, times since origin_us. `places` is empty at the
// first replay: launch order gives it; every kernel's name must be that of the node in its place. At later replays the
// ids find their nodes, and launch order is the check. Failure: counts, names or order disagree.
Result<std::vector<TimelineCall>> calls_of_records(const CapturedStep& step, std::vector<DeviceRecord> records,
                                                   double origin_us, NodePlaces& places);

struct DeviceLoadOptions {
  std::int32_t num_steps = 40;
  std::int32_t num_warmup = 8;
  std::int32_t num_repeats = 5;
};
struct DeviceSteps {
  std::vector<std::vector<TimelineStep>> repeats;
  std::string collector;  // "cupti" or "events"; "scopes" where the device replays no graphs
  std::vector<std::string> notes;
  double plain_step_us = 0;  // median, with nothing taken
  Clocks clocks;             // medians of a reading behind each repeat; 0 without a source
};
// The step again and again, and once more to count the experts it hits. `recorder` null, or records that cannot be
// attributed: event times. `clocks` may be null.
Result<DeviceSteps> collect_device_steps(Model& model, ModelStep& step, DeviceRecorder* recorder,
                                         const DeviceLoadOptions& options, ClockSource* clocks = nullptr);

}  // namespace fathom
