#include "server/http/http_connection.h"

#include <boost/asio/write.hpp>

namespace fathom {
namespace {

// A client may send its next requests ahead; beyond this many bytes the connection is read on after the reply only.
constexpr std::size_t kMaxPipelinedBytes = 256 << 10;
// After a refusal the client may still be sending: its bytes are read and dropped for a while, because closing at once
// would reset the connection and lose the reply on its way.
constexpr std::int64_t kLingerMs = 2'000;
constexpr std::size_t kMaxLingerBytes = 64 << 20;

std::string plain_error(int status, std::string_view message) {
  // The parser's messages hold no quotes or control characters.
  std::string body = R"({"error":{"message":")";
  for (const char c : message) {
    if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20) continue;
    body += c;
  }
  body += R"(","type":")";
  body += status == 503 ? "overloaded_error" : "invalid_request_error";
  body += R"(","param":null,"code":null}})";
  std::string out = "HTTP/1.1 " + std::to_string(status) + " ";
  out += http_reason(status);
  out += "\r\nContent-Type: application/json\r\n";
  if (status == 503) out += "Retry-After: 1\r\n";
  out += "Connection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n";
  return out + body;
}

}  // namespace

HttpConnection::HttpConnection(boost::asio::ip::tcp::socket socket, std::shared_ptr<HttpShared> shared)
    : socket_(std::move(socket)), shared_(std::move(shared)), parser_(shared_->options.parse) {
  ++shared_->counts.num_connections;
}

HttpConnection::~HttpConnection() { --shared_->counts.num_connections; }

void HttpConnection::set_phase(Phase phase, std::int64_t limit_ms) {
  phase_ = phase;
  deadline_ = limit_ms < 0 ? Clock::time_point::max() : Clock::now() + std::chrono::milliseconds(limit_ms);
}

void HttpConnection::start() {
  boost::system::error_code ignored;
  socket_.set_option(boost::asio::ip::tcp::no_delay(true), ignored);
  // A client has the header's time for its first byte, and the idle time between requests.
  set_phase(Phase::kIdle, shared_->options.header_timeout_ms);
  read();
}

void HttpConnection::refuse(int status, std::string_view message) { fail(status, message); }

void HttpConnection::read() {
  if (reading_ || closed_ || peer_ended_) return;
  if (phase_ == Phase::kAnswering && in_.size() > kMaxPipelinedBytes) return;
  reading_ = true;
  socket_.async_read_some(boost::asio::buffer(chunk_),
                          [self = shared_from_this()](boost::system::error_code error, std::size_t num_bytes) {
                            self->reading_ = false;
                            if (self->closed_) return;
                            if (error == boost::asio::error::eof) return self->on_read_end();
                            if (error) return self->close();
                            self->on_read(num_bytes);
                          });
}

void HttpConnection::on_read(std::size_t num_bytes) {
  if (phase_ == Phase::kLingering) {
    num_lingered_ += num_bytes;
    if (num_lingered_ > kMaxLingerBytes) return close();
    return read();
  }
  in_.append(chunk_, num_bytes);
  if (phase_ != Phase::kAnswering) parse();
  read();
}

void HttpConnection::on_read_end() {
  peer_ended_ = true;
  // A client that has said all it wants may still read the reply to a quick request; one whose answer is being
  // generated has left.
  const bool reply_is_near =
      phase_ == Phase::kAnswering && exchange_ != nullptr && (exchange_ended_ || !exchange_->wants_gone());
  if (!reply_is_near) close();
}

void HttpConnection::parse() {
  if (in_.empty()) return;
  const std::size_t used = parser_.feed(in_);
  in_.erase(0, used);
  if (phase_ == Phase::kIdle && parser_.begun()) set_phase(Phase::kHeader, shared_->options.header_timeout_ms);
  switch (parser_.state()) {
    case HttpRequestParser::State::kHeader: return;
    case HttpRequestParser::State::kBody:
      if (phase_ == Phase::kHeader) set_phase(Phase::kBody, shared_->options.body_timeout_ms);
      if (!sent_continue_ && parser_.expects_continue()) {
        sent_continue_ = true;
        control_ += "HTTP/1.1 100 Continue\r\n\r\n";
        send_next();
      }
      return;
    case HttpRequestParser::State::kFailed:
      ++shared_->counts.num_bad_requests;
      return fail(parser_.error_status(), parser_.error_message());
    case HttpRequestParser::State::kDone: return dispatch();
  }
}

void HttpConnection::dispatch() {
  set_phase(Phase::kAnswering, -1);
  exchange_ended_ = false;
  exchange_ = std::make_shared<QueuedExchange>(shared_, weak_from_this(), parser_.take_request());
  parser_ = HttpRequestParser(shared_->options.parse);
  sent_continue_ = false;
  ++shared_->counts.num_exchanges;
  // The handler's reference counts on its own: when its last copy goes without a reply, the connection learns it.
  QueuedExchange* const raw = exchange_.get();
  shared_->handler(std::shared_ptr<HttpExchange>(raw, [queued = exchange_](HttpExchange*) { queued->note_dropped(); }));
}

void HttpConnection::fail(int status, std::string_view message) {
  close_after_send_ = true;
  set_phase(Phase::kLingering, kLingerMs);
  control_ += plain_error(status, message);
  send_next();
}

void HttpConnection::flush(const std::shared_ptr<QueuedExchange>& exchange) {
  if (closed_ || exchange != exchange_) return;
  send_next();
}

void HttpConnection::send_next() {
  if (send_in_flight_ || closed_) return;
  if (num_sent_ == sending_.size()) {
    num_sent_ = 0;
    sending_.clear();
    sending_.swap(control_);
    if (sending_.empty() && exchange_ != nullptr && !exchange_ended_) {
      sending_ = exchange_->take_queued(exchange_ended_);
    }
    if (sending_.empty()) {
      if (exchange_ != nullptr && exchange_ended_) finish_exchange();
      if (close_after_send_ && phase_ == Phase::kLingering) linger();
      return;
    }
  }
  send_in_flight_ = true;
  send_progress_ = Clock::now();
  socket_.async_write_some(boost::asio::buffer(sending_.data() + num_sent_, sending_.size() - num_sent_),
                           [self = shared_from_this()](boost::system::error_code error, std::size_t num_bytes) {
                             self->send_in_flight_ = false;
                             self->send_progress_ = Clock::time_point::max();
                             if (self->closed_) return;
                             if (error) return self->close();
                             self->num_sent_ += num_bytes;
                             self->send_next();
                           });
}

void HttpConnection::finish_exchange() {
  const bool keep = exchange_->keep_alive_ && !shared_->draining;
  exchange_.reset();
  --shared_->counts.num_exchanges;
  if (!keep) return linger();
  if (peer_ended_ && in_.empty()) return close();
  set_phase(Phase::kIdle, shared_->options.idle_timeout_ms);
  parse();
  if (phase_ != Phase::kAnswering && peer_ended_) return close();
  read();
}

void HttpConnection::linger() {
  close_after_send_ = false;
  boost::system::error_code ignored;
  socket_.shutdown(boost::asio::ip::tcp::socket::shutdown_send, ignored);
  if (peer_ended_) return close();
  set_phase(Phase::kLingering, kLingerMs);
  in_.clear();
  read();
}

void HttpConnection::check_time(Clock::time_point now) {
  if (closed_) return;
  if (send_progress_ != Clock::time_point::max() &&
      now - send_progress_ > std::chrono::milliseconds(shared_->options.write_stall_timeout_ms)) {
    ++shared_->counts.num_stalled;
    return close();
  }
  if (now < deadline_) return;
  if (phase_ == Phase::kHeader || phase_ == Phase::kBody) {
    ++shared_->counts.num_bad_requests;
    return fail(408,
                phase_ == Phase::kHeader ? "the header did not arrive in time" : "the body did not arrive in time");
  }
  close();
}

void HttpConnection::drain() {
  if (phase_ == Phase::kIdle && in_.empty()) close();
}

void HttpConnection::abandoned() {
  if (phase_ == Phase::kAnswering && !exchange_ended_) close();
}

void HttpConnection::close() {
  if (closed_) return;
  closed_ = true;
  boost::system::error_code ignored;
  socket_.close(ignored);
  if (exchange_ != nullptr) {
    --shared_->counts.num_exchanges;
    const auto exchange = std::move(exchange_);
    exchange->note_gone();
  }
}

}  // namespace fathom
