// Argument checks that every operation makes before it runs a variant. They hold for either backend's
// activation type (CPU: F32, CUDA: BF16).
#pragma once

#include "base/check.h"
#include "tensor/view.h"

namespace fathom {

// `rows` rows of `row_elements` elements of `dtype`, however the row is split into dimensions.
inline void check_view(const View& view, DType dtype, std::int64_t rows, std::int64_t row_elements) {
  FATHOM_CHECK(view.dtype == dtype, "dtype of an operation's argument");
  FATHOM_CHECK(view.shape.rank() >= 1 && view.shape[0] == rows, "rows of an operation's argument");
  FATHOM_CHECK(view.shape.row_elements() == row_elements, "row width of an operation's argument");
  FATHOM_CHECK(!view.empty() || view.shape.num_elements() == 0, "an operation's argument is set");
}

inline void check_activation(const View& view, std::int64_t rows, std::int64_t row_elements) {
  FATHOM_CHECK(view.dtype == DType::kF32 || view.dtype == DType::kBF16, "activations are F32 or BF16");
  check_view(view, view.dtype, rows, row_elements);
}

// A vector parameter: norm weights (bf16), sinks, biases (f32).
inline void check_vector(const View& view, DType dtype, std::int64_t elements) {
  FATHOM_CHECK(view.dtype == dtype && !view.empty(), "dtype of a parameter vector");
  FATHOM_CHECK(view.shape.num_elements() == elements, "length of a parameter vector");
}

}  // namespace fathom
