// A 64-bit mixing step for content hashes; not for adversaries, so what it finds is compared in full.
#pragma once

#include <cstdint>

namespace fathom {

// The finaliser of splitmix64 over a running hash.
constexpr std::uint64_t mix_hash(std::uint64_t hash, std::uint64_t value) {
  std::uint64_t x = hash * 0x9E3779B97F4A7C15 + value + 0xD1B54A32D192ED03;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace fathom
