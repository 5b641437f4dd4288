#include "profile/format.h"

#include <cmath>
#include <cstdio>

namespace fathom {
namespace {

std::string print(const char* pattern, double value) {
  char buffer[352];  // the longest double in %f
  std::snprintf(buffer, sizeof buffer, pattern, value);
  return buffer;
}

// "+0.0" for what rounds to nothing from below.
std::string print_signed(const char* pattern, double value) {
  std::string text = print(pattern, value);
  const bool is_zero = text.find_first_of("123456789") == std::string::npos;
  if (is_zero && text.starts_with('-')) text[0] = '+';
  return text;
}

}  // namespace

std::string format_time_us(double us) {
  const double size = std::fabs(us);
  if (size >= 1e6) return print("%.3f s", us / 1e6);
  if (size >= 1e3) return print("%.3f ms", us / 1e3);
  return print("%.1f us", us);
}

std::string format_tick_us(double us) {
  const double size = std::fabs(us);
  if (size >= 1e6) return print("%g s", us / 1e6);
  if (size >= 1e3) return print("%g ms", us / 1e3);
  return print("%g us", us);
}

std::string format_signed_ms(double us) { return print_signed("%+.4f", us / 1e3); }
std::string format_ms(double us) { return print("%.4f", us / 1e3); }
std::string format_signed_percent(double percent) { return print_signed("%+.1f %%", percent); }

std::string format_significant(double value) {
  const double size = std::fabs(value);
  if (size >= 1000 || (value == std::round(value) && size < 1e6)) return print("%.0f", value);
  if (size >= 100) return print("%.1f", value);
  return print("%.4g", value);
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

}  // namespace fathom
