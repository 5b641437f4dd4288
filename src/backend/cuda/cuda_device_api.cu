#include "backend/cuda/cuda_device_api.h"

#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <chrono>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

namespace fathom::cuda {
namespace {

std::string error_text(cudaError_t error) {
  return std::string(cudaGetErrorName(error)) + " (" + cudaGetErrorString(error) + ")";
}

Status status_of(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return {};
  std::string text = std::string(what) + " failed on the CUDA device: " + error_text(error);
  return error == cudaErrorMemoryAllocation ? resource_exhausted(std::move(text)) : unavailable(std::move(text));
}

cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t as_event(void* event) { return static_cast<cudaEvent_t>(event); }

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string read_kernel_name(const void* function) {
  const char* mangled = nullptr;
  if (cudaFuncGetName(&mangled, function) != cudaSuccess || mangled == nullptr) {
    static_cast<void>(cudaGetLastError());
    return "unnamed";
  }
  int failed = 0;
  char* plain = abi::__cxa_demangle(mangled, nullptr, nullptr, &failed);
  std::string name = failed == 0 && plain != nullptr ? plain : mangled;
  std::free(plain);
  return name;
}

// To make a name plain takes longer than to capture its launch, so each is read once.
std::string kernel_name(const void* function) {
  static std::unordered_map<const void*, std::string> names;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = names.try_emplace(function);
  if (is_new) found->second = read_kernel_name(function);
  return found->second;
}

CapturedNode describe(cudaGraphNode_t node) {
  CapturedNode out;
  cudaGraphNodeType type{};
  if (cudaGraphNodeGetType(node, &type) != cudaSuccess) return out;
  switch (type) {
    case cudaGraphNodeTypeKernel: {
      out.kind = NodeKind::kKernel;
      cudaKernelNodeParams params{};
      if (cudaGraphKernelNodeGetParams(node, &params) != cudaSuccess) break;
      out.kernel = kernel_name(params.func);
      out.num_blocks = std::int64_t{params.gridDim.x} * params.gridDim.y * params.gridDim.z;
      out.block_threads = static_cast<std::int32_t>(params.blockDim.x * params.blockDim.y * params.blockDim.z);
      break;
    }
    case cudaGraphNodeTypeMemcpy: out.kind = NodeKind::kCopy; break;
    case cudaGraphNodeTypeMemset: out.kind = NodeKind::kSet; break;
    case cudaGraphNodeTypeEventRecord: out.kind = NodeKind::kEvent; break;
    default: break;
  }
  return out;
}

// The graph's nodes from its root on, each with one successor; `fault` where it is not such a chain.
void read_chain(cudaGraph_t graph, DeviceGraph& out) {
  std::size_t num_nodes = 0, num_roots = 0;
  if (cudaGraphGetNodes(graph, nullptr, &num_nodes) != cudaSuccess ||
      cudaGraphGetRootNodes(graph, nullptr, &num_roots) != cudaSuccess) {
    out.fault = "the graph's nodes cannot be read";
    return;
  }
  if (num_nodes == 0) return;
  if (num_roots != 1) {
    out.fault = "the graph has " + std::to_string(num_roots) + " roots, expected 1";
    return;
  }
  cudaGraphNode_t node = nullptr;
  static_cast<void>(cudaGraphGetRootNodes(graph, &node, &num_roots));
  while (node != nullptr) {
    out.chain.push_back(reinterpret_cast<NodeHandle>(node));
    out.nodes.push_back(describe(node));
    std::size_t num_next = 0;
    static_cast<void>(cudaGraphNodeGetDependentNodes(node, nullptr, nullptr, &num_next));
    if (num_next > 1) {
      out.fault = "node " + std::to_string(out.chain.size() - 1) + " has " + std::to_string(num_next) + " successors";
      return;
    }
    cudaGraphNode_t next = nullptr;
    // Edges between kernels of one stream carry no data; where they do, it is read and not looked at.
    cudaGraphEdgeData edge{};
    if (num_next == 1) static_cast<void>(cudaGraphNodeGetDependentNodes(node, &next, &edge, &num_next));
    node = next;
  }
  if (out.chain.size() != num_nodes) {
    out.fault = "the graph has " + std::to_string(num_nodes) + " nodes, its chain " + std::to_string(out.chain.size());
  }
}

// A block a row.
__global__ void __launch_bounds__(256) copy_listed_rows(RowCopies copies) {
  const std::int32_t to =
      copies.to_rows != nullptr ? copies.to_rows[blockIdx.x] : static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t from = copies.from_rows[blockIdx.x];
  if (to < 0) return;
  const std::byte* source = from >= 0 ? copies.from + static_cast<std::int64_t>(from) * copies.row_bytes
                                      : copies.also_from + static_cast<std::int64_t>(-1 - from) * copies.row_bytes;
  const auto* in = reinterpret_cast<const uint4*>(source);
  auto* out = reinterpret_cast<uint4*>(copies.to + static_cast<std::int64_t>(to) * copies.row_bytes);
  const auto count = static_cast<int>(copies.row_bytes / 16);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += 256) out[i] = in[i];
}

class CudaDeviceApi final : public DeviceApi {
 public:
  Result<DeviceCard> open() override {
    int count = 0, driver = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    static_cast<void>(cudaDriverGetVersion(&driver));
    if (error == cudaErrorInsufficientDriver) {
      const std::string found =
          driver == 0 ? "no NVIDIA driver is installed" : "the NVIDIA driver supports CUDA " + version_text(driver);
      return unavailable(found +
                         "; this program needs 13.0: install a driver of branch 580 or newer, or run on the CPU");
    }
    if (error != cudaSuccess || count == 0) {
      return unavailable(
          "no CUDA device: " + (error != cudaSuccess ? error_text(error) : std::string("the driver lists none")) +
          "; run on the CPU, or check that nvidia-smi sees the card");
    }
    cudaDeviceProp properties{};
    FATHOM_RETURN_IF_ERROR(status_of(cudaGetDeviceProperties(&properties, 0), "reading the device's properties"));
    FATHOM_RETURN_IF_ERROR(status_of(cudaSetDevice(0), "selecting the device"));
    DeviceCard card;
    card.name = properties.name;
    card.driver = "CUDA " + version_text(driver);
    card.info.backend = BackendKind::kCuda;
    card.info.num_multiprocessors = properties.multiProcessorCount;
    card.info.compute_capability = properties.major * 10 + properties.minor;
    card.info.shared_memory_per_block_bytes = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin);
    if (card.info.compute_capability < 80) {
      return unavailable(card.name + " has compute capability " + std::to_string(properties.major) + "." +
                         std::to_string(properties.minor) + "; the kernels need 8.0 or newer: run on the CPU");
    }
    return card;
  }

  Result<DeviceMemoryInfo> memory_info() override {
    std::size_t free_bytes = 0, total_bytes = 0;
    FATHOM_RETURN_IF_ERROR(status_of(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for free memory"));
    return DeviceMemoryInfo{static_cast<std::int64_t>(free_bytes), static_cast<std::int64_t>(total_bytes)};
  }
  Result<void*> allocate(std::int64_t num_bytes) override {
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, static_cast<std::size_t>(num_bytes));
    if (error == cudaErrorMemoryAllocation) static_cast<void>(cudaGetLastError());  // this failure is not sticky
    FATHOM_RETURN_IF_ERROR(status_of(error, "an allocation"));
    return data;
  }
  void free(void* data) override { static_cast<void>(cudaFree(data)); }
  Result<void*> allocate_pinned(std::int64_t num_bytes) override {
    void* data = nullptr;
    FATHOM_RETURN_IF_ERROR(
        status_of(cudaMallocHost(&data, static_cast<std::size_t>(num_bytes)), "pinned memory for copies"));
    return data;
  }
  void free_pinned(void* data) override { static_cast<void>(cudaFreeHost(data)); }

  Result<void*> create_stream() override {
    cudaStream_t stream = nullptr;
    FATHOM_RETURN_IF_ERROR(status_of(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream"));
    return static_cast<void*>(stream);
  }
  void destroy_stream(void* stream) override { static_cast<void>(cudaStreamDestroy(as_stream(stream))); }
  Status copy(void* to, const void* from, std::int64_t num_bytes, CopyKind kind, void* stream) override {
    const cudaMemcpyKind direction = kind == CopyKind::kToDevice ? cudaMemcpyHostToDevice
                                     : kind == CopyKind::kToHost ? cudaMemcpyDeviceToHost
                                                                 : cudaMemcpyDeviceToDevice;
    return status_of(cudaMemcpyAsync(to, from, static_cast<std::size_t>(num_bytes), direction, as_stream(stream)),
                     "a copy");
  }
  Status copy_rows(const RowCopies& copies, void* stream) override {
    copy_listed_rows<<<static_cast<unsigned>(copies.count), 256, 0, as_stream(stream)>>>(copies);
    return status_of(cudaPeekAtLastError(), "a copy of rows");
  }
  // Asks again and again: a step is short, and a wait inside the run-time could not be given up.
  Status synchronise(void* stream, std::int64_t timeout_us) override {
    using Clock = std::chrono::steady_clock;
    if (timeout_us <= 0) return status_of(cudaStreamSynchronize(as_stream(stream)), "the step");
    const Clock::time_point deadline = Clock::now() + std::chrono::microseconds(timeout_us);
    for (std::int64_t asked = 1;; ++asked) {
      const cudaError_t state = cudaStreamQuery(as_stream(stream));
      if (state != cudaErrorNotReady) return status_of(state, "the step");
      if (asked % 64 != 0) continue;
      if (Clock::now() >= deadline) {
        return unavailable("the CUDA device has not answered for " + std::to_string(timeout_us / 1000) + " ms");
      }
      std::this_thread::yield();
    }
  }
  Status take_launch_error() override { return status_of(cudaGetLastError(), "a launch"); }

  Result<void*> create_event() override {
    cudaEvent_t event = nullptr;
    FATHOM_RETURN_IF_ERROR(status_of(cudaEventCreate(&event), "creating an event"));
    return static_cast<void*>(event);
  }
  void destroy_event(void* event) override { static_cast<void>(cudaEventDestroy(as_event(event))); }
  Status record_event(void* event, void* stream) override {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    static_cast<void>(cudaStreamIsCapturing(as_stream(stream), &capture));
    const unsigned flags = capture == cudaStreamCaptureStatusActive ? cudaEventRecordExternal : cudaEventRecordDefault;
    return status_of(cudaEventRecordWithFlags(as_event(event), as_stream(stream), flags), "recording an event");
  }
  Result<double> elapsed_us(void* begin, void* end) override {
    float ms = 0;
    FATHOM_RETURN_IF_ERROR(status_of(cudaEventElapsedTime(&ms, as_event(begin), as_event(end)), "reading events"));
    return static_cast<double>(ms) * 1000.0;
  }

  Status begin_capture(void* stream) override {
    return status_of(cudaStreamBeginCapture(as_stream(stream), cudaStreamCaptureModeThreadLocal),
                     "beginning a capture");
  }
  Result<NodeHandle> newest_node(void* stream) override {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    const cudaGraphNode_t* nodes = nullptr;
    const cudaGraphEdgeData* edges = nullptr;
    std::size_t num_nodes = 0;
    FATHOM_RETURN_IF_ERROR(
        status_of(cudaStreamGetCaptureInfo(as_stream(stream), &capture, nullptr, nullptr, &nodes, &edges, &num_nodes),
                  "asking for the newest node"));
    return num_nodes == 0 ? NodeHandle{0} : reinterpret_cast<NodeHandle>(nodes[num_nodes - 1]);
  }
  Result<DeviceGraph> end_capture(void* stream) override {
    cudaGraph_t graph = nullptr;
    FATHOM_RETURN_IF_ERROR(status_of(cudaStreamEndCapture(as_stream(stream), &graph), "ending a capture"));
    DeviceGraph out;
    read_chain(graph, out);
    cudaGraphExec_t exec = nullptr;
    const cudaError_t error = cudaGraphInstantiate(&exec, graph, 0);
    static_cast<void>(cudaGraphDestroy(graph));
    FATHOM_RETURN_IF_ERROR(status_of(error, "instantiating a captured step"));
    out.exec = exec;
    return out;
  }
  Status launch_graph(void* exec, void* stream) override {
    return status_of(cudaGraphLaunch(static_cast<cudaGraphExec_t>(exec), as_stream(stream)), "a captured step");
  }
  void destroy_graph(void* exec) override {
    static_cast<void>(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(exec)));
  }
};

}  // namespace

std::unique_ptr<DeviceApi> make_cuda_device_api() { return std::make_unique<CudaDeviceApi>(); }

}  // namespace fathom::cuda
