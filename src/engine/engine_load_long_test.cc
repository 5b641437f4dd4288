// The mini model under load for FATHOM_LOAD_SECONDS (600): 64 clients, a fifth of whom leave early, some slow, and a
// prompt of 4,000 tokens now and then. Every answer is compared with the one computed alone.
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <mutex>

#include "engine/model_determinism.h"

namespace fathom {
namespace {

std::int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * 4096;
}

double quantile(std::vector<double>& values, double q) {
  const auto at = static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

TEST(EngineLoad, SixtyFourClientsForTenMinutes) {
  const char* wish = std::getenv("FATHOM_LOAD_SECONDS");
  const auto duration = std::chrono::seconds(wish != nullptr ? std::atoi(wish) : 600);
  ModelBench bench;
  const std::vector<ModelCase> cases = bench.make_cases(64, 60);
  EngineOptions options;
  options.eos_id = 1;
  std::atomic<bool> long_prompt{false};
  std::mutex mutex;
  std::vector<double> gaps_us, gaps_beside_us;  // between two steps, once for each stream that decodes
  auto last = std::chrono::steady_clock::now();
  options.on_step = [&](const StepTrace& trace) {
    const auto now = std::chrono::steady_clock::now();
    const std::lock_guard lock(mutex);
    const double gap = std::chrono::duration<double, std::micro>(now - last).count();
    auto& gaps = long_prompt ? gaps_beside_us : gaps_us;
    if (gaps.size() < 4000000) gaps.insert(gaps.end(), static_cast<std::size_t>(trace.num_sequences), gap);
    last = now;
  };
  auto made = Engine::make(options, bench.make_executor(512, 64, 0, 80), nullptr);
  ASSERT_TRUE(made.ok()) << made.status().message();
  Engine& engine = **made;

  std::atomic<bool> stop{false};
  std::atomic<std::int64_t> num_right{0}, num_wrong{0}, num_cancelled{0};
  std::vector<std::thread> clients;
  for (std::uint64_t client = 0; client < 64; ++client) {
    clients.emplace_back([&, client] {
      std::mt19937_64 random(client);
      while (!stop) {
        const ModelCase& chosen = cases[random() % cases.size()];
        auto stream = engine.submit(chosen.request);
        if (!stream.ok()) {
          ADD_FAILURE() << stream.status().message();
          return;
        }
        const bool leaves = random() % 5 == 0, slow = random() % 8 == 0;
        if (leaves) {
          std::this_thread::sleep_for(std::chrono::milliseconds(random() % 1500));
          ++num_cancelled;
          continue;
        }
        std::map<std::int32_t, CollectedChoice> choices;
        while (!(*stream)->finished()) {
          if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(random() % 300));
          collect((*stream)->wait(std::chrono::milliseconds(500)), choices);
        }
        (choices.at(0).tokens == chosen.expected ? num_right : num_wrong) += 1;
      }
    });
  }
  const auto begin = std::chrono::steady_clock::now();
  std::int64_t resident_early = 0;
  const auto vocab = static_cast<TokenId>(bench.model().config().vocab_size);
  for (std::uint64_t round = 1; std::chrono::steady_clock::now() - begin < duration; ++round) {
    std::this_thread::sleep_for(std::chrono::seconds(5));
    Request request;
    request.prompt = scripted_prompt(1000 + round, 4000, 0, vocab);
    request.max_tokens = 1;
    auto stream = engine.submit(std::move(request));
    ASSERT_TRUE(stream.ok());
    long_prompt = true;
    EXPECT_TRUE(read_all(**stream, std::chrono::seconds(300)).at(0).finish.has_value());
    long_prompt = false;
    if (resident_early == 0 && std::chrono::steady_clock::now() - begin > duration / 4)
      resident_early = resident_bytes();
  }
  stop = true;
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(engine.drain(std::chrono::seconds(60)));
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.context_blocks_used, 0);
  EXPECT_EQ(stats.window_blocks_used, 0);
  EXPECT_EQ(num_wrong.load(), 0);
  EXPECT_GT(num_right.load(), 0);
  const std::int64_t resident_end = resident_bytes();
  if (resident_early > 0) {
    EXPECT_LT(resident_end, resident_early + (64 << 20));
  }
  ASSERT_FALSE(gaps_us.empty() || gaps_beside_us.empty());
  const double median = quantile(gaps_us, 0.5), p99 = quantile(gaps_beside_us, 0.99);
  std::printf(
      "%lld right, %lld left early, %lld steps, %lld tokens; between tokens: median %.1f ms, p99 beside a long "
      "prompt %.1f ms (%.2f x); resident %.1f -> %.1f MB\n",
      static_cast<long long>(num_right), static_cast<long long>(num_cancelled), static_cast<long long>(stats.num_steps),
      static_cast<long long>(stats.generation_tokens), median / 1000, p99 / 1000, p99 / median,
      static_cast<double>(resident_early) / 1e6, static_cast<double>(resident_end) / 1e6);
  EXPECT_LT(p99, 3 * median);
}

}  // namespace
}  // namespace fathom
