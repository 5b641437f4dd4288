// Launchers shared by the operations that multiply by a weight: linear, attention_output, lm_head, moe_route,
// draft_input.
#pragma once

#include <cuda_runtime.h>

#include <span>

#include "ops/cuda/device_weight.cuh"

namespace fathom::cuda {

// One weight of a group: out[t, row] = sum_k x[t, x_offset(row) + k] w[row, k].
struct LinearItem {
  DeviceWeight weight;
  void* out;  // [tokens, weight.n] bf16 or f32
  bool f32_out;
  bool quantise;            // AQ 128 on x
  std::int32_t group_rows;  // rows that share a slice of x; 0: all rows read the first k columns
  std::int32_t first_tile;  // of the launch's row tiles
};

struct LinearCall {
  const Bf16Bits* x;  // [tokens, x_stride]
  std::int64_t x_stride;
  std::int32_t num_tokens;
  const Bf16Bits* x_quantised = nullptr;  // AQ(x, 128) where the caller has it, same stride
};

// x rows of `width` with AQ 128 simulated, exact in bf16.
void launch_quantise_rows(const Bf16Bits* x, std::int64_t x_stride, Bf16Bits* out, std::int64_t num_tokens,
                          std::int64_t width, cudaStream_t stream);
// One thread an output, fp32, ascending k. `quantised`: x after AQ, where any item wants it.
void launch_linear_naive(const LinearCall& call, std::span<const LinearItem> items, const Bf16Bits* quantised,
                         cudaStream_t stream);
// Tensor cores; needs K % 128 == 0. `scratch` as linear_workspace_bytes; untouched where the call has x_quantised.
void launch_linear_mma(const LinearCall& call, std::span<const LinearItem> items, Bf16Bits* scratch,
                       cudaStream_t stream);
// The same bits, from larger tiles where the call fills them; then by warpgroup products where the card has them, with
// a `scratch` of linear_workspace_bytes for each format among the weights.
void launch_linear_mma_tiled(const LinearCall& call, std::span<const LinearItem> items, Bf16Bits* scratch,
                             cudaStream_t stream);
void launch_linear_wgmma(const LinearCall& call, std::span<const LinearItem> items, Bf16Bits* scratch,
                         cudaStream_t stream);

}  // namespace fathom::cuda
