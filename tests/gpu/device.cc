#include "device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "ops/cuda/variants.h"
#include "tensor/scalar_formats.h"

namespace fathom::gpu {
namespace {

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    ADD_FAILURE() << what << ": " << cudaGetErrorString(error);
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    std::exit(3);  // a device error is sticky: nothing after it would mean anything
  }
}

const OpRegistry& registry() {
  static const OpRegistry all = [] {
    OpRegistry r;
    register_cuda_variants(r);
    return r;
  }();
  return all;
}

std::vector<std::string>& lines() {
  static std::vector<std::string> all;
  return all;
}

double& worst_error() {
  static double worst = 0;
  return worst;
}

}  // namespace

bool has_device() {
  static const bool found = [] {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
      std::printf("no device: %s\n", cudaGetErrorString(error));
      return false;
    }
    std::printf("device: %s\n", device_name().c_str());
    return true;
  }();
  return found;
}

bool reduced() { return std::getenv("FATHOM_GPU_REDUCED") != nullptr; }

std::string device_name() {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  int driver = 0;
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  return std::string(properties.name) + ", sm_" + std::to_string(properties.major * 10 + properties.minor) + ", " +
         std::to_string(properties.multiProcessorCount) + " multiprocessors, driver CUDA " +
         std::to_string(driver / 1000) + "." + std::to_string(driver % 1000 / 10);
}

DeviceInfo device_info() {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  DeviceInfo info;
  info.backend = BackendKind::kCuda;
  info.num_multiprocessors = properties.multiProcessorCount;
  info.compute_capability = properties.major * 10 + properties.minor;
  info.shared_memory_per_block_bytes = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin);
  return info;
}

Arena::~Arena() {
  for (void* block : blocks_) check(cudaFree(block), "cudaFree");
}

std::byte* Arena::allocate(std::int64_t num_bytes) {
  void* data = nullptr;
  check(cudaMalloc(&data, static_cast<std::size_t>(std::max<std::int64_t>(num_bytes, 256))), "cudaMalloc");
  blocks_.push_back(data);
  return static_cast<std::byte*>(data);
}

View Arena::copy(const View& host) {
  if (host.empty()) return {};
  std::byte* data = allocate(host.num_bytes());
  check(cudaMemcpy(data, host.data, static_cast<std::size_t>(host.num_bytes()), cudaMemcpyHostToDevice), "upload");
  // A copy from pageable memory returns before it has arrived, and tests run on a stream that does not wait.
  check(cudaDeviceSynchronize(), "upload");
  return make_view(data, host.dtype, host.shape);
}

View Arena::copy_bf16(const View& host) {
  const std::int64_t n = host.shape.num_elements();
  std::vector<std::uint16_t> narrow(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) narrow[static_cast<std::size_t>(i)] = float_to_bf16(host.as<float>()[i]);
  return copy(make_view(narrow.data(), DType::kBF16, host.shape));
}

LinearWeight Arena::copy(const LinearWeight& weight) {
  LinearWeight placed = weight;
  placed.values = copy(weight.values);
  placed.scale = copy(weight.scale);
  return placed;
}

View Arena::poisoned(DType dtype, Shape shape) {
  const View view = make_view(allocate(shape.num_elements() * dtype_bytes(dtype)), dtype, shape);
  check(cudaMemset(view.data, 0xff, static_cast<std::size_t>(view.num_bytes())), "cudaMemset");
  return view;
}

std::vector<std::byte> read_bytes(const std::byte* device, std::int64_t num_bytes) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(num_bytes));
  check(cudaMemcpy(bytes.data(), device, bytes.size(), cudaMemcpyDeviceToHost), "download");
  return bytes;
}

std::vector<float> read_floats(const View& device) {
  const std::vector<std::byte> bytes = read_bytes(device.data, device.num_bytes());
  std::vector<float> values(static_cast<std::size_t>(device.shape.num_elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = device.dtype == DType::kBF16 ? bf16_to_float(reinterpret_cast<const std::uint16_t*>(bytes.data())[i])
                                             : reinterpret_cast<const float*>(bytes.data())[i];
  }
  return values;
}

std::vector<std::int32_t> read_ints(const View& device) {
  const std::vector<std::byte> bytes = read_bytes(device.data, device.num_bytes());
  const auto* first = reinterpret_cast<const std::int32_t*>(bytes.data());
  return {first, first + device.shape.num_elements()};
}

StepRows copy_rows(Arena& arena, const StepRows& rows) {
  StepRows out = rows;
  for (View* view : {&out.token_ids, &out.positions, &out.sequence_of, &out.sequence_begin, &out.window_begin,
                     &out.window_end, &out.context_table, &out.context_offset, &out.window_table, &out.window_offset,
                     &out.window_first, &out.state_slot}) {
    *view = arena.copy(*view);
  }
  return out;
}

CachePools copy_pools(Arena& arena, const testing::PagedCache& cache) {
  CachePools pools = cache.pools();
  const auto bytes = cache.pool_bytes();
  const auto copy = [&](std::byte* host, std::int64_t n) {
    return n == 0 ? nullptr : arena.copy(make_view(host, DType::kU8, {n})).data;
  };
  pools.context = copy(pools.context, bytes[0]);
  pools.window = copy(pools.window, bytes[1]);
  pools.state = copy(pools.state, bytes[2]);
  return pools;
}

std::vector<std::string> cuda_variants(OpKind op) {
  std::vector<std::string> names;
  for (const Variant& variant : registry().variants_of(op, BackendKind::kCuda)) names.emplace_back(variant.name);
  return names;
}

namespace {

constexpr std::int64_t kNumArrivals = 256 * 128;

struct Run {
  VariantTable table;
  ExecutionContext context;
  void* scratch = nullptr;
  void* arrivals = nullptr;
  cudaStream_t stream = nullptr;

  Run(OpKind op, std::string_view variant, std::int64_t scratch_bytes) {
    const std::pair<std::string, std::string> choice{std::string(op_name(op)), std::string(variant)};
    Result<VariantTable> chosen = VariantTable::choose(registry(), BackendKind::kCuda, {&choice, 1});
    if (!chosen.ok()) {
      std::fprintf(stderr, "%s\n", std::string(chosen.status().message()).c_str());
      std::exit(3);
    }
    table = *chosen;
    check(cudaMalloc(&scratch, static_cast<std::size_t>(std::max<std::int64_t>(scratch_bytes, 256))), "scratch");
    check(cudaMemset(scratch, 0xff, static_cast<std::size_t>(std::max<std::int64_t>(scratch_bytes, 256))), "poison");
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    check(cudaDeviceSynchronize(), "before the run");
    context.variants = &table;
    context.stream = stream;
    context.scratch = static_cast<std::byte*>(scratch);
    context.scratch_bytes = scratch_bytes;
    check(cudaMalloc(&arrivals, kNumArrivals * 4), "arrivals");
    check(cudaMemset(arrivals, 0, kNumArrivals * 4), "arrivals");
    check(cudaDeviceSynchronize(), "before the run");
    context.arrivals = static_cast<std::uint32_t*>(arrivals);
    context.num_arrivals = kNumArrivals;
  }
  // Every operation leaves the counters as it found them.
  void expect_no_arrivals(const std::string& name) const {
    std::vector<std::uint32_t> left(kNumArrivals);
    check(cudaMemcpy(left.data(), arrivals, kNumArrivals * 4, cudaMemcpyDeviceToHost), "arrivals");
    EXPECT_EQ(std::count(left.begin(), left.end(), 0u), kNumArrivals) << name;
  }
  ~Run() {
    check(cudaFree(scratch), "cudaFree");
    check(cudaFree(arrivals), "cudaFree");
    check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  }
};

}  // namespace

void run_cuda(OpKind op, std::string_view variant, std::int64_t scratch_bytes,
              const std::function<void(ExecutionContext&)>& launch) {
  Run run(op, variant, scratch_bytes);
  launch(run.context);
  const std::string name = std::string(op_name(op)) + "/" + std::string(variant);
  check(cudaGetLastError(), (name + " launch").c_str());
  check(cudaStreamSynchronize(run.stream), name.c_str());
  run.expect_no_arrivals(name);
}

double time_cuda(OpKind op, std::string_view variant, std::int64_t scratch_bytes, int num_copies,
                 int launches_per_graph, const std::function<void(ExecutionContext&, int)>& launch) {
  Run run(op, variant, scratch_bytes);
  const std::string name = std::string(op_name(op)) + "/" + std::string(variant);
  launch(run.context, 0);  // loads the module, raises limits
  check(cudaStreamSynchronize(run.stream), name.c_str());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check(cudaStreamBeginCapture(run.stream, cudaStreamCaptureModeThreadLocal), "begin capture");
  for (int i = 0; i < launches_per_graph; ++i) launch(run.context, i % num_copies);
  check(cudaStreamEndCapture(run.stream, &graph), "end capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) {
    check(cudaEventRecord(begin, run.stream), "record");
    check(cudaGraphLaunch(exec, run.stream), "graph launch");
    check(cudaEventRecord(end, run.stream), "record");
    check(cudaStreamSynchronize(run.stream), name.c_str());
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (i >= 2) times.push_back(1000.0 * ms / launches_per_graph);
  }
  std::sort(times.begin(), times.end());
  check(cudaGraphExecDestroy(exec), "destroy");
  check(cudaGraphDestroy(graph), "destroy");
  check(cudaEventDestroy(begin), "destroy");
  check(cudaEventDestroy(end), "destroy");
  run.expect_no_arrivals(name);
  return times[times.size() / 2];
}

void expect_close(std::span<const float> got, std::span<const float> want, bool bf16, double bound,
                  const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double error = 0, norm = 0;
  std::size_t bad = 0, first_bad = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double w = bf16 ? round_to_bf16(want[i]) : want[i];
    if (!std::isfinite(got[i])) {
      if (bad++ == 0) first_bad = i;
      continue;
    }
    error += (got[i] - w) * (got[i] - w);
    norm += w * w;
  }
  const double relative = norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
  worst_error() = relative;
  char text[160];
  std::snprintf(text, sizeof(text), "  %-58s %9.2e  (<= %.0e)%s", what.c_str(), relative, bound,
                bad > 0 || !(relative <= bound) ? "  FAILED" : "");
  report(text);
  EXPECT_EQ(bad, 0u) << what << ": not finite, first at " << first_bad << " of " << got.size();
  EXPECT_LE(relative, bound) << what;
}

void report(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  lines().push_back(line);
}

void print_report() {}

}  // namespace fathom::gpu
