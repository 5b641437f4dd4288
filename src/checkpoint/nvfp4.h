// MXFP4 expert weights rewritten as NVFP4 with exactly the same values (spec section 6).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace fathom {

struct Nvfp4Matrix {
  std::vector<std::byte> weight;        // [out, in/2] packed e2m1
  std::vector<std::byte> weight_scale;  // [out, in/16] e4m3, powers of two
  float weight_scale_2 = 1.0f;          // a power of two
};

// `weight` [rows, columns/2] packed e2m1, `scale` [rows, columns/32] e8m0. A block keeps its codes where it
// can and otherwise takes codes half or double as large, with the sign of zero kept. Fails when no
// weight_scale_2 lets every block's scale be an e4m3 number (the exponents of a matrix span more than 2^17),
// or on a NaN scale; `name` starts the message.
Result<Nvfp4Matrix> mxfp4_to_nvfp4(std::span<const std::byte> weight, std::span<const std::byte> scale,
                                   std::int64_t rows, std::int64_t columns, const std::string& name);

struct ConvertResult {
  std::int64_t num_matrices = 0;  // expert matrices rewritten
  std::int64_t num_tensors = 0;
  std::int64_t tensor_bytes = 0;
};

// Writes the NVFP4 twin of the MXFP4 checkpoint at `source` to `directory`: trunk experts rewritten, draft
// experts and everything else copied bit for bit, quantization_config extended, tokenizer files copied.
// Nothing stays after a failure.
Result<ConvertResult> convert_to_nvfp4(const std::string& source, const std::string& directory,
                                       const std::function<void(std::int64_t, std::int64_t)>& progress);

}  // namespace fathom
