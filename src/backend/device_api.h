// The one thin layer between DeviceBackend and a device's run-time library (architecture: Pinned 11). Three of them:
// the CUDA run-time (cuda/), host memory for tests (emulated_device_api.h), and one that injects faults into another
// (faulty_device_api.h). No CUDA header here. Handles are the run-time's own pointers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/captured_step.h"
#include "backend/row_copies.h"
#include "base/status.h"
#include "ops/registry.h"

namespace fathom {

// What the run-time says of the card it opened.
struct DeviceCard {
  DeviceInfo info;
  std::string name;            // "NVIDIA H200"
  std::string driver;          // "CUDA 13.0"
  bool is_emulated = false;    // host memory: CPU variants run on it, on threads
  bool replays_graphs = true;  // begin_capture .. launch_graph work
};

struct DeviceMemoryInfo {
  std::int64_t free_bytes = 0;
  std::int64_t total_bytes = 0;
};

enum class CopyKind : std::uint8_t { kToDevice, kToHost, kOnDevice };

// A graph ready to run, and what it holds.
struct DeviceGraph {
  void* exec = nullptr;
  std::vector<NodeHandle> chain;    // in launch order; empty with `fault` where the graph is no chain
  std::vector<CapturedNode> nodes;  // beside `chain`
  std::string fault;
};

// Failures: kResourceExhausted (out of device memory; the device goes on), kUnavailable (no device, driver too old, a
// launch or the device itself failed: final), with the run-time's own words.
class DeviceApi {
 public:
  virtual ~DeviceApi() = default;

  // The first device; everything below needs it.
  virtual Result<DeviceCard> open() = 0;
  virtual Result<DeviceMemoryInfo> memory_info() = 0;
  virtual Result<void*> allocate(std::int64_t num_bytes) = 0;
  virtual void free(void* data) = 0;
  virtual Result<void*> allocate_pinned(std::int64_t num_bytes) = 0;  // host memory that copies need not stage
  virtual void free_pinned(void* data) = 0;

  virtual Result<void*> create_stream() = 0;
  virtual void destroy_stream(void* stream) = 0;
  // In order with the stream; host memory that is not pinned may be reused when it returns.
  virtual Status copy(void* to, const void* from, std::int64_t num_bytes, CopyKind kind, void* stream) = 0;
  // A launch: it may stand in a capture.
  virtual Status copy_rows(const RowCopies& copies, void* stream) = 0;
  // Waits for the stream, and reports what failed on it. Gives up after timeout_us (0: never): the device hangs.
  virtual Status synchronise(void* stream, std::int64_t timeout_us) = 0;
  // Of launches since it was last called; they are made by the operations, past this layer.
  virtual Status take_launch_error() = 0;

  virtual Result<void*> create_event() = 0;
  virtual void destroy_event(void* event) = 0;
  // In a capture: each replay records it anew.
  virtual Status record_event(void* event, void* stream) = 0;
  virtual Result<double> elapsed_us(void* begin, void* end) = 0;

  virtual Status begin_capture(void* stream) = 0;
  // The node that the next launch will wait for; 0 where there is none yet.
  virtual Result<NodeHandle> newest_node(void* stream) = 0;
  virtual Result<DeviceGraph> end_capture(void* stream) = 0;
  virtual Status launch_graph(void* exec, void* stream) = 0;
  virtual void destroy_graph(void* exec) = 0;
};

}  // namespace fathom
