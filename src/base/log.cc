#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace fathom {
namespace {

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto created = spdlog::stderr_color_mt("fathom");
    created->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
    created->set_level(spdlog::level::warn);
    return created;
  }();
  return *instance;
}

}  // namespace

void set_log_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: logger().set_level(spdlog::level::debug); break;
    case LogLevel::kInfo: logger().set_level(spdlog::level::info); break;
    case LogLevel::kWarning: logger().set_level(spdlog::level::warn); break;
    case LogLevel::kError: logger().set_level(spdlog::level::err); break;
    case LogLevel::kOff: logger().set_level(spdlog::level::off); break;
  }
}

bool set_log_level(std::string_view name) {
  if (name == "debug")
    set_log_level(LogLevel::kDebug);
  else if (name == "info")
    set_log_level(LogLevel::kInfo);
  else if (name == "warning")
    set_log_level(LogLevel::kWarning);
  else if (name == "error")
    set_log_level(LogLevel::kError);
  else if (name == "off")
    set_log_level(LogLevel::kOff);
  else
    return false;
  return true;
}

// Messages may hold user bytes: they are data ("{}"), never a format string.
void log_debug(std::string_view message) { logger().debug("{}", message); }
void log_info(std::string_view message) { logger().info("{}", message); }
void log_warning(std::string_view message) { logger().warn("{}", message); }
void log_error(std::string_view message) { logger().error("{}", message); }

}  // namespace fathom
