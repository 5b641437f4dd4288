// Logging behind one header of ours: call sites see neither the logging nor the formatting library.
#pragma once

#include <string_view>

namespace fathom {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// Default: kWarning, to stderr. `name` as in "debug", "info", "warning", "error", "off"; false if unknown.
void set_log_level(LogLevel level);
bool set_log_level(std::string_view name);

void log_debug(std::string_view message);
void log_info(std::string_view message);
void log_warning(std::string_view message);
void log_error(std::string_view message);

}  // namespace fathom
