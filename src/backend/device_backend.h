// The backend on a device with its own memory, over a DeviceApi: allocation, staged copies, captured steps.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/device_api.h"
#include "base/thread_pool.h"
#include "ops/moe_experts/device_experts.h"

namespace fathom {

struct DeviceBackendOptions {
  std::int64_t timeout_us = 0;  // a wait longer than this is a device that hangs; 0: waits for ever
  int num_threads = 1;          // of an emulated device
};

class DeviceBackend final : public Backend {
 public:
  // Opens the device. Failure: none there, a driver too old, a card without the kernels' instructions.
  static Result<std::unique_ptr<Backend>> open(std::unique_ptr<DeviceApi> api, const DeviceBackendOptions& options);
  ~DeviceBackend() override;

  const DeviceInfo& device() const override { return card_.info; }
  std::string device_name() const override { return card_.name; }
  std::string driver_version() const override { return card_.driver; }
  Result<std::int64_t> free_memory_bytes() override;
  DType activation_dtype() const override { return card_.is_emulated ? DType::kF32 : DType::kBF16; }
  bool is_host_memory() const override { return false; }
  Result<DeviceMemory> allocate(std::int64_t num_bytes, std::string_view purpose) override;
  Status upload(std::byte* device_data, const std::byte* host, std::int64_t num_bytes) override;
  Status download(std::byte* host, const std::byte* device_data, std::int64_t num_bytes) override;
  Status copy(std::byte* to, const std::byte* from, std::int64_t num_bytes) override;
  Status copy_rows(const RowCopies& copies) override;
  Status finish() override;
  Result<View> place_weight(const View& host, bool aligned) override;
  Result<const void*> place_experts(std::vector<ExpertWeights>& experts, std::int32_t layer) override;
  ExecutionContext make_context() override;

  Status launch_captured(const CaptureKey& key, ExecutionContext& context,
                         const std::function<void(ExecutionContext&)>& launches) override;
  std::vector<std::shared_ptr<const CapturedStep>> captured_steps() const override;
  std::shared_ptr<const CapturedStep> last_captured() const override { return last_captured_; }
  void log_replays(std::vector<std::shared_ptr<const CapturedStep>>* log) override { replays_ = log; }
  std::int64_t num_first_uses() const override { return num_first_uses_; }
  Result<std::vector<double>> segment_times_us(const CapturedStep& step) override;
  void drop_captured() override;

 private:
  // All that a graph's launches follow from.
  struct GraphKey {
    CaptureKey key;
    std::array<std::int32_t, kNumOpKinds> repeats{};
    std::array<std::uintptr_t, kNumOpKinds> variants{};  // addresses of their code
    SegmentTiming segments = SegmentTiming::kNone;
    auto operator<=>(const GraphKey&) const = default;
  };
  struct Graph {
    void* exec = nullptr;
    std::shared_ptr<const CapturedStep> step;
    std::vector<void*> events;  // segments + 1, or none
  };
  class CaptureNotes;

  DeviceBackend(std::unique_ptr<DeviceApi> api, DeviceCard card, void* stream, const DeviceBackendOptions& options);
  Status replay(const Graph& graph);
  Result<Graph> capture(const CaptureKey& key, ExecutionContext& context,
                        const std::function<void(ExecutionContext&)>& launches);
  void destroy(Graph& graph);

  static constexpr std::int64_t kStagingBytes = 16 << 20;

  std::shared_ptr<DeviceApi> api_;  // memory may outlive the backend
  DeviceCard card_;
  void* stream_ = nullptr;
  DeviceBackendOptions options_;
  std::unique_ptr<ThreadPool> threads_;  // emulated only
  void* staging_ = nullptr;
  std::int64_t staging_used_ = 0;
  std::vector<DeviceMemory> weights_;
  std::vector<std::unique_ptr<DeviceExperts>> experts_;
  std::map<GraphKey, Graph> graphs_;
  std::set<GraphKey> warm_;
  std::shared_ptr<const CapturedStep> last_captured_;
  std::vector<std::shared_ptr<const CapturedStep>>* replays_ = nullptr;
  std::int64_t num_captured_ = 0;
  std::int64_t num_first_uses_ = 0;
};

}  // namespace fathom
