#include "checkpoint/nvfp4.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>

#include "tensor/scalar_formats.h"

namespace fathom {
namespace {

constexpr std::int64_t kNvfp4Columns = 16;
constexpr std::int64_t kMxfp4Columns = 32;
constexpr int kE8m0Bias = 127;
constexpr int kE8m0Nan = 255;
// Powers of two that e4m3 holds: 2^-9 (subnormal) to 2^8.
constexpr int kSmallestE4m3Exponent = -9;
constexpr int kLargestE4m3Exponent = 8;
constexpr int kE4m3Span = kLargestE4m3Exponent - kSmallestE4m3Exponent;
// Codes reach from 0.5 to 6: halving or doubling more than this often leaves the format.
constexpr int kMaxShift = 3;

// code -> code of value * 2^shift, or nothing; sign kept.
std::optional<std::uint8_t> shift_code(std::uint8_t code, int shift) {
  const float wanted = std::ldexp(kE2m1Values[code & 7], shift);
  for (std::uint8_t magnitude = 0; magnitude < 8; ++magnitude) {
    if (kE2m1Values[magnitude] == wanted) return static_cast<std::uint8_t>((code & 8) | magnitude);
  }
  return std::nullopt;
}

// For each shift, which codes survive it, as bits of the code's magnitude.
std::array<std::uint8_t, 2 * kMaxShift + 1> make_shiftable() {
  std::array<std::uint8_t, 2 * kMaxShift + 1> masks{};
  for (int shift = -kMaxShift; shift <= kMaxShift; ++shift) {
    for (std::uint8_t magnitude = 0; magnitude < 8; ++magnitude) {
      if (shift_code(magnitude, shift)) {
        masks[static_cast<std::size_t>(shift + kMaxShift)] |= static_cast<std::uint8_t>(1u << magnitude);
      }
    }
  }
  return masks;
}

struct Block {
  int exponent = 0;             // of the MXFP4 scale
  std::uint8_t magnitudes = 0;  // bit m: a code of magnitude m occurs

  bool all_zero() const { return (magnitudes & ~1u) == 0; }
};

// Exponents of weight_scale at which the block keeps its values; the shift of its codes is the difference.
template <typename Visit>
void for_each_exponent(const Block& block, Visit&& visit) {
  static const auto kShiftable = make_shiftable();
  for (int shift = -kMaxShift; shift <= kMaxShift; ++shift) {
    const std::uint8_t mask = kShiftable[static_cast<std::size_t>(shift + kMaxShift)];
    if ((block.magnitudes & ~mask) == 0) visit(block.exponent - shift, shift);
  }
}

std::vector<Block> read_blocks(std::span<const std::byte> weight, std::span<const std::byte> scale) {
  std::vector<Block> blocks(weight.size() * 2 / static_cast<std::size_t>(kNvfp4Columns));
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    blocks[b].exponent = std::to_integer<int>(scale[b / 2]) - kE8m0Bias;
    for (std::size_t i = 0; i < kNvfp4Columns / 2; ++i) {
      const auto pair = std::to_integer<unsigned>(weight[b * kNvfp4Columns / 2 + i]);
      blocks[b].magnitudes |= static_cast<std::uint8_t>(1u << (pair & 7));
      blocks[b].magnitudes |= static_cast<std::uint8_t>(1u << (pair >> 4 & 7));
    }
  }
  return blocks;
}

// The exponent of weight_scale_2 with the fewest shifted blocks, among those that serve every block.
std::optional<int> choose_exponent(const std::vector<Block>& blocks) {
  // counts[e]: blocks that can use window start e, and those of them without a shift. A window start e
  // offers the exponents [e, e + span].
  constexpr int kLow = -kE8m0Bias - kMaxShift - kE4m3Span;
  constexpr int kStarts = 2 * kE8m0Bias + 2 * kMaxShift + 2 * kE4m3Span + 8;
  std::vector<std::int64_t> served(kStarts, 0);
  std::vector<std::int64_t> unshifted(kStarts, 0);
  std::int64_t num_blocks = 0;
  for (const Block& block : blocks) {
    if (block.all_zero()) continue;
    ++num_blocks;
    std::array<bool, kStarts> mark{};
    for_each_exponent(block, [&](int exponent, int shift) {
      for (int start = exponent - kE4m3Span; start <= exponent; ++start) {
        const auto at = static_cast<std::size_t>(start - kLow);
        mark[at] = true;
        if (shift == 0) ++unshifted[at];
      }
    });
    for (std::size_t at = 0; at < mark.size(); ++at) served[at] += mark[at] ? 1 : 0;
  }
  if (num_blocks == 0) return 0;
  std::optional<std::size_t> best;
  for (std::size_t at = 0; at < served.size(); ++at) {
    if (served[at] == num_blocks && (!best || unshifted[at] > unshifted[*best])) best = at;
  }
  if (!best) return std::nullopt;
  return kLow + static_cast<int>(*best) - kSmallestE4m3Exponent;
}

}  // namespace

Result<Nvfp4Matrix> mxfp4_to_nvfp4(std::span<const std::byte> weight, std::span<const std::byte> scale,
                                   std::int64_t rows, std::int64_t columns, const std::string& name) {
  if (columns % kMxfp4Columns != 0 || static_cast<std::int64_t>(weight.size()) != rows * columns / 2 ||
      static_cast<std::int64_t>(scale.size()) != rows * columns / kMxfp4Columns) {
    return internal_error(name + ": weight and scale do not have the sizes of [" + std::to_string(rows) + ", " +
                          std::to_string(columns) + "]");
  }
  for (const std::byte value : scale) {
    if (std::to_integer<int>(value) == kE8m0Nan) {
      return failed_precondition(name + ".scale: found a NaN (byte 255), expected scales that NVFP4 can express");
    }
  }
  const std::vector<Block> blocks = read_blocks(weight, scale);
  const std::optional<int> outer = choose_exponent(blocks);
  if (!outer) {
    const auto [low, high] = std::minmax_element(scale.begin(), scale.end());
    return failed_precondition(name + ": found block scales from 2^" +
                               std::to_string(std::to_integer<int>(*low) - kE8m0Bias) + " to 2^" +
                               std::to_string(std::to_integer<int>(*high) - kE8m0Bias) +
                               ", expected a span of at most 2^17: e4m3 block scales cannot express it exactly");
  }
  if (*outer < -126 || *outer > 127) {
    return failed_precondition(name + ": found block scales that need weight_scale_2 = 2^" + std::to_string(*outer) +
                               ", expected a normal fp32 number");
  }
  Nvfp4Matrix result;
  result.weight.assign(weight.begin(), weight.end());
  result.weight_scale.resize(blocks.size());
  result.weight_scale_2 = std::ldexp(1.0f, *outer);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    int chosen = blocks[b].all_zero() ? 0 : kLargestE4m3Exponent + 1;
    int chosen_shift = blocks[b].all_zero() ? 0 : kMaxShift + 1;
    if (!blocks[b].all_zero()) {
      for_each_exponent(blocks[b], [&](int exponent, int shift) {
        const int inner = exponent - *outer;
        if (inner < kSmallestE4m3Exponent || inner > kLargestE4m3Exponent) return;
        if (std::abs(shift) < std::abs(chosen_shift)) {
          chosen = inner;
          chosen_shift = shift;
        }
      });
    }
    result.weight_scale[b] = static_cast<std::byte>(float_to_e4m3(std::ldexp(1.0f, chosen)));
    if (chosen_shift == 0) continue;
    for (std::size_t i = 0; i < kNvfp4Columns / 2; ++i) {
      std::byte& pair = result.weight[b * kNvfp4Columns / 2 + i];
      const auto bits = std::to_integer<std::uint8_t>(pair);
      const std::uint8_t low = *shift_code(bits & 15, chosen_shift);
      const std::uint8_t high = *shift_code(bits >> 4, chosen_shift);
      pair = static_cast<std::byte>(low | high << 4);
    }
  }
  return result;
}

}  // namespace fathom
