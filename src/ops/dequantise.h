// Scalar access to parameters in the checkpoint's own bits (spec sections 5 and 6). Every pointer may be
// misaligned for its element: elements are copied out, never dereferenced in place.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "tensor/view.h"
#include "tensor/weights.h"

namespace fathom {

// Element `index` of a view, read as T whatever the alignment.
template <typename T>
T load_element(const View& view, std::int64_t index) {
  T value;
  std::memcpy(&value, view.data + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// Element `index` of an F32 or BF16 view, as fp32.
float load_float(const View& view, std::int64_t index);
// All elements of an F32 or BF16 view, as fp32: norm weights, ape, sinks.
std::vector<float> widen(const View& view);

// Shapes and dtypes of `values` and `scale` agree with the format.
void check_linear_weight(const LinearWeight& weight, std::int64_t out_features, std::int64_t in_features);

// W[n][k]: exact, except that an F32 scale (Base release, NVFP4's weight_scale_2) rounds the product once.
float weight_element(const LinearWeight& weight, std::int64_t n, std::int64_t k);
// W[n][0 .. in_features).
void dequantise_row(const LinearWeight& weight, std::int64_t n, std::span<float> row);

}  // namespace fathom
