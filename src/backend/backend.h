// What the model needs from a device: memory, copies, weights in place, and a context to launch operations in.
//
// model/ sees this and the operation contracts only. On the CPU device memory is host memory and nothing is
// copied; on a GPU copies are ordered with the operations launched before and after them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/captured_step.h"
#include "backend/row_copies.h"
#include "base/status.h"
#include "ops/execution_context.h"
#include "ops/registry.h"
#include "tensor/weights.h"

namespace fathom {

// Device memory that owns itself; empty by default.
struct DeviceMemory {
  std::byte* data = nullptr;
  std::int64_t num_bytes = 0;
  std::shared_ptr<void> owner;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual const DeviceInfo& device() const = 0;
  // "NVIDIA H200"; for messages.
  virtual std::string device_name() const { return "the CPU"; }
  virtual std::string driver_version() const { return "no driver"; }
  // Of the device's own memory; failure: it has none of its own.
  virtual Result<std::int64_t> free_memory_bytes() { return failed_precondition("device memory is host memory"); }
  // Element type of activations between operations: F32 (cpu), BF16 (cuda).
  virtual DType activation_dtype() const = 0;
  // Whether device pointers may be dereferenced by the host: upload and download are then not needed.
  virtual bool is_host_memory() const = 0;

  // Uninitialised, at least 256-byte aligned. Failure: says what it was for, how much, and what is free.
  virtual Result<DeviceMemory> allocate(std::int64_t num_bytes, std::string_view purpose) = 0;

  // `host` may be reused as soon as upload returns; `host` is complete when download returns.
  virtual Status upload(std::byte* device_data, const std::byte* host, std::int64_t num_bytes) = 0;
  virtual Status download(std::byte* host, const std::byte* device_data, std::int64_t num_bytes) = 0;
  // Between two places on the device.
  virtual Status copy(std::byte* to, const std::byte* from, std::int64_t num_bytes) = 0;
  // Many rows in one launch, which may stand in a captured step. Only where device memory is not host memory.
  virtual Status copy_rows(const RowCopies&) {
    return failed_precondition("rows are copied by lists on a device of its own memory only");
  }
  // Waits for everything launched; a device fault is reported here.
  virtual Status finish() = 0;

  // Weights: `host` lies in a mapped checkpoint and stays valid. What comes back is valid as long as the
  // backend, keeps the bits, and is aligned to the element size when `aligned` is asked for. The CPU
  // returns `host` itself where it can.
  virtual Result<View> place_weight(const View& host, bool aligned) = 0;
  // A layer's routed experts, whose views lie in the mapped checkpoint. The backend replaces the views by
  // placed ones, or builds its own form of them and returns it (MoeExpertsArgs::packed), else null.
  virtual Result<const void*> place_experts(std::vector<ExpertWeights>& experts, std::int32_t layer) = 0;

  // A context with threads or stream set; variants, taps and trace are the caller's to set.
  virtual ExecutionContext make_context() = 0;

  // Runs launches(context), or replays what an earlier call with the same key launched: the step's arrays keep
  // their addresses, so a replay reads their present contents. Devices without graphs just launch.
  // context.capture_max_position must bound the positions of every step that is given this key. Steps of unlike
  // repeats, variants or segments are captured apart.
  virtual Status launch_captured(const CaptureKey&, ExecutionContext& context,
                                 const std::function<void(ExecutionContext&)>& launches) {
    launches(context);
    return {};
  }
  // What the captured graphs hold, in the order of their capture; none on devices without graphs.
  virtual std::vector<std::shared_ptr<const CapturedStep>> captured_steps() const { return {}; }
  // The one that the last launch_captured replayed; null where it launched without a graph (a key's first call does).
  virtual std::shared_ptr<const CapturedStep> last_captured() const { return nullptr; }
  // From now on every replay is added to `log`; null: none is. It must outlive the steps to come.
  virtual void log_replays(std::vector<std::shared_ptr<const CapturedStep>>* /*log*/) {}
  // Calls of launch_captured so far that replayed nothing: a key's first one, and its capture.
  virtual std::int64_t num_first_uses() const { return 0; }
  // Microseconds of each of step.segments when it was last replayed; call finish() before. Failure: captured
  // without segments, or dropped since.
  virtual Result<std::vector<double>> segment_times_us(const CapturedStep& step) {
    return failed_precondition("no segment times of captured step " + std::to_string(step.id) +
                               ": this device replays no graphs");
  }
  // Frees all captured graphs; the steps to come are captured anew.
  virtual void drop_captured() {}
};

}  // namespace fathom
