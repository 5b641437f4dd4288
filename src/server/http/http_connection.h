// One client connection. Private to this folder; everything runs on the I/O thread unless it says otherwise.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "server/http/http_server.h"

namespace fathom {

class HttpConnection;

// What the connections share. Exchanges keep it alive beyond the server, so that a late reply finds its queue.
struct HttpShared {
  boost::asio::io_context io{1};
  HttpServerOptions options;
  HttpHandler handler;
  HttpServerCounts counts;
  bool draining = false;  // I/O thread
};

// The reply side of one request. Any thread writes into `queue_`; the I/O thread takes it out.
class QueuedExchange : public HttpExchange, public std::enable_shared_from_this<QueuedExchange> {
 public:
  QueuedExchange(std::shared_ptr<HttpShared> shared, std::weak_ptr<HttpConnection> connection, HttpRequest request);

  const HttpRequest& request() const override { return request_; }
  void add_header(std::string name, std::string value) override;
  void reply(HttpReply reply) override;
  void start_stream(int status, std::string_view content_type) override;
  void write(std::string_view data) override;
  void end() override;
  std::size_t num_unsent_bytes() const override;
  bool gone() const override { return gone_.load(std::memory_order_relaxed); }
  void on_gone(std::function<void()> callback) override;
  void on_drained(std::function<void()> callback) override;

 private:
  friend class HttpConnection;
  enum class Reply { kNone, kStream, kEnded };

  void append_head(int status, std::string_view content_type, const HttpHeaders& more, std::optional<std::size_t> size);
  void append_chunk(std::string_view data);
  void schedule_flush();
  // I/O thread. Everything queued, to be sent; `ended` is the in-band end marker. When nothing is queued, what was
  // taken before has been sent.
  std::string take_queued(bool& ended);
  bool wants_gone() const;
  std::pair<std::function<void()>, std::function<void()>> take_callbacks();
  void note_gone();
  // Nobody can answer any more.
  void note_dropped();

  std::shared_ptr<HttpShared> shared_;
  std::weak_ptr<HttpConnection> connection_;
  HttpRequest request_;
  bool keep_alive_;  // this reply keeps the connection
  bool chunked_;
  bool head_only_;  // HEAD: no body follows

  std::atomic<bool> gone_{false};
  mutable std::mutex mutex_;
  HttpHeaders headers_;
  Reply reply_ = Reply::kNone;
  std::string queue_;
  std::size_t num_taken_bytes_ = 0;  // with the I/O thread, not sent yet
  bool flush_scheduled_ = false;
  std::function<void()> on_gone_;
  std::function<void()> on_drained_;
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Clock = std::chrono::steady_clock;

  HttpConnection(boost::asio::ip::tcp::socket socket, std::shared_ptr<HttpShared> shared);
  ~HttpConnection();

  void start();
  // Answers at once and closes: no request is read.
  void refuse(int status, std::string_view message);
  // Closes what its time limits forbid; called a few times a second.
  void check_time(Clock::time_point now);
  // The server drains: an idle connection closes, a busy one after its reply.
  void drain();
  void close();
  bool closed() const { return closed_; }

  // A queued exchange has data.
  void flush(const std::shared_ptr<QueuedExchange>& exchange);
  // The exchange was dropped without an end: nothing sensible can follow on this connection.
  void abandoned();

 private:
  enum class Phase { kIdle, kHeader, kBody, kAnswering, kLingering };

  void read();
  void on_read(std::size_t num_bytes);
  void on_read_end();
  void parse();
  void dispatch();
  void fail(int status, std::string_view message);
  void send_next();
  void finish_exchange();
  void linger();
  void set_phase(Phase phase, std::int64_t limit_ms);

  boost::asio::ip::tcp::socket socket_;
  std::shared_ptr<HttpShared> shared_;
  HttpRequestParser parser_;
  Phase phase_ = Phase::kIdle;
  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::time_point send_progress_ = Clock::time_point::max();

  char chunk_[16 << 10];
  std::string in_;  // received, not yet parsed
  bool reading_ = false;
  bool peer_ended_ = false;
  bool sent_continue_ = false;
  bool closed_ = false;

  std::shared_ptr<QueuedExchange> exchange_;
  std::string control_;  // to be sent before anything of the exchange: 100 Continue, refusals
  std::string sending_;  // what the socket works on; not touched while it does
  std::size_t num_sent_ = 0;
  bool send_in_flight_ = false;
  bool exchange_ended_ = false;  // the end marker has been taken out of the queue
  bool close_after_send_ = false;
  std::size_t num_lingered_ = 0;
};

}  // namespace fathom
