#include "server/http/http_server.h"

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <thread>
#include <unordered_set>

#include "server/http/http_connection.h"

namespace fathom {
namespace {

using boost::asio::ip::tcp;

constexpr auto kTimeCheckPeriod = std::chrono::milliseconds(100);
constexpr auto kAcceptRetry = std::chrono::milliseconds(50);

class AsioServer : public HttpServer {
 public:
  AsioServer(const HttpServerOptions& options, HttpHandler handler)
      : shared_(std::make_shared<HttpShared>()), io_(shared_->io), acceptor_(io_), clock_(io_), retry_(io_) {
    shared_->options = options;
    shared_->handler = std::move(handler);
  }
  ~AsioServer() override { stop(); }

  Status open() {
    boost::system::error_code error;
    const std::string where = shared_->options.host + ":" + std::to_string(shared_->options.port);
    const auto failed = [&](const char* what) {
      return unavailable("listening on " + where + ": " + what + ": " + error.message());
    };
    tcp::resolver resolver(io_);
    const auto addresses =
        resolver.resolve(shared_->options.host, std::to_string(shared_->options.port), tcp::resolver::passive, error);
    if (error || addresses.empty()) return failed("the address cannot be resolved");
    const tcp::endpoint endpoint = addresses.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), error);
    if (error) return failed("no socket");
    acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    acceptor_.bind(endpoint, error);
    if (error) return failed("cannot bind");
    acceptor_.listen(4096, error);
    if (error) return failed("cannot listen");
    port_ = acceptor_.local_endpoint(error).port();
    accept();
    check_time();
    thread_ = std::thread([this] { io_.run(); });
    return {};
  }

  std::uint16_t port() const override { return port_; }
  const HttpServerCounts& counts() const override { return shared_->counts; }

  void begin_drain() override {
    boost::asio::post(io_, [this] {
      shared_->draining = true;
      for (const auto& connection : connections_) connection->drain();
    });
  }

  void stop() override {
    if (!thread_.joinable()) return;
    boost::asio::post(io_, [this] {
      boost::system::error_code ignored;
      acceptor_.close(ignored);
      clock_.cancel();
      retry_.cancel();
      for (const auto& connection : connections_) connection->close();
      connections_.clear();
      io_.stop();
    });
    thread_.join();
    // Aborted reads and writes still hold their connections.
    io_.restart();
    io_.poll();
  }

 private:
  void accept() {
    acceptor_.async_accept([this](boost::system::error_code error, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (error) {  // most likely no file descriptors are left: wait for some connection to close
        retry_.expires_after(kAcceptRetry);
        retry_.async_wait([this](boost::system::error_code stopped) {
          if (!stopped) accept();
        });
        return;
      }
      ++shared_->counts.num_accepted;
      const bool full = connections_.size() >= shared_->options.max_connections;
      auto connection = std::make_shared<HttpConnection>(std::move(socket), shared_);
      connections_.insert(connection);
      if (full) {
        connection->refuse(503, "too many connections");
      } else {
        connection->start();
      }
      accept();
    });
  }

  void check_time() {
    clock_.expires_after(kTimeCheckPeriod);
    clock_.async_wait([this](boost::system::error_code stopped) {
      if (stopped) return;
      const auto now = HttpConnection::Clock::now();
      for (auto it = connections_.begin(); it != connections_.end();) {
        (*it)->check_time(now);
        it = (*it)->closed() ? connections_.erase(it) : std::next(it);
      }
      check_time();
    });
  }

  std::shared_ptr<HttpShared> shared_;
  boost::asio::io_context& io_;
  tcp::acceptor acceptor_;
  boost::asio::steady_timer clock_;
  boost::asio::steady_timer retry_;
  std::unordered_set<std::shared_ptr<HttpConnection>> connections_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> open_http_server(const HttpServerOptions& options, HttpHandler handler) {
  auto server = std::make_unique<AsioServer>(options, std::move(handler));
  FATHOM_RETURN_IF_ERROR(server->open());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace fathom
