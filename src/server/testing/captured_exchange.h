// Takes a route's reply in place of a socket.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "server/http/http_server.h"

namespace fathom {

class CapturedExchange : public HttpExchange {
 public:
  explicit CapturedExchange(HttpRequest request) : request_(std::move(request)) {}

  const HttpRequest& request() const override { return request_; }
  void add_header(std::string, std::string) override {}
  void reply(HttpReply reply) override { finish(reply.status, std::move(reply.body)); }
  void start_stream(int status, std::string_view) override { status_ = status; }
  void write(std::string_view) override {}
  void end() override { finish(status_, {}); }
  std::size_t num_unsent_bytes() const override { return 0; }
  bool gone() const override { return false; }
  void on_gone(std::function<void()>) override {}
  void on_drained(std::function<void()>) override {}

  // The status, once the reply is whole; nothing when it is not by then.
  std::optional<int> wait(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, limit, [this] { return done_; })) return std::nullopt;
    return status_;
  }
  // Of a reply that was not streamed. After wait().
  const std::string& body() const { return body_; }

 private:
  void finish(int status, std::string body) {
    const std::lock_guard lock(mutex_);
    status_ = status;
    body_ = std::move(body);
    done_ = true;
    changed_.notify_all();
  }

  HttpRequest request_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int status_ = 0;
  std::string body_;
  bool done_ = false;
};

}  // namespace fathom
