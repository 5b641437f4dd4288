#include "ops/moe_experts/device_experts.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "ops/moe_experts/code_layout.h"

namespace fathom {
namespace {

// What a pair is, said again: code i in the low half, code i + 4 in the high half; sign to bit 15, magnitude to 8..6.
std::uint32_t pair_by_hand(std::uint32_t codes, int p) {
  const auto half = [&](int code) {
    const std::uint32_t nibble = codes >> (4 * code) & 15u;
    return (nibble & 8u) << 12 | (nibble & 7u) << 6;
  };
  return half(p) | half(p + 4) << 16;
}

TEST(CodeLayout, APairOfDeviceMemoryIsThePairOfTheCheckpoint) {
  std::mt19937 random(20261130);
  for (int i = 0; i < 2000; ++i) {
    // Each bit alone, then any word: no two bits share a place.
    const std::uint32_t codes = i < 32 ? 1u << i : static_cast<std::uint32_t>(random());
    std::uint32_t pairs[4];
    device_pairs(device_codes(codes), pairs);
    for (int p = 0; p < 4; ++p) EXPECT_EQ(pairs[p], pair_by_hand(codes, p)) << std::hex << codes << " pair " << p;
  }
}

TEST(CodeLayout, EveryBitHasItsOwnPlace) {
  std::uint32_t taken = 0;
  for (int bit = 0; bit < 32; ++bit) {
    const std::uint32_t place = device_codes(1u << bit);
    EXPECT_EQ(std::popcount(place), 1);
    EXPECT_EQ(taken & place, 0u);
    taken |= place;
  }
  EXPECT_EQ(taken, 0xffffffffu);
}

}  // namespace
}  // namespace fathom
