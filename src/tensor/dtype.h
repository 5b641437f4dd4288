// Element types, with safetensors' names for them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace fathom {

enum class DType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kI16,
  kI32,
  kI64,
  kU16,
  kU32,
  kU64,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kF16,
  kBF16,
  kF32,
  kF64,
};

constexpr std::int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
    case DType::kI8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kF8E8M0: return 1;
    case DType::kI16:
    case DType::kU16:
    case DType::kF16:
    case DType::kBF16: return 2;
    case DType::kI32:
    case DType::kU32:
    case DType::kF32: return 4;
    case DType::kI64:
    case DType::kU64:
    case DType::kF64: return 8;
  }
  return 0;
}

// "BF16", "F8_E4M3", ...: the spelling of safetensors headers.
std::string_view dtype_name(DType dtype);
std::optional<DType> parse_dtype(std::string_view name);

}  // namespace fathom
