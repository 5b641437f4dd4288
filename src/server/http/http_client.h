// A blocking HTTP/1.1 client over one kept-alive connection, for tests and `fathom bench serve`. Loopback and the like:
// no TLS, no redirects.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "server/http/http_message.h"

namespace fathom {

struct HttpClientReply {
  int status = 0;
  HttpHeaders headers;  // names in lower case
  std::string body;     // empty when on_data took it

  std::string_view header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return value;
    }
    return {};
  }
};

class HttpClient {
 public:
  HttpClient(std::string host, std::uint16_t port) : host_(std::move(host)), port_(port) {}
  ~HttpClient() { close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Each piece of the body as it arrives; false stops reading and closes the connection.
  using OnData = std::function<bool(std::string_view)>;

  // Sends and reads one exchange; connects first when needed, and once more when a kept connection turns out closed.
  Result<HttpClientReply> request(std::string_view method, std::string_view path, std::string_view body = {},
                                  const HttpHeaders& headers = {}, const OnData& on_data = {});

  // The pieces, for tests of unusual clients.
  Status connect();
  Status send_raw(std::string_view bytes);
  Result<HttpClientReply> read_reply(const OnData& on_data = {});
  // True when the server closes within the time; what it sends before is dropped.
  bool wait_closed(std::chrono::milliseconds limit);
  void close();
  // Closes with a reset, as a killed process would with unread data.
  void reset();
  int descriptor() const { return socket_; }
  void set_timeout(std::chrono::milliseconds limit) { timeout_ = limit; }

 private:
  Status fill();

  std::string host_;
  std::uint16_t port_;
  int socket_ = -1;
  std::string in_;
  std::chrono::milliseconds timeout_{120'000};
};

// Splits a server-sent event stream: give() takes any cut of its bytes and calls back for each event with the value of
// its `event:` line (or empty) and its data lines joined. Comments are counted.
class SseReader {
 public:
  using OnEvent = std::function<void(std::string_view event, std::string_view data)>;
  explicit SseReader(OnEvent on_event) : on_event_(std::move(on_event)) {}
  void give(std::string_view bytes);
  int num_comments() const { return num_comments_; }

 private:
  void take_line(std::string_view line);
  OnEvent on_event_;
  std::string line_, event_, data_;
  bool has_data_ = false;
  int num_comments_ = 0;
};

}  // namespace fathom
