// A typed or dtype-carrying window on memory somebody else owns.
//
// View is dense and row-major.
// Its pointer may be host or device memory and need not be aligned to the element size.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/check.h"
#include "tensor/dtype.h"

namespace fathom {

class Shape {
 public:
  static constexpr int kMaxRank = 4;

  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<std::int64_t> dims) {
    FATHOM_CHECK(dims.size() <= kMaxRank, "at most four dimensions");
    for (std::int64_t dim : dims) dims_[static_cast<std::size_t>(rank_++)] = dim;
  }
  constexpr int rank() const { return rank_; }
  constexpr std::int64_t operator[](int i) const { return dims_[static_cast<std::size_t>(i)]; }
  constexpr std::int64_t num_elements() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= dims_[static_cast<std::size_t>(i)];
    return n;
  }
  // Elements of one row: everything but the first dimension.
  constexpr std::int64_t row_elements() const {
    std::int64_t n = 1;
    for (int i = 1; i < rank_; ++i) n *= dims_[static_cast<std::size_t>(i)];
    return n;
  }
  constexpr bool operator==(const Shape& other) const {
    if (rank_ != other.rank_) return false;
    for (int i = 0; i < rank_; ++i) {
      if ((*this)[i] != other[i]) return false;
    }
    return true;
  }
  void append(std::int64_t dim) {
    FATHOM_CHECK(rank_ < kMaxRank, "at most four dimensions");
    dims_[static_cast<std::size_t>(rank_++)] = dim;
  }
  std::string to_string() const;  // "[4, 16384]"

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

// dtype known at run time: weights, and activations whose type the backend chooses (cpu: F32, cuda: BF16).
struct View {
  std::byte* data = nullptr;  // never written through when it came from a const source
  DType dtype = DType::kF32;
  Shape shape;

  bool empty() const { return data == nullptr; }
  std::int64_t num_bytes() const { return shape.num_elements() * dtype_bytes(dtype); }

  // Typed access; the dtype must match and, in kernels that dereference, the pointer be aligned.
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
  // Rows [begin, end) of the first dimension.
  View rows(std::int64_t begin, std::int64_t end) const;
};

View make_view(void* data, DType dtype, Shape shape);
inline View make_view(float* data, Shape shape) { return make_view(data, DType::kF32, shape); }
inline View make_view(std::int32_t* data, Shape shape) { return make_view(data, DType::kI32, shape); }

}  // namespace fathom
