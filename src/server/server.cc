#include "server/server.h"

#include <algorithm>
#include <condition_variable>
#include <thread>

#include "base/units.h"
#include "server/answer.h"
#include "server/router.h"
#include "server/server_context.h"

namespace fathom {
namespace {

constexpr auto kTickPeriod = std::chrono::milliseconds(200);
constexpr auto kDrainPoll = std::chrono::milliseconds(5);
constexpr std::chrono::milliseconds kLastWords{5000};  // to tell clients that they are cut off

class HttpApiServer : public Server {
 public:
  explicit HttpApiServer(ServerOptions options) : context_(std::move(options)) {}
  ~HttpApiServer() override { stop(); }

  Status start() {
    FATHOM_ASSIGN_OR_RETURN(http_, open_http_server(context_.options.http, [this](std::shared_ptr<HttpExchange> e) {
                              // http_ is set before the first handler runs: see ready_.
                              // Only what has a body can take long: streams and health do not wait behind it.
                              WorkerPool& pool = e->request().body.empty() ? context_.workers : context_.parsers;
                              pool.post([this, exchange = std::move(e)] {
                                ready_.wait(false);
                                answer_request(context_, exchange);
                              });
                            }));
    context_.http_counts = &http_->counts();
    ready_ = true;
    ready_.notify_all();
    ticker_ = std::thread([this] { tick(); });
    return {};
  }

  std::uint16_t port() const override { return http_->port(); }

  void set_loading(double share, std::string what) override {
    const std::lock_guard lock(context_.mutex);
    context_.loaded_share = share;
    context_.loading_what = std::move(what);
  }
  void set_load_failure(std::string reason) override {
    const std::lock_guard lock(context_.mutex);
    context_.load_failure = std::move(reason);
  }
  void set_model(std::shared_ptr<ServedModel> model) override {
    for (TokenId id = 0; id < model->tokenizer->vocab_size(); ++id) {
      model->longest_token_bytes = std::max(model->longest_token_bytes, model->tokenizer->token_bytes(id).size());
    }
    const std::lock_guard lock(context_.mutex);
    context_.served = std::move(model);
  }

  bool drain(std::chrono::milliseconds limit) override {
    context_.draining = true;
    http_->begin_drain();
    return wait_for_answers(limit);
  }

  void stop() override {
    if (stopped_) return;
    stopped_ = true;
    context_.draining = true;
    {
      const std::lock_guard lock(tick_mutex_);
      stopping_ = true;
    }
    tick_wake_.notify_all();
    if (ticker_.joinable()) ticker_.join();
    std::shared_ptr<ServedModel> model = context_.model();
    if (model != nullptr) model->engine->shutdown();
    // Whoever still waits is told so: their requests end with the engine's work.
    if (http_ != nullptr) {
      http_->begin_drain();
      wait_for_answers(kLastWords);
      http_->stop();
    }
    context_.parsers.stop();
    context_.workers.stop();
    std::unordered_map<const Answer*, std::shared_ptr<Answer>> left;
    {
      const std::lock_guard lock(context_.mutex);
      left.swap(context_.answers);
      context_.served.reset();
    }
  }

 private:
  bool wait_for_answers(std::chrono::milliseconds limit) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (http_->counts().num_exchanges > 0 || num_answers() > 0) {
      if (std::chrono::steady_clock::now() >= end) return false;
      std::this_thread::sleep_for(kDrainPoll);
    }
    return true;
  }
  std::size_t num_answers() {
    const std::lock_guard lock(context_.mutex);
    return context_.answers.size();
  }

  void tick() {
    std::unique_lock lock(tick_mutex_);
    while (!tick_wake_.wait_for(lock, kTickPeriod, [this] { return stopping_; })) {
      std::vector<std::shared_ptr<Answer>> answers;
      {
        const std::lock_guard inner(context_.mutex);
        for (const auto& [key, answer] : context_.answers) answers.push_back(answer);
      }
      for (const auto& answer : answers) answer->tick();
    }
  }

  ServerContext context_;
  std::unique_ptr<HttpServer> http_;
  std::atomic<bool> ready_{false};
  std::thread ticker_;
  std::mutex tick_mutex_;
  std::condition_variable tick_wake_;
  bool stopping_ = false;
  bool stopped_ = false;
};

}  // namespace

std::function<void(std::int64_t, std::int64_t)> Server::loading_progress(double from, double to) {
  return [this, from, to](std::int64_t done, std::int64_t total) {
    const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1.0;
    set_loading(from + (to - from) * share, "placing weights: " + format_bytes(done) + " of " + format_bytes(total));
  };
}

Result<std::unique_ptr<Server>> Server::open(ServerOptions options) {
  if (options.model_names.empty()) return invalid_argument("model_names: found none, expected at least one");
  auto server = std::make_unique<HttpApiServer>(std::move(options));
  FATHOM_RETURN_IF_ERROR(server->start());
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace fathom
