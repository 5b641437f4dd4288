#include "tensor/view.h"

namespace fathom {

std::string Shape::to_string() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string((*this)[i]);
  }
  return text + "]";
}

View View::rows(std::int64_t begin, std::int64_t end) const {
  FATHOM_CHECK(shape.rank() >= 1 && 0 <= begin && begin <= end && end <= shape[0], "row range inside the view");
  Shape part;
  part.append(end - begin);
  for (int i = 1; i < shape.rank(); ++i) part.append(shape[i]);
  return {data + begin * shape.row_elements() * dtype_bytes(dtype), dtype, part};
}

View make_view(void* data, DType dtype, Shape shape) { return {static_cast<std::byte*>(data), dtype, shape}; }

}  // namespace fathom
