#include "tensor/dtype.h"

#include <array>
#include <utility>

namespace fathom {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 16> kNames = {{
    {DType::kBool, "BOOL"},
    {DType::kU8, "U8"},
    {DType::kI8, "I8"},
    {DType::kI16, "I16"},
    {DType::kI32, "I32"},
    {DType::kI64, "I64"},
    {DType::kU16, "U16"},
    {DType::kU32, "U32"},
    {DType::kU64, "U64"},
    {DType::kF8E4M3, "F8_E4M3"},
    {DType::kF8E5M2, "F8_E5M2"},
    {DType::kF8E8M0, "F8_E8M0"},
    {DType::kF16, "F16"},
    {DType::kBF16, "BF16"},
    {DType::kF32, "F32"},
    {DType::kF64, "F64"},
}};

}  // namespace

std::string_view dtype_name(DType dtype) {
  for (const auto& [value, name] : kNames) {
    if (value == dtype) return name;
  }
  return "?";
}

std::optional<DType> parse_dtype(std::string_view name) {
  for (const auto& [value, candidate] : kNames) {
    if (candidate == name) return value;
  }
  return std::nullopt;
}

}  // namespace fathom
