// Host memory that owns itself: 64-byte aligned, uninitialised unless asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tensor/view.h"

namespace fathom {

class Buffer {
 public:
  static constexpr std::size_t kAlignment = 64;

  Buffer() = default;
  explicit Buffer(std::int64_t num_bytes);

  std::byte* data() const { return data_.get(); }
  std::int64_t num_bytes() const { return num_bytes_; }
  void fill_zero();

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  std::int64_t num_bytes_ = 0;
};

}  // namespace fathom
