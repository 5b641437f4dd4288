#include "backend/faulty_device_api.h"

#include <atomic>
#include <charconv>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

namespace fathom {
namespace {

constexpr std::pair<std::string_view, DeviceFaultKind> kKinds[] = {
    {"no-device", DeviceFaultKind::kNoDevice},
    {"old-driver", DeviceFaultKind::kOldDriver},
    {"out-of-memory", DeviceFaultKind::kOutOfMemory},
    {"sticky", DeviceFaultKind::kSticky},
    {"hang", DeviceFaultKind::kHang},
};

class FaultyDeviceApi final : public DeviceApi {
 public:
  FaultyDeviceApi(std::unique_ptr<DeviceApi> inner, const DeviceFault& fault)
      : inner_(std::move(inner)), fault_(fault) {}

  Result<DeviceCard> open() override {
    if (fault_.kind == DeviceFaultKind::kNoDevice) {
      return unavailable("no CUDA device: the driver lists none (injected); run on the CPU");
    }
    if (fault_.kind == DeviceFaultKind::kOldDriver) {
      return unavailable("the NVIDIA driver supports CUDA 11.4 (injected); this program needs 13.0");
    }
    return inner_->open();
  }
  Result<DeviceMemoryInfo> memory_info() override { return inner_->memory_info(); }
  Result<void*> allocate(std::int64_t num_bytes) override {
    FATHOM_RETURN_IF_ERROR(broken());
    if (fault_.kind == DeviceFaultKind::kOutOfMemory && ++num_calls_ == fault_.call) {
      return resource_exhausted("an allocation failed on the device: out of memory (injected)");
    }
    return inner_->allocate(num_bytes);
  }
  void free(void* data) override { inner_->free(data); }
  Result<void*> allocate_pinned(std::int64_t num_bytes) override { return inner_->allocate_pinned(num_bytes); }
  void free_pinned(void* data) override { inner_->free_pinned(data); }
  Result<void*> create_stream() override { return inner_->create_stream(); }
  void destroy_stream(void* stream) override { inner_->destroy_stream(stream); }
  Status copy(void* to, const void* from, std::int64_t num_bytes, CopyKind kind, void* stream) override {
    FATHOM_RETURN_IF_ERROR(broken());
    return inner_->copy(to, from, num_bytes, kind, stream);
  }
  Status copy_rows(const RowCopies& copies, void* stream) override {
    FATHOM_RETURN_IF_ERROR(broken());
    return inner_->copy_rows(copies, stream);
  }
  Status synchronise(void* stream, std::int64_t timeout_us) override {
    const bool here = fault_.kind == DeviceFaultKind::kSticky || fault_.kind == DeviceFaultKind::kHang;
    if (here && ++num_calls_ >= fault_.call) broken_ = true;
    if (broken_ && fault_.kind == DeviceFaultKind::kHang) {
      if (timeout_us <= 0) std::this_thread::sleep_for(std::chrono::hours(24 * 365));
      std::this_thread::sleep_for(std::chrono::microseconds(timeout_us));
      return unavailable("the device has not answered for " + std::to_string(timeout_us / 1000) + " ms (injected)");
    }
    FATHOM_RETURN_IF_ERROR(broken());
    return inner_->synchronise(stream, timeout_us);
  }
  Status take_launch_error() override {
    FATHOM_RETURN_IF_ERROR(broken());
    return inner_->take_launch_error();
  }
  Result<void*> create_event() override { return inner_->create_event(); }
  void destroy_event(void* event) override { inner_->destroy_event(event); }
  Status record_event(void* event, void* stream) override { return inner_->record_event(event, stream); }
  Result<double> elapsed_us(void* begin, void* end) override { return inner_->elapsed_us(begin, end); }
  Status begin_capture(void* stream) override { return inner_->begin_capture(stream); }
  Result<NodeHandle> newest_node(void* stream) override { return inner_->newest_node(stream); }
  Result<DeviceGraph> end_capture(void* stream) override { return inner_->end_capture(stream); }
  Status launch_graph(void* exec, void* stream) override {
    FATHOM_RETURN_IF_ERROR(broken());
    return inner_->launch_graph(exec, stream);
  }
  void destroy_graph(void* exec) override { inner_->destroy_graph(exec); }

 private:
  Status broken() const {
    if (!broken_ || fault_.kind == DeviceFaultKind::kHang) return {};
    return unavailable("the step failed on the device: an illegal memory access was encountered (injected)");
  }

  std::unique_ptr<DeviceApi> inner_;
  const DeviceFault fault_;
  std::atomic<std::int64_t> num_calls_{0};
  std::atomic<bool> broken_{false};
};

}  // namespace

Result<DeviceFault> parse_device_fault(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  DeviceFault fault;
  bool known = false;
  for (const auto& [kind_name, kind] : kKinds) {
    if (kind_name == name) fault.kind = kind, known = true;
  }
  if (colon != std::string_view::npos) {
    const std::string_view number = text.substr(colon + 1);
    const auto read = std::from_chars(number.data(), number.data() + number.size(), fault.call);
    known = known && read.ec == std::errc() && read.ptr == number.data() + number.size() && fault.call > 0;
  }
  if (known) return fault;
  return invalid_argument("a device fault: found \"" + std::string(text) +
                          "\", expected no-device, old-driver, out-of-memory, sticky or hang, and a colon and the "
                          "number of the call from 1 on, for example sticky:40");
}

std::unique_ptr<DeviceApi> make_faulty_device_api(std::unique_ptr<DeviceApi> inner, const DeviceFault& fault) {
  return std::make_unique<FaultyDeviceApi>(std::move(inner), fault);
}

}  // namespace fathom
