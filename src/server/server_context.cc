#include "server/server_context.h"

#include <random>

namespace fathom {

void RouteCall::reply_json(std::string body) const { exchange->reply({200, "application/json", std::move(body), {}}); }

void RouteCall::reply_error(const ApiError& error) const {
  if (error.status == 429 || error.status == 503) {
    ++server->metrics.num_refused;
  }
  if (error.status < 500) ++server->metrics.num_client_errors;
  exchange->reply(error_reply(error, dialect, id));
}

std::string make_id(std::string_view prefix) {
  thread_local std::mt19937_64 engine{std::random_device{}()};
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out(prefix);
  for (int word = 0; word < 2; ++word) {
    std::uint64_t bits = engine();
    for (int i = 0; i < 12; ++i, bits >>= 4) out += kHex[bits & 15];
  }
  return out;
}

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace fathom
