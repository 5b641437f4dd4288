#include "backend/cpu/cpu_backend.h"

#include <sys/mman.h>

#include <cstring>
#include <string>

#include "base/units.h"

namespace fathom {

CpuBackend::CpuBackend(int num_threads) : threads_(num_threads) {
  device_.backend = BackendKind::kCpu;
  device_.num_threads = num_threads;
}

// Anonymous pages: what is never touched costs no memory, and what is first read is zero.
Result<DeviceMemory> CpuBackend::allocate(std::int64_t num_bytes, std::string_view purpose) {
  FATHOM_CHECK(num_bytes >= 0, "a size is not negative");
  DeviceMemory memory;
  memory.num_bytes = num_bytes;
  if (num_bytes == 0) return memory;
  const std::size_t size = static_cast<std::size_t>(num_bytes);
  void* pages = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) {
    return resource_exhausted("no address space for " + std::string(purpose) + ": asked for " +
                              format_bytes(num_bytes) + "; lower --max-context or the number of sequences");
  }
  memory.data = static_cast<std::byte*>(pages);
  memory.owner = std::shared_ptr<void>(pages, [size](void* p) { ::munmap(p, size); });
  return memory;
}

Status CpuBackend::upload(std::byte* device_data, const std::byte* host, std::int64_t num_bytes) {
  if (device_data != host && num_bytes > 0) std::memcpy(device_data, host, static_cast<std::size_t>(num_bytes));
  return {};
}

Status CpuBackend::download(std::byte* host, const std::byte* device_data, std::int64_t num_bytes) {
  return upload(host, device_data, num_bytes);
}

Result<View> CpuBackend::place_weight(const View& host, bool aligned) {
  const auto element = static_cast<std::uintptr_t>(dtype_bytes(host.dtype));
  if (!aligned || reinterpret_cast<std::uintptr_t>(host.data) % element == 0) return host;
  FATHOM_ASSIGN_OR_RETURN(DeviceMemory copy, allocate(host.num_bytes(), "an aligned copy of a weight"));
  std::memcpy(copy.data, host.data, static_cast<std::size_t>(host.num_bytes()));
  View placed = host;
  placed.data = copy.data;
  aligned_copies_.push_back(std::move(copy));
  return placed;
}

Result<const void*> CpuBackend::place_experts(std::vector<ExpertWeights>& /*experts*/, std::int32_t /*layer*/) {
  return static_cast<const void*>(nullptr);
}

ExecutionContext CpuBackend::make_context() {
  ExecutionContext context;
  context.threads = &threads_;
  return context;
}

}  // namespace fathom
