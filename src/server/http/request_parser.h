// HTTP/1.x requests out of a byte stream, within limits. No socket here: the fuzz target feeds it directly.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "server/http/http_message.h"

namespace fathom {

struct HttpParseLimits {
  std::size_t max_header_bytes = 32 << 10;
  std::size_t max_body_bytes = 32 << 20;
};

class HttpRequestParser {
 public:
  enum class State {
    kHeader,  // the header is not complete
    kBody,    // the header is complete, the body is not
    kDone,    // take_request() has it
    kFailed,  // this stream cannot be read on; see error_status()
  };

  explicit HttpRequestParser(const HttpParseLimits& limits);
  ~HttpRequestParser();
  HttpRequestParser(HttpRequestParser&&) noexcept;
  HttpRequestParser& operator=(HttpRequestParser&&) noexcept;

  // Reads from the start of `bytes` what belongs to this request; returns how many bytes were used. Unused bytes must
  // be given again, with more behind them (header) or to the next parser (pipelined requests).
  std::size_t feed(std::string_view bytes);
  State state() const;
  // False: nothing but line ends have come, which belong to no request.
  bool begun() const;

  // kFailed: the HTTP status to answer (400, 413, 431), and why.
  int error_status() const;
  const std::string& error_message() const;

  // kBody: the client waits for "100 Continue" before it sends the body.
  bool expects_continue() const;

  // kDone, once.
  HttpRequest take_request();

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace fathom
