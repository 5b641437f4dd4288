// Which part of the model an operation belongs to: one table, read by reports and comparisons.
#pragma once

#include <span>
#include <string_view>

namespace fathom {

struct OperationCategory {
  std::string_view operation;  // an op_name, or a name that collectors give to work outside operations
  std::string_view category;
};

// Every operation of ops/op_kind.h; then "copy" (memcpy and memset nodes), "cast" (dtype changes that are kernels
// of their own) and "kernel" (launched outside any operation).
std::span<const OperationCategory> operation_categories();

// "other" for a name that the table does not have.
std::string_view category_of(std::string_view operation);

}  // namespace fathom
