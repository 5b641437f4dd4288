// Terms that cost models share. A cost counts what the operation has to touch once, not what one variant
// happens to read again.
#pragma once

#include <cstdint>
#include <span>

#include "ops/execution_context.h"
#include "tensor/weights.h"

namespace fathom {

inline double view_bytes(const View& view) { return view.empty() ? 0.0 : static_cast<double>(view.num_bytes()); }
inline double weight_bytes(const LinearWeight& weight) { return static_cast<double>(weight.num_bytes()); }
inline double matmul_flops(std::int64_t rows, std::int64_t out_features, std::int64_t in_features) {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(out_features) * static_cast<double>(in_features);
}

// Calls body(first, last) for each run of consecutive positions: the rows of one sequence. (A sequence that
// ends where its neighbour begins is counted with it.)
template <typename Body>
void for_each_position_run(const HostLengths& lengths, Body&& body) {
  const std::span<const std::int32_t> positions = lengths.positions;
  for (std::size_t begin = 0; begin < positions.size();) {
    std::size_t end = begin + 1;
    while (end < positions.size() && positions[end] == positions[end - 1] + 1) ++end;
    body(positions[begin], positions[end - 1]);
    begin = end;
  }
}

}  // namespace fathom
