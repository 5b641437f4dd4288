// Rows that move on the device, by lists that lie there too: a captured step moves other rows at each replay.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fathom {

// Row i of `count` goes from place from_rows[i] to place to_rows[i]: of `from`, or where from_rows[i] is negative,
// place -1 - from_rows[i] of `also_from`. Rows with a negative to_rows[i] stay; null: row i goes to place i. No row is
// read that another one is written to. All of it lies on the device; row_bytes is a multiple of 16.
struct RowCopies {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  const std::byte* also_from = nullptr;
  const std::int32_t* from_rows = nullptr;
  const std::int32_t* to_rows = nullptr;
  std::int32_t count = 0;
  std::int64_t row_bytes = 0;
};

}  // namespace fathom
