#include <boost/asio/post.hpp>
#include <utility>

#include "server/http/http_connection.h"

namespace fathom {
namespace {

bool is_head(const HttpRequest& request) { return request.method == "HEAD"; }

}  // namespace

QueuedExchange::QueuedExchange(std::shared_ptr<HttpShared> shared, std::weak_ptr<HttpConnection> connection,
                               HttpRequest request)
    : shared_(std::move(shared)),
      connection_(std::move(connection)),
      request_(std::move(request)),
      keep_alive_(request_.keep_alive && !shared_->draining),
      chunked_(!request_.http_1_0),
      head_only_(is_head(request_)) {}

void QueuedExchange::note_dropped() {
  {
    const std::lock_guard lock(mutex_);
    if (reply_ == Reply::kEnded) return;
  }
  boost::asio::post(shared_->io, [connection = connection_] {
    if (const auto alive = connection.lock()) alive->abandoned();
  });
}

void QueuedExchange::add_header(std::string name, std::string value) {
  const std::lock_guard lock(mutex_);
  headers_.emplace_back(std::move(name), std::move(value));
}

void QueuedExchange::append_head(int status, std::string_view content_type, const HttpHeaders& more,
                                 std::optional<std::size_t> size) {
  queue_ += "HTTP/1.1 " + std::to_string(status) + " ";
  queue_ += http_reason(status);
  queue_ += "\r\n";
  const auto append = [this](std::string_view name, std::string_view value) {
    queue_ += name;
    queue_ += ": ";
    queue_ += value;
    queue_ += "\r\n";
  };
  if (!content_type.empty()) append("Content-Type", content_type);
  for (const auto& [name, value] : headers_) append(name, value);
  for (const auto& [name, value] : more) append(name, value);
  if (size) {
    append("Content-Length", std::to_string(*size));
  } else if (chunked_) {
    append("Transfer-Encoding", "chunked");
  } else {
    keep_alive_ = false;
  }
  append("Connection", keep_alive_ ? "keep-alive" : "close");
  queue_ += "\r\n";
}

void QueuedExchange::append_chunk(std::string_view data) {
  if (data.empty() || head_only_) return;
  if (!chunked_) {
    queue_ += data;
    return;
  }
  static constexpr char kHex[] = "0123456789abcdef";
  char digits[16];
  int num_digits = 0;
  for (std::size_t n = data.size(); n != 0; n >>= 4) digits[num_digits++] = kHex[n & 15];
  while (num_digits > 0) queue_ += digits[--num_digits];
  queue_ += "\r\n";
  queue_ += data;
  queue_ += "\r\n";
}

// Who has answered wants to know no more; callbacks may hold what holds this. Destroyed outside the lock.
std::pair<std::function<void()>, std::function<void()>> QueuedExchange::take_callbacks() {
  return {std::exchange(on_gone_, nullptr), std::exchange(on_drained_, nullptr)};
}

void QueuedExchange::reply(HttpReply reply) {
  std::pair<std::function<void()>, std::function<void()>> callbacks;
  {
    const std::lock_guard lock(mutex_);
    if (reply_ != Reply::kNone) return;
    append_head(reply.status, reply.content_type, reply.headers, reply.body.size());
    if (!head_only_) queue_ += reply.body;
    reply_ = Reply::kEnded;
    callbacks = take_callbacks();
  }
  schedule_flush();
}

void QueuedExchange::start_stream(int status, std::string_view content_type) {
  {
    const std::lock_guard lock(mutex_);
    if (reply_ != Reply::kNone) return;
    append_head(status, content_type, {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}, std::nullopt);
    reply_ = Reply::kStream;
  }
  schedule_flush();
}

void QueuedExchange::write(std::string_view data) {
  if (gone()) return;
  {
    const std::lock_guard lock(mutex_);
    if (reply_ != Reply::kStream) return;
    append_chunk(data);
  }
  schedule_flush();
}

void QueuedExchange::end() {
  std::pair<std::function<void()>, std::function<void()>> callbacks;
  {
    const std::lock_guard lock(mutex_);
    if (reply_ != Reply::kStream) return;
    if (chunked_ && !head_only_) queue_ += "0\r\n\r\n";
    reply_ = Reply::kEnded;
    callbacks = take_callbacks();
  }
  schedule_flush();
}

void QueuedExchange::schedule_flush() {
  {
    const std::lock_guard lock(mutex_);
    if (flush_scheduled_) return;
    flush_scheduled_ = true;
  }
  boost::asio::post(shared_->io, [self = weak_from_this(), connection = connection_] {
    const auto alive = self.lock();
    const auto open = connection.lock();
    if (alive != nullptr && open != nullptr) open->flush(alive);
  });
}

std::string QueuedExchange::take_queued(bool& ended) {
  std::string out;
  std::function<void()> drained;
  {
    const std::lock_guard lock(mutex_);
    flush_scheduled_ = false;
    ended = reply_ == Reply::kEnded;
    out.swap(queue_);
    if (out.empty() && num_taken_bytes_ > 0) drained = on_drained_;
    num_taken_bytes_ = out.size();
  }
  if (drained) drained();
  return out;
}

std::size_t QueuedExchange::num_unsent_bytes() const {
  const std::lock_guard lock(mutex_);
  return queue_.size() + num_taken_bytes_;
}

void QueuedExchange::on_gone(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!gone()) {
      on_gone_ = std::move(callback);
      return;
    }
  }
  callback();
}

void QueuedExchange::on_drained(std::function<void()> callback) {
  const std::lock_guard lock(mutex_);
  on_drained_ = std::move(callback);
}

bool QueuedExchange::wants_gone() const {
  const std::lock_guard lock(mutex_);
  return static_cast<bool>(on_gone_);
}

void QueuedExchange::note_gone() {
  std::function<void()> callback, drained;
  {
    const std::lock_guard lock(mutex_);
    gone_.store(true, std::memory_order_relaxed);
    callback.swap(on_gone_);
    drained.swap(on_drained_);
    queue_ = {};
    num_taken_bytes_ = 0;
  }
  if (callback) callback();
}

}  // namespace fathom
