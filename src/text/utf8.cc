#include "text/utf8.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace fathom {
namespace {

// The range the second byte must lie in narrows for E0, ED, F0 and F4 (overlong forms, surrogates, beyond U+10FFFF).
struct SecondByteRange {
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
};

SecondByteRange second_byte_range(unsigned char lead) {
  switch (lead) {
    case 0xE0: return {0xA0, 0xBF};
    case 0xED: return {0x80, 0x9F};
    case 0xF0: return {0x90, 0xBF};
    case 0xF4: return {0x80, 0x8F};
    default: return {};
  }
}

// Bytes of the sequence that `lead` opens; 0 for a byte that opens none.
std::size_t sequence_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  return lead < 0xF5 ? 4 : 0;
}

}  // namespace

CodePoint decode_code_point(std::string_view text) {
  constexpr unsigned char kLeadBits[5] = {0, 0x7F, 0x1F, 0x0F, 0x07};
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t length = sequence_length(byte(0));
  if (length == 0) return {0xFFFD, 1, false, false};
  char32_t value = byte(0) & kLeadBits[length];
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {0xFFFD, static_cast<std::uint8_t>(i), false, true};
    const SecondByteRange range = i == 1 ? second_byte_range(byte(0)) : SecondByteRange{};
    if (byte(i) < range.low || byte(i) > range.high) return {0xFFFD, static_cast<std::uint8_t>(i), false, false};
    value = value << 6 | (byte(i) & 0x3F);
  }
  return {value, static_cast<std::uint8_t>(length), true, false};
}

void append_utf8(char32_t code_point, std::string& out) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | (code_point >> shift & 0x3F)); };
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += static_cast<char>(0xC0 | code_point >> 6);
    tail(0);
  } else if (code_point < 0x10000) {
    out += static_cast<char>(0xE0 | code_point >> 12);
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | code_point >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const CodePoint c = decode_code_point(text);
    if (!c.valid) return false;
    text.remove_prefix(c.length);
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  Utf8Stream stream;
  stream.push(text, out);
  stream.flush(out);
  return out;
}

void Utf8Stream::push(std::string_view bytes, std::string& out) {
  while (num_held_ > 0 && !bytes.empty()) {
    // The held bytes are a correct beginning: one more byte completes it, extends it, or shows it to be ill-formed.
    held_[num_held_] = bytes[0];
    const CodePoint c = decode_code_point({held_, num_held_ + 1});
    if (!c.valid && !c.cut) {
      out += kReplacementUtf8;
      num_held_ = 0;  // the new byte starts afresh
      break;
    }
    ++num_held_;
    bytes.remove_prefix(1);
    if (c.valid) {
      out.append(held_, num_held_);
      num_held_ = 0;
    }
  }
  while (!bytes.empty()) {
    const CodePoint c = decode_code_point(bytes);
    if (c.cut) {
      num_held_ = bytes.size();
      std::memcpy(held_, bytes.data(), num_held_);
      return;
    }
    if (c.valid) {
      out += bytes.substr(0, c.length);
    } else {
      out += kReplacementUtf8;
    }
    bytes.remove_prefix(c.length);
  }
}

void Utf8Stream::flush(std::string& out) {
  if (num_held_ > 0) out += kReplacementUtf8;
  num_held_ = 0;
}

}  // namespace fathom
