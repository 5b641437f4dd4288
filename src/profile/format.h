// Figures and text as reports, comparisons and pages print them.
#pragma once

#include <string>
#include <string_view>

namespace fathom {

// "1.234 ms", "56.7 us": a time in the unit that reads well.
std::string format_time_us(double us);
// "2 ms", "+250 us": a round time on an axis, no more digits than it has.
std::string format_tick_us(double us);
// "+0.310" or "-0.505": milliseconds with a sign.
std::string format_signed_ms(double us);
std::string format_ms(double us);
// "+4.1 %": already in percent.
std::string format_signed_percent(double percent);
// "1.23e+04"-free short form: up to four significant digits.
std::string format_significant(double value);

// Text inside HTML or a quoted attribute.
std::string escape_html(std::string_view text);

}  // namespace fathom
