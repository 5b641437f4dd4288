// The whole server in one process on the scripted executor: what the thread sanitizer looks at.
#include "server/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "engine/load_model.h"
#include "engine/scripted_executor.h"
#include "server/http/http_client.h"
#include "server/load_generator.h"
#include "server/scripted_replies.h"

namespace fathom {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

std::shared_ptr<const Tokenizer> mini_tokenizer() {
  static const std::shared_ptr<const Tokenizer> tokenizer = [] {
    auto opened = open_tokenizer(std::string(FATHOM_SOURCE_DIR) + "/models/mini-v4");
    FATHOM_CHECK(opened.ok(), "the embedded model's tokenizer opens");
    return std::make_shared<const Tokenizer>(std::move(*opened));
  }();
  return tokenizer;
}

class ServerTest : public testing::Test {
 protected:
  void open(std::vector<ApiKey> keys = {}) {
    ServerOptions options;
    options.model_names = {"mini"};
    options.keys = std::move(keys);
    options.log_requests = false;
    auto opened = Server::open(std::move(options));
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    server_ = std::move(*opened);
  }
  void serve(std::int64_t step_us = 200, std::shared_ptr<GrammarCompiler> grammar = nullptr) {
    ScriptedOptions scripted;
    const auto tokenizer = mini_tokenizer();
    scripted.limits.vocab_size = static_cast<std::int32_t>(tokenizer->vocab_size());
    scripted.eos_id = tokenizer->eos_id();
    scripted.next_token = make_scripted_replies(tokenizer);
    scripted.step_us = step_us;
    scripted.row_us = 0;
    scripted.wait_for_real = true;
    EngineOptions engine;
    engine.max_running = 16;
    engine.max_queued_requests = 64;
    auto made = Engine::make(engine, std::make_unique<ScriptedExecutor>(std::move(scripted)), tokenizer);
    ASSERT_TRUE(made.ok()) << made.status().message();
    auto model = std::make_shared<ServedModel>();
    model->engine = std::move(*made);
    model->tokenizer = tokenizer;
    model->root = "scripted";
    model->grammar = std::move(grammar);
    server_->set_model(std::move(model));
  }
  HttpClient client() const { return HttpClient("127.0.0.1", server_->port()); }
  static std::string chat(const std::string& answer, bool stream, int max_tokens = 200) {
    return R"({"messages":[{"role":"user","content":"Say ⟦t</think>)" + answer + R"(⟧"}],"temperature":0,"stream":)" +
           (stream ? "true" : "false") + R"(,"max_tokens":)" + std::to_string(max_tokens) + "}";
  }
  // Polls for what must come, however busy the machine is.
  static bool wait_for(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + 120s;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(2ms);
    }
    return true;
  }
  double metric(HttpClient& from, const std::string& name) const {
    const auto reply = from.request("GET", "/metrics");
    if (!reply.ok()) return -1;
    const std::size_t at = reply->body.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::atof(reply->body.c_str() + at + name.size() + 2);
  }

  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, AnswersWhileLoadingWithHowFarItIs) {
  open();
  auto c = client();
  server_->set_loading(0.42, "mapping");
  auto reply = c.request("GET", "/health");
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->status, 503);
  EXPECT_THAT(reply->body, HasSubstr("42"));
  reply = c.request("POST", "/v1/chat/completions", chat("x", false));
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->status, 503);
  EXPECT_THAT(reply->body, HasSubstr("42 %"));
  EXPECT_FALSE(reply->header("retry-after").empty());
  serve();
  reply = c.request("GET", "/health");
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->status, 200);
}

// A model that is read slowly: between two tensors a client asks how far it is.
TEST_F(ServerTest, ThePercentageMovesWithTheTensors) {
  open();
  auto c = client();
  const auto tell = server_->loading_progress(0.1, 0.9);
  std::vector<double> percents;
  std::vector<std::string> refusals;
  std::int64_t num_calls = 0, last_done = 0, last_total = 0;
  LoadOptions options;
  options.progress = [&](std::int64_t done, std::int64_t total) {
    EXPECT_GE(done, last_done);
    last_done = done;
    last_total = total;
    tell(done, total);
    if (num_calls++ % 16 != 0) return;
    const auto health = c.request("GET", "/health");
    ASSERT_TRUE(health.ok());
    EXPECT_EQ(health->status, 503);
    const std::size_t at = health->body.find("\"loaded_percent\":");
    ASSERT_NE(at, std::string::npos) << health->body;
    percents.push_back(std::atof(health->body.c_str() + at + 17));
    EXPECT_THAT(health->body, HasSubstr("placing weights: "));
    const auto refused = c.request("POST", "/v1/chat/completions", chat("x", false));
    ASSERT_TRUE(refused.ok());
    EXPECT_EQ(refused->status, 503);
    refusals.push_back(refused->body);
  };
  const auto loaded = load_model(std::string(FATHOM_SOURCE_DIR) + "/models/mini-v4", options);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(last_done, last_total);
  EXPECT_GT(last_total, 20'000'000);
  ASSERT_GT(percents.size(), 20u);
  EXPECT_TRUE(std::is_sorted(percents.begin(), percents.end()));
  EXPECT_GE(percents.front(), 10.0);
  EXPECT_LT(percents.front(), 30.0);
  EXPECT_GT(percents.back(), 80.0);
  EXPECT_LE(percents.back(), 90.0);
  std::sort(refusals.begin(), refusals.end());
  const auto num_messages = std::unique(refusals.begin(), refusals.end()) - refusals.begin();
  EXPECT_GT(num_messages, 8);  // whole percents
}

TEST_F(ServerTest, ManyClientsGetTheirOwnAnswers) {
  open();
  serve();
  std::atomic<int> num_right{0}, num_left{0};
  std::atomic<bool> done{false};
  std::thread watcher([&] {
    auto c = client();
    while (!done) {
      for (const char* path : {"/metrics", "/health", "/v1/requests", "/v1/models"}) {
        EXPECT_TRUE(c.request("GET", path).ok());
      }
    }
  });
  std::vector<std::thread> clients;
  for (int t = 0; t < 8; ++t) {
    clients.emplace_back([&, t] {
      auto c = client();
      for (int i = 0; i < 10; ++i) {
        const std::string text = "answer " + std::to_string(t) + " of " + std::to_string(i);
        const bool stream = i % 2 == 0, leaves = i % 5 == 4;
        std::string content;
        SseReader reader([&](std::string_view, std::string_view data) {
          const std::size_t at = data.find("\"content\":\"");
          if (at == std::string_view::npos) return;
          content += data.substr(at + 11, data.find('"', at + 11) - at - 11);
        });
        int num_pieces = 0;
        const auto reply =
            c.request("POST", "/v1/chat/completions", chat(text, stream || leaves), {}, [&](std::string_view bytes) {
              if (!stream && !leaves) content += bytes;
              if (stream || leaves) reader.give(bytes);
              return !leaves || ++num_pieces < 3;
            });
        if (leaves) {
          ++num_left;
        } else if (reply.ok() && (stream ? content == text : content.find(text) != std::string::npos)) {
          ++num_right;
        }
      }
    });
  }
  for (auto& each : clients) each.join();
  done = true;
  watcher.join();
  EXPECT_EQ(num_left, 16);
  EXPECT_EQ(num_right, 64);
  auto c = client();
  EXPECT_TRUE(wait_for([&] { return metric(c, "fathom_requests_running") == 0; }));
  EXPECT_EQ(metric(c, "fathom_context_blocks_used"), 0);
}

TEST_F(ServerTest, DrainLetsLiveStreamsFinish) {
  open();
  serve(2000);
  std::string words;
  for (int i = 0; i < 600; ++i) words += "word ";
  std::atomic<int> num_begun{0}, num_whole{0};
  std::vector<std::thread> clients;
  for (int t = 0; t < 4; ++t) {
    clients.emplace_back([&] {
      auto c = client();
      std::string all;
      const auto reply =
          c.request("POST", "/v1/chat/completions", chat(words, true, 3000), {}, [&](std::string_view bytes) {
            if (all.empty()) ++num_begun;
            all += bytes;
            return true;
          });
      if (reply.ok() && all.find("[DONE]") != std::string::npos) ++num_whole;
    });
  }
  EXPECT_TRUE(wait_for([&] { return num_begun == 4; }));
  EXPECT_TRUE(server_->drain(120s));
  for (auto& each : clients) each.join();
  EXPECT_EQ(num_whole, 4);
}

TEST_F(ServerTest, StopCutsOffWhatRuns) {
  open();
  serve(1000);
  std::vector<std::thread> clients;
  for (int t = 0; t < 4; ++t) {
    clients.emplace_back([&, t] {
      auto c = client();
      const bool streamed = t % 2 == 0;
      const auto reply = c.request("POST", "/v1/completions",
                                   R"({"prompt":"x","max_tokens":9000,"ignore_eos":true,"stream":)" +
                                       std::string(streamed ? "true}" : "false}"));
      // Cut off, and told so.
      ASSERT_TRUE(reply.ok()) << reply.status().message();
      EXPECT_EQ(reply->status, streamed ? 200 : 503);
      EXPECT_NE(reply->body.find("shutting down"), std::string::npos) << reply->body.substr(0, 300);
    });
  }
  auto c = client();
  EXPECT_TRUE(wait_for([&] { return metric(c, "fathom_requests_running") == 4; }));
  EXPECT_FALSE(server_->drain(50ms));
  server_->stop();
  for (auto& each : clients) each.join();
}

// Grammars of which every first matcher allows nothing, and every second one anything.
class DeadEndCompiler : public GrammarCompiler {
 public:
  Result<std::shared_ptr<const CompiledGrammar>> compile(const GrammarSpec&, std::chrono::milliseconds) override {
    return std::make_shared<const CompiledGrammar>();
  }
  std::unique_ptr<GrammarMatcher> make_matcher(std::shared_ptr<const CompiledGrammar>) const override {
    return std::make_unique<Matcher>(num_made_++ % 2 == 0);
  }

 private:
  class Matcher : public GrammarMatcher {
   public:
    explicit Matcher(bool dead_end) : dead_end_(dead_end) {}
    bool next_mask(std::span<std::uint32_t> mask) override {
      if (dead_end_) std::fill(mask.begin(), mask.end(), 0u);
      return dead_end_;
    }
    Status accept(TokenId) override { return {}; }
    void rollback(std::int32_t) override {}
    bool may_end() const override { return false; }

   private:
    bool dead_end_;
  };
  mutable std::atomic<int> num_made_{0};
};

// One choice fails while the other is in a long step: when the client hears of it, its record is closed and its key
// free.
TEST_F(ServerTest, AFailureIsToldAfterTheBooks) {
  open({{"one", "secret", 1, 0}});
  serve(100'000, std::make_shared<DeadEndCompiler>());
  auto c = client();
  const std::string failing = R"({"prompt":"x","n":2,"max_tokens":9,"ignore_eos":true,"guided_regex":"a","stream":)";
  for (const bool stream : {false, true, false, true}) {
    const std::string id = stream ? "streamed" : "whole";
    const HttpHeaders key = {{"Authorization", "Bearer secret"}, {"x-request-id", id}};
    auto reply = c.request("POST", "/v1/completions", failing + (stream ? "true}" : "false}"), key);
    ASSERT_TRUE(reply.ok()) << reply.status().message();
    EXPECT_THAT(reply->body, HasSubstr("\"error\""));
    reply = c.request("GET", "/v1/requests/" + id, "", key);
    ASSERT_TRUE(reply.ok()) << reply.status().message();
    EXPECT_THAT(reply->body, HasSubstr("\"state\":\"failed\""));
    reply = c.request("POST", "/v1/completions", R"({"prompt":"Say ⟦right⟧","max_tokens":9})", key);
    ASSERT_TRUE(reply.ok()) << reply.status().message();
    EXPECT_EQ(reply->status, 200) << reply->body;
    EXPECT_THAT(reply->body, HasSubstr("right"));
  }
}

TEST_F(ServerTest, LoadGeneratorCountsWhatHappened) {
  open();
  serve();
  LoadTestOptions load;
  load.port = server_->port();
  load.concurrency = {1, 4};
  load.requests_per_client = 2;
  load.repeats = 2;
  load.input_tokens = 40;
  load.output_tokens = 8;
  load.shared_prefix = 0.5;
  load.cancelled = 0.3;
  const auto report = run_load(load);
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->levels.size(), 2u);
  for (const LoadLevel& level : report->levels) {
    EXPECT_EQ(level.num_done + level.num_cancelled, level.concurrency * 4);
    EXPECT_EQ(level.num_failed, 0) << level.first_failure;
    EXPECT_EQ(level.num_done > 0, level.ttft_ms.p50 > 0);
  }
  EXPECT_GT(report->levels[1].num_cancelled, 0);
  EXPECT_FALSE(report->right_before);  // the scripted executor knows no arithmetic, and that is seen
  EXPECT_THAT(load_html(*report), HasSubstr("wrong"));
}

TEST(LoadFigures, Percentiles) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Percentiles p = percentiles(values);
  EXPECT_EQ(p.p50, 50);
  EXPECT_EQ(p.p90, 90);
  EXPECT_EQ(p.p99, 99);
  EXPECT_DOUBLE_EQ(p.mean, 50.5);
  EXPECT_EQ(percentiles({}).count, 0);
  EXPECT_EQ(spread({3, 1, 2}).median, 2);
}

}  // namespace
}  // namespace fathom
