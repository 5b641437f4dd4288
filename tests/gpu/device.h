// Device copies of test tensors, and running one CUDA variant of an operation on them.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/registry.h"
#include "ops/testing/paged_cache.h"
#include "ops/testing/tensors.h"

namespace fathom::gpu {

// Whether there is a device to test on; says once what was found.
bool has_device();
DeviceInfo device_info();
std::string device_name();
// FATHOM_GPU_REDUCED is set: small tables, for the sanitizers.
bool reduced();

// Scratch for a reference run, whichever plan it was given.
inline constexpr std::int64_t kReferenceScratch = 64 << 20;

// Device memory of one test; everything is freed with the arena.
class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* allocate(std::int64_t num_bytes);
  // The same bits.
  View copy(const View& host);
  // fp32 values as bf16.
  View copy_bf16(const View& host);
  LinearWeight copy(const LinearWeight& weight);
  // Bytes 0xff: NaN in every float format, -1 in integers.
  View poisoned(DType dtype, Shape shape);

 private:
  std::vector<void*> blocks_;
};

std::vector<std::byte> read_bytes(const std::byte* device, std::int64_t num_bytes);
// F32 or BF16 as floats.
std::vector<float> read_floats(const View& device);
std::vector<std::int32_t> read_ints(const View& device);

// StepRows and pools of a PagedCache on the device.
StepRows copy_rows(Arena& arena, const StepRows& rows);
CachePools copy_pools(Arena& arena, const testing::PagedCache& cache);

// Names of the CUDA variants of an operation.
std::vector<std::string> cuda_variants(OpKind op);
// launch(context) with `variant` chosen and poisoned scratch; waits, and fails the test on a device error.
void run_cuda(OpKind op, std::string_view variant, std::int64_t scratch_bytes,
              const std::function<void(ExecutionContext&)>& launch);
// Median microseconds of launch(context, copy) for rotating copies, as one captured graph replayed.
double time_cuda(OpKind op, std::string_view variant, std::int64_t scratch_bytes, int num_copies,
                 int launches_per_graph, const std::function<void(ExecutionContext&, int copy)>& launch);

// Relative L2 of `got` against `want` rounded to bf16 (`bf16`), fails above `bound` or on anything not finite.
void expect_close(std::span<const float> got, std::span<const float> want, bool bf16, double bound,
                  const std::string& what);

// One line of the closing table.
void report(const std::string& line);
void print_report();

}  // namespace fathom::gpu

#define FATHOM_NEEDS_GPU() \
  if (!::fathom::gpu::has_device()) GTEST_SKIP() << "no CUDA device: nothing was run"
