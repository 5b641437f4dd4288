// Few shapes for captured steps and draft passes of many batches.
#pragma once

#include <cstdint>

namespace fathom {

// Sequences that a captured step or pass of `batch` of them is filled up to: a power of two, or one and a half of it.
constexpr std::int32_t filled_batch(std::int32_t batch) {
  std::int32_t filled = 1;
  while (filled < batch) filled = filled % 3 == 0 ? filled / 3 * 4 : filled < 2 ? 2 : filled / 2 * 3;
  return filled;
}

}  // namespace fathom
