// The one file that knows whether CUDA was compiled in.
#include "backend/open_cuda.h"

#include <unistd.h>

#include <cstdlib>

#include "backend/emulated_device_api.h"
#include "backend/faulty_device_api.h"
#include "base/log.h"

#if defined(FATHOM_HAS_CUDA)
#include "backend/cuda/cuda_device_api.h"
#include "ops/cuda/variants.h"
#endif

namespace fathom {
namespace {

Result<std::unique_ptr<Backend>> open_over(std::unique_ptr<DeviceApi> api, const DeviceBackendOptions& options) {
  if (const char* text = std::getenv("FATHOM_DEVICE_FAULT"); text != nullptr && *text != '\0') {
    FATHOM_ASSIGN_OR_RETURN(const DeviceFault fault, parse_device_fault(text));
    log_warning("FATHOM_DEVICE_FAULT: the device will fail on purpose: " + std::string(text));
    api = make_faulty_device_api(std::move(api), fault);
  }
  return DeviceBackend::open(std::move(api), options);
}

}  // namespace

Result<std::unique_ptr<Backend>> open_emulated_backend(const DeviceBackendOptions& options) {
  const std::int64_t total_bytes = std::int64_t{sysconf(_SC_PHYS_PAGES)} * std::int64_t{sysconf(_SC_PAGE_SIZE)};
  return open_over(make_emulated_device_api(total_bytes), options);
}

#if defined(FATHOM_HAS_CUDA)

bool built_with_cuda() { return true; }
Result<std::unique_ptr<Backend>> open_cuda_backend(const DeviceBackendOptions& options) {
  return open_over(cuda::make_cuda_device_api(), options);
}
void register_cuda_variants_if_built(OpRegistry& registry) { register_cuda_variants(registry); }

#else

bool built_with_cuda() { return false; }
Result<std::unique_ptr<Backend>> open_cuda_backend(const DeviceBackendOptions&) {
  return failed_precondition("this program was built without CUDA; build it with FATHOM_CUDA=ON to use a GPU");
}
void register_cuda_variants_if_built(OpRegistry&) {}

#endif

}  // namespace fathom
