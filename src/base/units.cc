#include "base/units.h"

#include <cmath>
#include <cstdio>

namespace fathom {

std::string format_bytes(std::int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (std::fabs(value) >= 1000.0 && unit < 5) {
    value /= 1000.0;
    ++unit;
  }
  const int digits = unit == 0 || std::fabs(value) >= 100 ? 0 : (std::fabs(value) >= 10 ? 1 : 2);
  char text[32];
  std::snprintf(text, sizeof text, "%.*f %s", digits, value, kUnits[unit]);
  return text;
}

}  // namespace fathom
