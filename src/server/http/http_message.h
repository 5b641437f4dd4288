// An HTTP request and a whole reply, free of any HTTP library.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fathom {

struct HttpRequest {
  std::string method;  // as sent: "GET"
  std::string path;    // without the query; percent escapes are kept as sent (a model's name may have some)
  std::string query;   // after '?', or empty
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case, in the order sent
  std::string body;
  bool keep_alive = true;
  bool http_1_0 = false;

  // The first header of that (lower-case) name, or empty.
  std::string_view header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return value;
    }
    return {};
  }
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;  // further ones; names and values without CR, LF
};

// "OK", "Bad Request", ...
std::string_view http_reason(int status);

}  // namespace fathom
