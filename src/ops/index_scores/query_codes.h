// A row's queries as integers: what the products on packed keys read.
#pragma once

#include <cstdint>

namespace fathom {

// 32 channels of one head. An e2m1 value doubled is an integer of at most 12.
struct QueryCodes {
  // Bytes of word 2 i: channels 8 i + {0, 2, 4, 6}; of word 2 i + 1: 8 i + {1, 3, 5, 7}.
  std::int32_t words[8];
  std::int32_t start;  // low half: what the offset of the keys' codes adds, negated
  float scale;         // of a product of two doubled values, without the key's scale
};

}  // namespace fathom
