// What an operation is launched with besides its arguments (architecture: Pinned 7).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "ops/op_kind.h"
#include "ops/op_times.h"
#include "telemetry/step_trace.h"
#include "telemetry/taps.h"

namespace fathom {

class VariantTable;
class Communicator;
class OpObserver;

// Where a captured step notes the time (Backend::segment_times_us).
enum class SegmentTiming : std::uint8_t {
  kNone,
  kLayers,      // between layers: one event a layer
  kOperations,  // between operation calls; each event costs its call about a microsecond
};

// Lengths known on the host when a step is launched; cost models read these, kernels do not.
struct HostLengths {
  std::span<const std::int32_t> positions;  // [tokens]
};

struct ExecutionContext {
  const VariantTable* variants = nullptr;  // the chosen implementation of each operation
  ThreadPool* threads = nullptr;           // CPU backend
  void* stream = nullptr;                  // CUDA backend: its stream
  Communicator* communicator = nullptr;    // null: one rank
  TapSink* taps = nullptr;                 // null: off
  StepTrace* trace = nullptr;              // null: no per-call samples
  OpTimes* op_times = nullptr;             // null: no sums either; where operations run on the host
  OpObserver* observer = nullptr;          // null: none; a capture sets its own
  SegmentTiming segments = SegmentTiming::kNone;
  HostLengths lengths;
  // Above 0 while a step is launched that will be replayed at other lengths: shapes follow from this bound on
  // its positions, never from `lengths`.
  std::int64_t capture_max_position = 0;
  std::int32_t layer = -1;  // for OpScope: set by the model around each layer
  // Times each operation runs (profiler: exposed time), in captured steps too: graphs of other counts are other
  // graphs. Operations are idempotent, so results stay; 0 leaves the operation out and the results are void.
  std::array<std::int32_t, kNumOpKinds> repeats = make_repeats();

  // Scratch of the operation in flight, at least its plan's workspace_bytes; 64-byte aligned. Contents
  // do not survive the operation.
  std::byte* scratch = nullptr;
  std::int64_t scratch_bytes = 0;

  // CUDA: counters of kernels whose last block to arrive finishes what all of them began, at least the plan's
  // num_arrivals. Zeros before an operation and after it: its kernels reset what they counted. Of this context alone,
  // like scratch: operations of one stream follow each other.
  std::uint32_t* arrivals = nullptr;
  std::int64_t num_arrivals = 0;

 private:
  static constexpr std::array<std::int32_t, kNumOpKinds> make_repeats() {
    std::array<std::int32_t, kNumOpKinds> once{};
    once.fill(1);
    return once;
  }
};

}  // namespace fathom
