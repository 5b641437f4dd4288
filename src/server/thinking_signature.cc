#include "server/thinking_signature.h"

#include <algorithm>
#include <cstdint>

#include "text/utf8.h"

namespace fathom {
namespace {

constexpr std::string_view kMark = "fathom1.";
constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string thinking_signature(std::string_view thinking) {
  std::string out(kMark);
  for (std::size_t i = 0; i < thinking.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, thinking.size() - i);
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      bits = bits << 8 | (k < count ? static_cast<unsigned char>(thinking[i + k]) : 0u);
    }
    for (std::size_t k = 0; k < 4; ++k) out += k <= count ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

std::optional<std::string> thinking_of_signature(std::string_view signature) {
  if (!signature.starts_with(kMark)) return std::nullopt;
  signature.remove_prefix(kMark.size());
  while (signature.ends_with('=')) signature.remove_suffix(1);
  std::string out;
  std::uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : signature) {
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    out += static_cast<char>(bits >> num_bits & 255);
  }
  if (!is_valid_utf8(out)) return std::nullopt;
  return out;
}

}  // namespace fathom
