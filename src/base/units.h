// Small integer arithmetic that formats and layouts are written in.
#pragma once

#include <cstdint>
#include <string>

namespace fathom {

constexpr std::int64_t kKiB = 1024;
constexpr std::int64_t kMiB = 1024 * kKiB;
constexpr std::int64_t kGiB = 1024 * kMiB;

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t multiple) { return ceil_div(a, multiple) * multiple; }

// "26.0 MB", "148.6 GiB"-style text in decimal units, three significant digits.
std::string format_bytes(std::int64_t bytes);

}  // namespace fathom
