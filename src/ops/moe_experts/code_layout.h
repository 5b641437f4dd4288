// How eight e2m1 codes of an expert lie in a 32-bit word of device memory.
//
// Kernels want pair p = (code p, code p + 4) as two bf16 values: sign at bit 15, magnitude at bits 8 to 6, the rest
// zero, in either half. In the checkpoint's order a pair takes two shifts and two masks. Here three pairs take one
// shift (the first none) and one mask, the last pair two of each: a third of the integer work of a product at few rows.
#pragma once

#include <bit>
#include <cstdint>

#include "ops/host_device.h"

namespace fathom {

inline constexpr std::uint32_t kE2m1PairMask = 0x81c081c0u;

// Pair p of codes in the checkpoint's order (code i at bits 4 i to 4 i + 3).
constexpr std::uint32_t checkpoint_pair(std::uint32_t codes, int p) {
  const std::uint32_t sign = codes << (12 - 4 * p);
  const std::uint32_t magnitude = p < 2 ? codes << (6 - 4 * p) : codes >> (4 * p - 6);
  return (sign & 0x80008000u) | (magnitude & 0x01c001c0u);
}

// The checkpoint's word in the order of device memory.
constexpr std::uint32_t device_codes(std::uint32_t codes) {
  const std::uint32_t last = checkpoint_pair(codes, 3);
  return checkpoint_pair(codes, 0) | std::rotl(checkpoint_pair(codes, 1), 4) | checkpoint_pair(codes, 2) >> 6 |
         std::rotl(last & 0x81808180u, 6) | (last & 0x00400040u) >> 2;
}

// All pairs of a word in the order of device memory.
FATHOM_HOST_DEVICE inline void device_pairs(std::uint32_t word, std::uint32_t (&pairs)[4]) {
  pairs[0] = word & kE2m1PairMask;
  pairs[1] = (word >> 4 | word << 28) & kE2m1PairMask;
  pairs[2] = (word << 6) & kE2m1PairMask;
  pairs[3] = ((word >> 6 | word << 26) & 0x81808180u) | ((word << 2) & 0x00400040u);
}

}  // namespace fathom
