// The CPU backend: host memory, a thread pool, weights used where they are mapped.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "base/thread_pool.h"

namespace fathom {

class CpuBackend final : public Backend {
 public:
  // num_threads >= 1, the calling thread included.
  explicit CpuBackend(int num_threads);

  const DeviceInfo& device() const override { return device_; }
  DType activation_dtype() const override { return DType::kF32; }
  bool is_host_memory() const override { return true; }
  Result<DeviceMemory> allocate(std::int64_t num_bytes, std::string_view purpose) override;
  Status upload(std::byte* device_data, const std::byte* host, std::int64_t num_bytes) override;
  Status download(std::byte* host, const std::byte* device_data, std::int64_t num_bytes) override;
  Status copy(std::byte* to, const std::byte* from, std::int64_t num_bytes) override {
    return upload(to, from, num_bytes);
  }
  Status finish() override { return {}; }
  Result<View> place_weight(const View& host, bool aligned) override;
  Result<const void*> place_experts(std::vector<ExpertWeights>& experts, std::int32_t layer) override;
  ExecutionContext make_context() override;

 private:
  DeviceInfo device_;
  ThreadPool threads_;
  std::vector<DeviceMemory> aligned_copies_;  // of weights that lie at odd addresses
};

}  // namespace fathom
