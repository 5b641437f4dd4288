#include "tensor/buffer.h"

#include <cstdlib>
#include <cstring>

#include "base/units.h"

namespace fathom {

void Buffer::Free::operator()(std::byte* p) const { std::free(p); }

Buffer::Buffer(std::int64_t num_bytes) : num_bytes_(num_bytes) {
  if (num_bytes == 0) return;
  const auto rounded = static_cast<std::size_t>(round_up(num_bytes, kAlignment));
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)));
  FATHOM_CHECK(data_ != nullptr, "out of host memory; plans are checked before allocation");
}

void Buffer::fill_zero() {
  if (num_bytes_ > 0) std::memset(data_.get(), 0, static_cast<std::size_t>(num_bytes_));
}

}  // namespace fathom
