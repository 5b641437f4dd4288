// The routed experts of one layer in device memory: one slab, experts at a fixed stride, the checkpoint's own 4-bit
// codes (in each 32-bit word their bits in the order of code_layout.h) and scales. MoeExpertsArgs::packed points to one
// of these.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "tensor/weights.h"

namespace fathom {

struct DeviceExperts {
  struct Matrix {
    std::int64_t values_offset = 0;  // inside an expert
    std::int64_t scale_offset = 0;
    std::int32_t n = 0, k = 0;
  };
  WeightFormat format = WeightFormat::kMxfp4;  // or kNvfp4
  Matrix w1, w3, w2;
  std::int64_t scale_2_offset = 0;  // 3 f32 (w1, w3, w2) inside an expert; 1 for MXFP4
  std::int64_t stride_bytes = 0;    // of one expert
  std::int32_t num_experts = 0;
  std::byte* slab = nullptr;

  std::int64_t num_bytes() const { return stride_bytes * num_experts; }
};

// Where everything lies; `slab` stays null. All experts must have one format and one set of shapes.
Result<DeviceExperts> plan_device_experts(std::span<const ExpertWeights> experts);
// The slab's bytes, from experts in host memory. Refuses scales outside what the kernels fold exactly.
Status pack_device_experts(const DeviceExperts& layout, std::span<const ExpertWeights> experts,
                           std::span<std::byte> slab);

}  // namespace fathom
