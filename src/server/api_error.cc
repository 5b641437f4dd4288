#include "server/api_error.h"

#include <algorithm>

#include "server/json_writer.h"
#include "text/utf8.h"

namespace fathom {
namespace {

// "messages[2].content: found ..." -> "messages[2].content". Field names hold no spaces.
std::string leading_field(std::string_view message) {
  const std::size_t colon = message.find(": ");
  if (colon == std::string_view::npos || colon == 0) return {};
  const std::string_view field = message.substr(0, colon);
  const bool is_field = std::all_of(field.begin(), field.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '[' || c == ']' || c == '-';
  });
  return is_field ? std::string(field) : std::string{};
}

}  // namespace

ApiError bad_field(std::string param, std::string message) {
  ApiError error;
  error.message = param.empty() ? std::move(message) : param + ": " + message;
  error.param = std::move(param);
  return error;
}

ApiError too_many(std::string message, int retry_after_seconds) {
  return {429, std::move(message), {}, "rate_limit_exceeded", retry_after_seconds};
}

ApiError not_available(std::string message, int retry_after_seconds) {
  return {503, std::move(message), {}, "unavailable", retry_after_seconds};
}

ApiError error_of(const Status& status) {
  switch (status.code()) {
    case StatusCode::kResourceExhausted: return too_many(status.message());
    case StatusCode::kUnavailable:
    case StatusCode::kInternal:
    case StatusCode::kIoError:
    case StatusCode::kDataLoss: return not_available(status.message());
    default: break;
  }
  ApiError error;
  error.message = status.message();
  error.param = leading_field(status.message());
  return error;
}

std::string_view error_type(int status, Dialect dialect) {
  switch (status) {
    case 401: return dialect == Dialect::kAnthropic ? "authentication_error" : "invalid_request_error";
    case 403: return "permission_error";
    case 404: return dialect == Dialect::kAnthropic ? "not_found_error" : "invalid_request_error";
    case 408: return "timeout_error";
    case 413: return dialect == Dialect::kAnthropic ? "request_too_large" : "invalid_request_error";
    case 429: return "rate_limit_error";
    case 501: return "not_implemented_error";
    case 503: return "overloaded_error";
    default: break;
  }
  if (status < 500) return "invalid_request_error";
  return dialect == Dialect::kAnthropic ? "api_error" : "server_error";
}

std::string error_json(const ApiError& error, Dialect dialect, std::string_view request_id) {
  std::string out;
  JsonWriter json(out);
  json.begin_object();
  if (dialect == Dialect::kAnthropic) json.member("type", "error");
  json.key("error").begin_object();
  json.member("type", error_type(error.status, dialect));
  json.member("message", replace_invalid_utf8(error.message));
  json.member_or_null("param", replace_invalid_utf8(error.param));
  json.member_or_null("code", error.code);
  json.end_object();
  if (dialect == Dialect::kAnthropic) json.member("request_id", request_id);
  json.end_object();
  return out;
}

HttpReply error_reply(const ApiError& error, Dialect dialect, std::string_view request_id) {
  HttpReply reply;
  reply.status = error.status;
  reply.body = error_json(error, dialect, request_id);
  if (error.retry_after_seconds > 0) {
    reply.headers.emplace_back("Retry-After", std::to_string(error.retry_after_seconds));
  }
  if (error.status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

}  // namespace fathom
