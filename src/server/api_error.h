// What a client is told when its request is not answered, in the form of the API it speaks.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "server/http/http_message.h"

namespace fathom {

// OpenAI's form also serves the native routes.
enum class Dialect { kOpenAi, kAnthropic };

struct ApiError {
  int status = 400;
  std::string message;
  std::string param;            // the field at fault; empty: null
  std::string code;             // "model_not_found", ...; empty: null
  int retry_after_seconds = 0;  // > 0: as a header
};

ApiError bad_field(std::string param, std::string message);
// 429: a bound on requests or tokens is reached.
ApiError too_many(std::string message, int retry_after_seconds = 1);
// 503: loading, draining, or the device is gone.
ApiError not_available(std::string message, int retry_after_seconds = 5);

// A failure of the engine or of a text room. Its message starts with "field: " where a field is at fault.
ApiError error_of(const Status& status);

// "invalid_request_error", ... by HTTP status.
std::string_view error_type(int status, Dialect dialect);

// {"error": {...}} or {"type": "error", "error": {...}, "request_id": ...}.
std::string error_json(const ApiError& error, Dialect dialect, std::string_view request_id);
HttpReply error_reply(const ApiError& error, Dialect dialect, std::string_view request_id);

}  // namespace fathom
