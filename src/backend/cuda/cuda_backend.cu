#include "backend/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/units.h"
#include "ops/moe_experts/device_experts.h"

namespace fathom::cuda {
namespace {

std::string error_text(cudaError_t error) {
  return std::string(cudaGetErrorName(error)) + " (" + cudaGetErrorString(error) + ")";
}

Status status_of(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return {};
  return unavailable(std::string(what) + " failed on the CUDA device: " + error_text(error));
}

struct FreeDevice {
  void operator()(void* data) const { static_cast<void>(cudaFree(data)); }
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(const DeviceInfo& info, std::string name, cudaStream_t stream)
      : info_(info), name_(std::move(name)), stream_(stream) {}
  ~CudaBackend() override {
    static_cast<void>(cudaStreamSynchronize(stream_));
    for (auto& [key, graph] : graphs_) static_cast<void>(cudaGraphExecDestroy(graph));
    if (staging_ != nullptr) static_cast<void>(cudaFreeHost(staging_));
    static_cast<void>(cudaStreamDestroy(stream_));
  }

  const DeviceInfo& device() const override { return info_; }
  DType activation_dtype() const override { return DType::kBF16; }
  bool is_host_memory() const override { return false; }

  Result<DeviceMemory> allocate(std::int64_t num_bytes, std::string_view purpose) override {
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, static_cast<std::size_t>(num_bytes > 0 ? num_bytes : 1));
    if (error != cudaSuccess) {
      static_cast<void>(cudaGetLastError());  // an allocation's failure is not sticky
      std::size_t free_bytes = 0, total_bytes = 0;
      static_cast<void>(cudaMemGetInfo(&free_bytes, &total_bytes));
      return resource_exhausted("cannot allocate " + format_bytes(num_bytes) + " on " + name_ + " for " +
                                std::string(purpose) + ": " + format_bytes(static_cast<std::int64_t>(free_bytes)) +
                                " of " + format_bytes(static_cast<std::int64_t>(total_bytes)) + " are free; " +
                                error_text(error));
    }
    DeviceMemory memory;
    memory.data = static_cast<std::byte*>(data);
    memory.num_bytes = num_bytes;
    memory.owner = std::shared_ptr<void>(data, FreeDevice{});
    return memory;
  }

  // Through pinned staging in order with the stream: the host's bytes are free again at once.
  Status upload(std::byte* device_data, const std::byte* host, std::int64_t num_bytes) override {
    if (num_bytes == 0) return {};
    if (num_bytes > kStagingBytes) {
      FATHOM_RETURN_IF_ERROR(status_of(
          cudaMemcpyAsync(device_data, host, static_cast<std::size_t>(num_bytes), cudaMemcpyHostToDevice, stream_),
          "upload"));
      return finish();
    }
    if (staging_ == nullptr) {
      FATHOM_RETURN_IF_ERROR(status_of(cudaMallocHost(&staging_, kStagingBytes), "pinned memory for uploads"));
    }
    if (staging_used_ + num_bytes > kStagingBytes) {
      FATHOM_RETURN_IF_ERROR(finish());
      staging_used_ = 0;
    }
    std::byte* from = static_cast<std::byte*>(staging_) + staging_used_;
    std::memcpy(from, host, static_cast<std::size_t>(num_bytes));
    staging_used_ += round_up(num_bytes, 256);
    return status_of(
        cudaMemcpyAsync(device_data, from, static_cast<std::size_t>(num_bytes), cudaMemcpyHostToDevice, stream_),
        "upload");
  }
  Status download(std::byte* host, const std::byte* device_data, std::int64_t num_bytes) override {
    if (num_bytes == 0) return {};
    FATHOM_RETURN_IF_ERROR(status_of(
        cudaMemcpyAsync(host, device_data, static_cast<std::size_t>(num_bytes), cudaMemcpyDeviceToHost, stream_),
        "download"));
    return finish();
  }
  Status copy(std::byte* to, const std::byte* from, std::int64_t num_bytes) override {
    if (num_bytes == 0) return {};
    return status_of(cudaMemcpyAsync(to, from, static_cast<std::size_t>(num_bytes), cudaMemcpyDeviceToDevice, stream_),
                     "copy");
  }
  Status finish() override {
    FATHOM_RETURN_IF_ERROR(status_of(cudaStreamSynchronize(stream_), "the step"));
    staging_used_ = 0;
    return status_of(cudaGetLastError(), "a launch");
  }

  Result<View> place_weight(const View& host, bool) override {
    FATHOM_ASSIGN_OR_RETURN(DeviceMemory memory, allocate(host.num_bytes(), "a weight"));
    FATHOM_RETURN_IF_ERROR(upload(memory.data, host.data, host.num_bytes()));
    weights_.push_back(memory);
    return make_view(memory.data, host.dtype, host.shape);
  }

  Result<const void*> place_experts(std::vector<ExpertWeights>& experts, std::int32_t layer) override {
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

  ExecutionContext make_context() override {
    ExecutionContext context;
    context.stream = stream_;
    return context;
  }

  Status launch_captured(const CaptureKey& key, ExecutionContext& context,
                         const std::function<void(ExecutionContext&)>& launches) override {
    const auto found = graphs_.find(key);
    if (found != graphs_.end()) return status_of(cudaGraphLaunch(found->second, stream_), "a captured step");
    // The first time runs uncaptured: it loads kernels and raises their limits, which capture does not allow.
    if (warm_.insert(key).second) {
      launches(context);
      return status_of(cudaGetLastError(), "a launch");
    }
    cudaGraph_t graph = nullptr;
    FATHOM_RETURN_IF_ERROR(
        status_of(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "beginning a capture"));
    launches(context);
    FATHOM_RETURN_IF_ERROR(status_of(cudaStreamEndCapture(stream_, &graph), "ending a capture"));
    cudaGraphExec_t exec = nullptr;
    const cudaError_t error = cudaGraphInstantiate(&exec, graph, 0);
    static_cast<void>(cudaGraphDestroy(graph));
    FATHOM_RETURN_IF_ERROR(status_of(error, "instantiating a captured step"));
    graphs_.emplace(key, exec);
    return status_of(cudaGraphLaunch(exec, stream_), "a captured step");
  }

 private:
  static constexpr std::int64_t kStagingBytes = 16 << 20;

  DeviceInfo info_;
  std::string name_;
  cudaStream_t stream_ = nullptr;
  void* staging_ = nullptr;
  std::int64_t staging_used_ = 0;
  std::vector<DeviceMemory> weights_;
  std::vector<std::unique_ptr<DeviceExperts>> experts_;
  std::map<CaptureKey, cudaGraphExec_t> graphs_;
  std::set<CaptureKey> warm_;
};

}  // namespace

Result<std::unique_ptr<Backend>> make_cuda_backend() {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    int driver = 0;
    static_cast<void>(cudaDriverGetVersion(&driver));
    return failed_precondition("the NVIDIA driver supports CUDA " + std::to_string(driver / 1000) + "." +
                               std::to_string(driver % 1000 / 10) +
                               "; this program needs 13.0: install a driver of branch 580 or newer, or run on the CPU");
  }
  if (error != cudaSuccess || count == 0) {
    return failed_precondition(
        "no CUDA device: " + (error != cudaSuccess ? error_text(error) : std::string("the driver lists none")) +
        "; run on the CPU, or check that nvidia-smi sees the card");
  }
  cudaDeviceProp properties{};
  FATHOM_RETURN_IF_ERROR(status_of(cudaGetDeviceProperties(&properties, 0), "reading the device's properties"));
  FATHOM_RETURN_IF_ERROR(status_of(cudaSetDevice(0), "selecting the device"));
  DeviceInfo info;
  info.backend = BackendKind::kCuda;
  info.num_multiprocessors = properties.multiProcessorCount;
  info.compute_capability = properties.major * 10 + properties.minor;
  info.shared_memory_per_block_bytes = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin);
  if (info.compute_capability < 80) {
    return failed_precondition(std::string(properties.name) + " has compute capability " +
                               std::to_string(properties.major) + "." + std::to_string(properties.minor) +
                               "; the kernels need 8.0 or newer");
  }
  cudaStream_t stream = nullptr;
  FATHOM_RETURN_IF_ERROR(status_of(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream"));
  return std::unique_ptr<Backend>(std::make_unique<CudaBackend>(info, properties.name, stream));
}

}  // namespace fathom::cuda
