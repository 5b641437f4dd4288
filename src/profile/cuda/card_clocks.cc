// The card's present clocks from NVML, which comes with the driver and is loaded at run time.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <string>

#include "profile/device_timeline.h"

namespace fathom {
namespace {

// Of nvml.h, whose ABI is fixed: handles are pointers, 0 is success.
constexpr int kSmClock = 1, kMemoryClock = 2;

struct Functions {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*handle_by_pci)(const char*, void**) = nullptr;
  int (*clock_info)(void*, int, unsigned*) = nullptr;
  const char* (*error_string)(int) = nullptr;
};

template <typename Function>
bool load(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

class NvmlClocks final : public ClockSource {
 public:
  explicit NvmlClocks(const Functions& functions) : functions_(functions) {}
  ~NvmlClocks() override {
    if (begun_) static_cast<void>(functions_.shutdown());
  }

  // Of the card that the run-time computes on, whatever CUDA_VISIBLE_DEVICES numbers it.
  Status open() {
    FATHOM_RETURN_IF_ERROR(check(functions_.init(), "to begin"));
    begun_ = true;
    int device = 0;
    char bus_id[32] = {};
    if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, device) != cudaSuccess) {
      return unavailable("the card's PCI address is not known");
    }
    return check(functions_.handle_by_pci(bus_id, &card_), "the card at " + std::string(bus_id));
  }

  Result<Clocks> read() override {
    unsigned core = 0, memory = 0;
    FATHOM_RETURN_IF_ERROR(check(functions_.clock_info(card_, kSmClock, &core), "its core clock"));
    FATHOM_RETURN_IF_ERROR(check(functions_.clock_info(card_, kMemoryClock, &memory), "its memory clock"));
    return Clocks{static_cast<double>(core), static_cast<double>(memory)};
  }

 private:
  Status check(int code, const std::string& what) const {
    if (code == 0) return {};
    return unavailable("NVML refuses " + what + ": " + functions_.error_string(code));
  }

  Functions functions_;
  void* card_ = nullptr;
  bool begun_ = false;
};

}  // namespace

Result<std::unique_ptr<ClockSource>> open_card_clocks() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return not_found("libnvidia-ml.so.1, which comes with the driver, was not found");
  Functions f;
  if (!load(library, "nvmlInit_v2", f.init) || !load(library, "nvmlShutdown", f.shutdown) ||
      !load(library, "nvmlDeviceGetHandleByPciBusId_v2", f.handle_by_pci) ||
      !load(library, "nvmlDeviceGetClockInfo", f.clock_info) || !load(library, "nvmlErrorString", f.error_string)) {
    return failed_precondition("libnvidia-ml lacks a function that is needed");
  }
  auto clocks = std::make_unique<NvmlClocks>(f);
  FATHOM_RETURN_IF_ERROR(clocks->open());
  return std::unique_ptr<ClockSource>(std::move(clocks));
}

}  // namespace fathom
