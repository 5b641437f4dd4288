#include "server/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "server/http/http_client.h"

namespace fathom {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr auto kPatience = 60s;  // for what must come, however busy the machine is

// Answers by path; keeps what it cannot answer at once.
class HttpServerTest : public testing::Test {
 protected:
  void open(HttpServerOptions options = {}) {
    auto opened = open_http_server(options, [this](std::shared_ptr<HttpExchange> exchange) { handle(exchange); });
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    server_ = std::move(*opened);
  }
  HttpClient client() { return HttpClient("127.0.0.1", server_->port()); }

  void handle(std::shared_ptr<HttpExchange> exchange) {
    const std::string& path = exchange->request().path;
    if (path == "/echo") {
      HttpReply reply;
      reply.body = exchange->request().body;
      exchange->reply(std::move(reply));
    } else if (path == "/drop") {
      return;
    } else if (path == "/hold") {
      const std::lock_guard lock(mutex_);
      exchange->on_gone([this] {
        const std::lock_guard inner(mutex_);
        ++num_gone_;
        changed_.notify_all();
      });
      held_.push_back(std::move(exchange));
      changed_.notify_all();
    } else if (path == "/stream") {
      exchange->start_stream(200, "text/event-stream");
      for (int i = 0; i < 100; ++i) exchange->write("data: " + std::to_string(i) + "\n\n");
      exchange->end();
    } else {
      exchange->reply({404, "text/plain", "no", {}});
    }
  }
  std::shared_ptr<HttpExchange> held() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [this] { return !held_.empty(); });
    if (held_.empty()) return nullptr;
    auto first = held_.front();
    held_.erase(held_.begin());
    return first;
  }
  bool wait_gone(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return num_gone_ >= count; });
  }
  void expect_alive() {
    auto c = client();
    const auto reply = c.request("POST", "/echo", "still here");
    ASSERT_TRUE(reply.ok()) << reply.status().message();
    EXPECT_EQ(reply->body, "still here");
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<HttpExchange>> held_;
  int num_gone_ = 0;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersOnOneKeptConnection) {
  open();
  auto c = client();
  for (int i = 0; i < 50; ++i) {
    const auto reply = c.request("POST", "/echo", std::to_string(i));
    ASSERT_TRUE(reply.ok()) << reply.status().message();
    EXPECT_EQ(reply->body, std::to_string(i));
  }
  EXPECT_EQ(server_->counts().num_accepted, 1);
}

TEST_F(HttpServerTest, StreamsEverythingBeforeTheEnd) {
  open();
  auto c = client();
  std::vector<std::string> seen;
  SseReader reader([&](std::string_view, std::string_view data) { seen.emplace_back(data); });
  const auto reply = c.request("GET", "/stream", {}, {}, [&](std::string_view bytes) {
    reader.give(bytes);
    return true;
  });
  ASSERT_TRUE(reply.ok());
  ASSERT_EQ(seen.size(), 100u);
  EXPECT_EQ(seen.back(), "99");
  EXPECT_EQ(reply->header("content-type"), "text/event-stream");
  ASSERT_TRUE(c.request("POST", "/echo", "again").ok());
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  open();
  auto c = client();
  ASSERT_TRUE(c.connect().ok());
  std::string all;
  for (int i = 0; i < 20; ++i) {
    const std::string body = "body " + std::to_string(i);
    all += "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  ASSERT_TRUE(c.send_raw(all).ok());
  for (int i = 0; i < 20; ++i) {
    const auto reply = c.read_reply();
    ASSERT_TRUE(reply.ok()) << reply.status().message();
    EXPECT_EQ(reply->body, "body " + std::to_string(i));
  }
}

TEST_F(HttpServerTest, RefusesWhatIsTooLargeOrNoHttp) {
  HttpServerOptions options;
  options.parse.max_header_bytes = 4096;
  options.parse.max_body_bytes = 100'000;
  open(options);
  const auto status_for = [&](const std::string& bytes) {
    auto c = client();
    EXPECT_TRUE(c.connect().ok());
    (void)c.send_raw(bytes);
    const auto reply = c.read_reply();
    EXPECT_TRUE(reply.ok()) << reply.status().message();
    return reply.ok() ? reply->status : 0;
  };
  EXPECT_EQ(status_for("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100001\r\n\r\n"), 413);
  EXPECT_EQ(status_for("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n20000\r\n" +
                       std::string(0x20000, 'x') + "\r\n0\r\n\r\n"),
            413);
  EXPECT_EQ(status_for("GET /echo HTTP/1.1\r\nA: " + std::string(5000, 'x') + "\r\n\r\n"), 431);
  EXPECT_EQ(status_for("GET /echo HTTP/1.1\r\nA: " + std::string(9000, 'x')), 431);
  EXPECT_EQ(status_for("nonsense\r\n\r\n"), 400);
  EXPECT_EQ(status_for("GET / HTTP/3.7\r\n\r\n"), 400);
  EXPECT_EQ(status_for("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 400);
  EXPECT_EQ(status_for("POST /echo HTTP/1.1\r\nContent-Length: 5x\r\n\r\n"), 400);
  EXPECT_EQ(status_for("POST /echo HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef"), 400);
  EXPECT_EQ(status_for("POST /echo HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nabcde"), 400);
  EXPECT_EQ(status_for("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), 400);
  for (const char* coding : {"gzip, chunked", "identity", "chunked, identity", "xchunked"}) {
    EXPECT_EQ(status_for(std::string("POST /echo HTTP/1.1\r\nTransfer-Encoding: ") + coding +
                         "\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
              400)
        << coding;
  }
  EXPECT_EQ(status_for("GET /echo HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 400);
  expect_alive();
}

TEST_F(HttpServerTest, LineEndsBeforeARequestArePassedOver) {
  open();
  auto c = client();
  ASSERT_TRUE(c.connect().ok());
  const std::string request = "POST /echo HTTP/1.1\r\nContent-Length: 2\r\n\r\nok";
  for (const std::string& bytes : {request + "\r\n", request + "\r", "\n\r\n\r\n" + request + "\r\n" + request}) {
    ASSERT_TRUE(c.send_raw(bytes).ok());
    const auto reply = c.read_reply();
    ASSERT_TRUE(reply.ok()) << reply.status().message();
    EXPECT_EQ(reply->body, "ok");
  }
  ASSERT_TRUE(c.read_reply().ok());
  ASSERT_TRUE(c.send_raw("\n\r\n").ok());  // a line end that stands alone is none
  const auto reply = c.read_reply();
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->status, 400);
}

TEST_F(HttpServerTest, ChunkedBodiesAndExpectContinue) {
  open();
  auto c = client();
  ASSERT_TRUE(c.connect().ok());
  ASSERT_TRUE(
      c.send_raw("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").ok());
  auto reply = c.read_reply();
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->body, "abcde");
  ASSERT_TRUE(c.send_raw("POST /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n").ok());
  std::this_thread::sleep_for(20ms);
  ASSERT_TRUE(c.send_raw("ok").ok());
  reply = c.read_reply();
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->body, "ok");
}

TEST_F(HttpServerTest, SlowHeadersAndBodiesTimeOut) {
  HttpServerOptions options;
  options.header_timeout_ms = 1000;
  options.body_timeout_ms = 1000;
  open(options);
  auto slow = client();
  ASSERT_TRUE(slow.connect().ok());
  // A byte now and then must not extend the time.
  bool refused = false;
  const auto end = std::chrono::steady_clock::now() + kPatience;
  for (int i = 0; !refused && std::chrono::steady_clock::now() < end; ++i) {
    refused = !slow.send_raw(i == 0 ? "GET / HTTP/1.1\r\n" : "a").ok() || slow.wait_closed(30ms);
  }
  EXPECT_TRUE(refused);
  auto body = client();
  ASSERT_TRUE(body.connect().ok());
  ASSERT_TRUE(body.send_raw("POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc").ok());
  const auto reply = body.read_reply();
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->status, 408);
  expect_alive();
}

TEST_F(HttpServerTest, SeesAClientLeaveWhileNothingIsSent) {
  open();
  for (const bool hard : {false, true}) {
    auto c = client();
    ASSERT_TRUE(c.connect().ok());
    ASSERT_TRUE(c.send_raw("GET /hold HTTP/1.1\r\n\r\n").ok());
    const auto exchange = held();
    ASSERT_NE(exchange, nullptr);
    EXPECT_FALSE(exchange->gone());
    hard ? c.reset() : c.close();
    ASSERT_TRUE(wait_gone(hard ? 2 : 1));
    EXPECT_TRUE(exchange->gone());
    exchange->reply({200, "text/plain", "too late", {}});
  }
  expect_alive();
}

TEST_F(HttpServerTest, AReaderThatStallsIsDroppedAndOthersAreNot) {
  HttpServerOptions options;
  options.write_stall_timeout_ms = 3000;
  open(options);
  auto c = client();
  ASSERT_TRUE(c.connect().ok());
  ASSERT_TRUE(c.send_raw("GET /hold HTTP/1.1\r\n\r\n").ok());
  const auto exchange = held();
  ASSERT_NE(exchange, nullptr);
  exchange->start_stream(200, "text/plain");
  const std::string block(1 << 20, 'x');
  for (int i = 0; i < 16; ++i) exchange->write(block);
  // No socket's buffers take all of it.
  EXPECT_GT(exchange->num_unsent_bytes(), 1u << 20);
  expect_alive();
  ASSERT_TRUE(wait_gone(1));
  EXPECT_EQ(exchange->num_unsent_bytes(), 0u);
  EXPECT_EQ(server_->counts().num_stalled, 1);
}

TEST_F(HttpServerTest, TellsWhenAllIsSent) {
  open();
  std::thread reader([this] {
    auto c = client();
    const auto reply = c.request("GET", "/hold");
    EXPECT_TRUE(reply.ok() && reply->body.size() == (4u << 20));
  });
  const auto exchange = held();
  ASSERT_NE(exchange, nullptr);
  std::atomic<int> num_drained{0};
  exchange->on_drained([&] { ++num_drained; });
  exchange->start_stream(200, "text/plain");
  exchange->write(std::string(4 << 20, 'x'));
  for (int i = 0; i < 6000 && (num_drained == 0 || exchange->num_unsent_bytes() > 0); ++i) {
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_GT(num_drained, 0);
  EXPECT_EQ(exchange->num_unsent_bytes(), 0u);
  exchange->end();
  reader.join();
}

TEST_F(HttpServerTest, ADroppedExchangeClosesItsConnection) {
  open();
  auto c = client();
  ASSERT_TRUE(c.connect().ok());
  ASSERT_TRUE(c.send_raw("GET /drop HTTP/1.1\r\n\r\n").ok());
  EXPECT_TRUE(c.wait_closed(kPatience));
}

TEST_F(HttpServerTest, HalfClosedClientStillGetsAQuickReply) {
  open();
  auto c = client();
  ASSERT_TRUE(c.connect().ok());
  ASSERT_TRUE(c.send_raw("POST /echo HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi").ok());
  ::shutdown(c.descriptor(), SHUT_WR);
  const auto reply = c.read_reply();
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->body, "hi");
}

TEST_F(HttpServerTest, Http10AndHead) {
  open();
  auto c = client();
  ASSERT_TRUE(c.connect().ok());
  ASSERT_TRUE(c.send_raw("HEAD /stream HTTP/1.1\r\n\r\nPOST /echo HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi").ok());
  std::string all;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::recv(c.descriptor(), buffer, sizeof buffer, 0)) > 0;) {
    all.append(buffer, static_cast<std::size_t>(n));
  }
  EXPECT_THAT(all, HasSubstr("Transfer-Encoding: chunked"));
  EXPECT_THAT(all, testing::Not(HasSubstr("data: 0")));
  EXPECT_THAT(all, HasSubstr("Connection: close"));
  EXPECT_TRUE(all.ends_with("\r\n\r\nhi"));
}

TEST_F(HttpServerTest, TooManyConnections) {
  HttpServerOptions options;
  options.max_connections = 2;
  open(options);
  auto a = client(), b = client(), c = client();
  ASSERT_TRUE(a.request("POST", "/echo", "a").ok());
  ASSERT_TRUE(b.request("POST", "/echo", "b").ok());
  ASSERT_TRUE(c.connect().ok());
  const auto refused = c.read_reply();
  ASSERT_TRUE(refused.ok());
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(refused->header("retry-after"), "1");
  a.close();
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (server_->counts().num_connections > 1 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(5ms);
  }
  expect_alive();
}

TEST_F(HttpServerTest, DrainEndsConnectionsAfterTheirReply) {
  open();
  auto idle = client(), busy = client();
  ASSERT_TRUE(idle.request("POST", "/echo", "a").ok());
  ASSERT_TRUE(busy.connect().ok());
  ASSERT_TRUE(busy.send_raw("GET /hold HTTP/1.1\r\n\r\n").ok());
  const auto exchange = held();
  ASSERT_NE(exchange, nullptr);
  server_->begin_drain();
  EXPECT_TRUE(idle.wait_closed(kPatience));
  exchange->reply({200, "text/plain", "done", {}});
  const auto reply = busy.read_reply();
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->body, "done");
  EXPECT_TRUE(busy.descriptor() < 0 || busy.wait_closed(kPatience));
}

TEST_F(HttpServerTest, ManyClientsAtOnce) {
  open();
  std::vector<std::thread> threads;
  std::atomic<int> num_right{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      auto c = client();
      for (int i = 0; i < 100; ++i) {
        const std::string text = std::to_string(t) + "/" + std::to_string(i);
        const auto reply = c.request("POST", "/echo", text);
        if (reply.ok() && reply->body == text) ++num_right;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(num_right, 800);
}

TEST(HttpServer, SaysWhyItCannotBind) {
  HttpServerOptions options;
  auto first = open_http_server(options, [](auto) {});
  ASSERT_TRUE(first.ok());
  options.port = (*first)->port();
  const auto second = open_http_server(options, [](auto) {});
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().message(), HasSubstr(std::to_string(options.port)));
}

}  // namespace
}  // namespace fathom
