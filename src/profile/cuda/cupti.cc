// CUPTI's activity records, the library loaded at run time: a machine without it still profiles by event times.
#include <cuda.h>
#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <unordered_map>

#include "profile/device_timeline.h"

namespace fathom {
namespace {

constexpr std::size_t kBufferBytes = 4 << 20;
constexpr std::size_t kAlignment = 8;

struct Functions {
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiGetTimestamp) timestamp = nullptr;
  decltype(&cuptiGetResultString) result_string = nullptr;
  decltype(&cuptiActivityEnableRuntimeApi) enable_runtime_api = nullptr;
};

std::string demangle(const char* name) {
  if (name == nullptr) return {};
  int status = 0;
  char* plain = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string out = status == 0 ? plain : name;
  std::free(plain);
  return out;
}

// CUPTI calls back without a context of ours, so there is one recorder at a time.
std::mutex g_mutex;
Functions g_functions;
std::vector<DeviceRecord> g_records;
std::unordered_map<std::uint64_t, double> g_launched_us;  // the middle of the call, by correlation

void request_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(kAlignment, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;
}

template <typename Activity>
DeviceRecord record_of(const Activity& activity, NodeKind kind) {
  DeviceRecord record;
  record.kind = kind;
  record.begin_us = static_cast<double>(activity.start) / 1e3;
  record.end_us = static_cast<double>(activity.end) / 1e3;
  record.stream = static_cast<std::int32_t>(activity.streamId);
  record.graph = activity.correlationId;
  record.graph_node = activity.graphNodeId;
  return record;
}

void complete_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid_size) {
  const std::lock_guard lock(g_mutex);
  CUpti_Activity* activity = nullptr;
  while (valid_size > 0 && g_functions.next_record(buffer, valid_size, &activity) == CUPTI_SUCCESS) {
    switch (activity->kind) {
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      case CUPTI_ACTIVITY_KIND_KERNEL: {
        const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(activity);
        g_records.push_back(record_of(*kernel, NodeKind::kKernel));
        g_records.back().kernel = demangle(kernel->name);
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY:
        g_records.push_back(record_of(*reinterpret_cast<const CUpti_ActivityMemcpy6*>(activity), NodeKind::kCopy));
        break;
      case CUPTI_ACTIVITY_KIND_MEMSET:
        g_records.push_back(record_of(*reinterpret_cast<const CUpti_ActivityMemset4*>(activity), NodeKind::kSet));
        break;
      case CUPTI_ACTIVITY_KIND_RUNTIME: {
        const auto* call = reinterpret_cast<const CUpti_ActivityAPI*>(activity);
        g_launched_us[call->correlationId] = (static_cast<double>(call->start) + static_cast<double>(call->end)) / 2e3;
        break;
      }
      default: break;
    }
  }
  std::free(buffer);
}

constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                         CUPTI_ACTIVITY_KIND_MEMSET};

constexpr CUpti_CallbackId kPolled[] = {CUPTI_RUNTIME_TRACE_CBID_cudaStreamQuery_v3020,
                                        CUPTI_RUNTIME_TRACE_CBID_cudaStreamQuery_ptsz_v7000};

class CuptiRecorder final : public DeviceRecorder {
 public:
  ~CuptiRecorder() override {
    for (const CUpti_ActivityKind kind : kKinds) static_cast<void>(g_functions.disable(kind));
    if (with_launches_) set_launches(false);
    static_cast<void>(g_functions.flush_all(0));
  }
  explicit CuptiRecorder(bool with_launches) : with_launches_(with_launches) {}

  Status start() {
    // Whoever recorded before may have left some.
    {
      const std::lock_guard lock(g_mutex);
      g_records.clear();
      g_launched_us.clear();
    }
    FATHOM_RETURN_IF_ERROR(check(g_functions.register_callbacks(request_buffer, complete_buffer), "its callbacks"));
    for (const CUpti_ActivityKind kind : kKinds) {
      FATHOM_RETURN_IF_ERROR(check(g_functions.enable(kind), "records of kernels and copies"));
    }
    if (with_launches_) set_launches(true);
    return {};
  }
  double now_us() override {
    std::uint64_t ns = 0;
    static_cast<void>(g_functions.timestamp(&ns));
    return static_cast<double>(ns) / 1e3;
  }
  Result<std::vector<DeviceRecord>> take() override {
    FATHOM_RETURN_IF_ERROR(check(g_functions.flush_all(0), "a flush"));
    const std::lock_guard lock(g_mutex);
    for (DeviceRecord& record : g_records) {
      if (record.graph_node != 0) continue;
      if (const auto found = g_launched_us.find(record.graph); found != g_launched_us.end()) {
        record.launched_us = found->second;
      }
    }
    g_launched_us.clear();
    return std::exchange(g_records, {});
  }

 private:
  // Without these records kernels that no graph launched have no operation, and nothing else is lost. All calls but
  // those that a wait makes again and again.
  static void set_launches(bool on) {
    if (!on) {
      static_cast<void>(g_functions.disable(CUPTI_ACTIVITY_KIND_RUNTIME));
      return;
    }
    static_cast<void>(g_functions.enable(CUPTI_ACTIVITY_KIND_RUNTIME));
    if (g_functions.enable_runtime_api == nullptr) return;
    for (const CUpti_CallbackId id : kPolled) static_cast<void>(g_functions.enable_runtime_api(id, 0));
  }
  static Status check(CUptiResult result, const char* what) {
    if (result == CUPTI_SUCCESS) return {};
    const char* text = nullptr;
    static_cast<void>(g_functions.result_string(result, &text));
    return unavailable(std::string("CUPTI refused ") + what + ": " + (text == nullptr ? "unknown" : text));
  }

  const bool with_launches_;
};

template <typename Function>
bool load(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

Result<std::unique_ptr<DeviceRecorder>> open(bool with_launches) {
  const char* const wished = std::getenv("FATHOM_CUPTI");
  if (wished != nullptr && std::string_view(wished) == "off") return failed_precondition("FATHOM_CUPTI=off");
  void* library = nullptr;
  const char* const names[] = {wished, "libcupti.so.13", "/usr/local/cuda/lib64/libcupti.so.13",
                               "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13"};
  for (const char* name : names) {
    if (name != nullptr && library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    return not_found(
        "libcupti.so.13 was not found (FATHOM_CUPTI names another place, or is off): event times are used");
  }
  Functions& f = g_functions;
  if (!load(library, "cuptiActivityEnable", f.enable) || !load(library, "cuptiActivityDisable", f.disable) ||
      !load(library, "cuptiActivityRegisterCallbacks", f.register_callbacks) ||
      !load(library, "cuptiActivityFlushAll", f.flush_all) ||
      !load(library, "cuptiActivityGetNextRecord", f.next_record) || !load(library, "cuptiGetTimestamp", f.timestamp) ||
      !load(library, "cuptiGetResultString", f.result_string)) {
    return failed_precondition("libcupti lacks a function that is needed; expected CUDA 13's");
  }
  load(library, "cuptiActivityEnableRuntimeApi", f.enable_runtime_api);
  auto recorder = std::make_unique<CuptiRecorder>(with_launches);
  FATHOM_RETURN_IF_ERROR(recorder->start());
  return std::unique_ptr<DeviceRecorder>(std::move(recorder));
}

}  // namespace

Result<std::unique_ptr<DeviceRecorder>> open_cupti() { return open(false); }
Result<std::unique_ptr<DeviceRecorder>> open_cupti_with_launches() { return open(true); }

}  // namespace fathom
