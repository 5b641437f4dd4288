// The HTTP/1.1 server: one I/O thread that owns every socket, and exchanges that any thread may answer.
//
// Limits: header and body sizes, time to send a header (slow loris) and a body, idle time, time without progress while
// a reply waits to be read. One request of a connection is answered at a time; pipelined ones wait in order. A read is
// always outstanding, so a client that leaves is seen at once, also while nothing is being sent.
//
// A client that closes its sending side counts as gone when the exchange has asked to know (on_gone).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "server/http/http_message.h"
#include "server/http/request_parser.h"

namespace fathom {

class HttpConnection;

// One request and its reply. Every method may be called from any thread; all of them are harmless once the client has
// gone. Exactly one of reply() or start_stream()...end() answers it; an exchange that is dropped unanswered closes its
// connection.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual const HttpRequest& request() const = 0;
  // Headers that every reply of this exchange carries; before reply() or start_stream(), not thread-safe with them.
  virtual void add_header(std::string name, std::string value) = 0;

  virtual void reply(HttpReply reply) = 0;
  // A streamed reply (chunked; to HTTP/1.0 until close). The end is a token in the same queue as the data, so nothing
  // written before it is lost.
  virtual void start_stream(int status, std::string_view content_type) = 0;
  virtual void write(std::string_view data) = 0;
  virtual void end() = 0;

  // Bytes written here that the kernel has not taken yet.
  virtual std::size_t num_unsent_bytes() const = 0;
  virtual bool gone() const = 0;
  // Called once, on the I/O thread, when the client leaves (or at once, when it has). Must not block.
  virtual void on_gone(std::function<void()> callback) = 0;
  // Called on the I/O thread each time all written bytes have been taken by the kernel. Must not block.
  virtual void on_drained(std::function<void()> callback) = 0;
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // an address or a name
  std::uint16_t port = 0;          // 0: any free one
  HttpParseLimits parse;
  std::size_t max_connections = 4096;            // beyond: 503 and close
  std::int64_t header_timeout_ms = 10'000;       // first byte to end of header
  std::int64_t body_timeout_ms = 120'000;        // end of header to end of body
  std::int64_t idle_timeout_ms = 75'000;         // between requests
  std::int64_t write_stall_timeout_ms = 30'000;  // a reply of which nothing could be sent
};

struct HttpServerCounts {
  std::atomic<std::int64_t> num_connections{0};  // open now
  std::atomic<std::int64_t> num_accepted{0};
  std::atomic<std::int64_t> num_bad_requests{0};  // refused by the parser or by a time limit
  std::atomic<std::int64_t> num_exchanges{0};     // being answered now
  std::atomic<std::int64_t> num_stalled{0};       // closed because the client did not read
};

// Called on the I/O thread for each request: must not block.
using HttpHandler = std::function<void(std::shared_ptr<HttpExchange>)>;

class HttpServer {
 public:
  virtual ~HttpServer() = default;  // stops

  virtual std::uint16_t port() const = 0;
  virtual const HttpServerCounts& counts() const = 0;
  // From now on connections close after their reply; idle ones close at once. New ones are still answered.
  virtual void begin_drain() = 0;
  // Closes everything and joins the I/O thread. Idempotent.
  virtual void stop() = 0;
};

// Binds, listens and starts. Failure: the address cannot be bound (named, with the system's reason).
Result<std::unique_ptr<HttpServer>> open_http_server(const HttpServerOptions& options, HttpHandler handler);

}  // namespace fathom
