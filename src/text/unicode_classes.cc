#include "text/unicode_classes.h"

#include <cstddef>
#include <iterator>

namespace fathom {
namespace {

#include "text/unicode_classes_table.inc"

}  // namespace

UnicodeClass unicode_class(char32_t code_point) {
  std::size_t block = code_point >> 7;
  if (block >= std::size(kBlockOf)) block = std::size(kBlockOf) - 1;
  const std::uint8_t pair = kBlocks[kBlockOf[block]][(code_point & 127) >> 1];
  return static_cast<UnicodeClass>(code_point & 1 ? pair >> 4 : pair & 15);
}

}  // namespace fathom
