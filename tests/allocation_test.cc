// Nothing is allocated per token once an answer is under way. Counts every operator new of this program.
#include <atomic>
#include <cstdlib>
#include <new>

#include "golden_support.h"

// A sanitizer brings its own operator new, which these would break: there the tests say so and skip.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FATHOM_COUNTS_ALLOCATIONS 0
#else
#define FATHOM_COUNTS_ALLOCATIONS 1
#endif

namespace {
std::atomic<std::int64_t> num_allocations{0};
}  // namespace

#if FATHOM_COUNTS_ALLOCATIONS
namespace {

void* counted(std::size_t size) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  std::abort();
}
}  // namespace

void* operator new(std::size_t size) { return counted(size); }
void* operator new[](std::size_t size) { return counted(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace fathom::testing {
namespace {

TEST(Allocation, NothingPerTokenAfterWarmUp) {
  if (!FATHOM_COUNTS_ALLOCATIONS) GTEST_SKIP() << "a sanitizer owns operator new";
  Runner runner(source_path("models/mini-v4"), Numerics::serve(), kCpu);
  Session& session = runner.session();
  SampleSpec spec;
  spec.temperature = 0.8f;
  spec.top_p = 0.9f;
  spec.seed = 3;
  const std::vector<TokenId> prompt = {0, 4067, 100, 200, 300, 4068, 4080};
  Result<SampledToken> token = session.prefill(prompt, spec);
  for (int i = 0; i < 8; ++i) token = session.decode(token->token, spec);
  // 300 tokens cross block boundaries and close groups of both ratios.
  const std::int64_t before = num_allocations.load();
  for (int i = 0; i < 300; ++i) token = session.decode(token->token, spec);
  EXPECT_EQ(num_allocations.load() - before, 0);
  ASSERT_TRUE(token.ok());
}

// The same with drafts: proposing, verifying and taking back.
TEST(Allocation, NothingPerTokenWithADrafter) {
  if (!FATHOM_COUNTS_ALLOCATIONS) GTEST_SKIP() << "a sanitizer owns operator new";
  for (const std::string model : {"models/mini-v4", "tests/data/models/tiny-dspark"}) {
    LoadOptions load;
    load.num_threads = 2;
    load.max_logit_rows = 16;
    auto loaded = load_model(source_path(model), load);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    for (const bool adaptive : {false, true}) {
      SessionOptions options;
      options.max_context_tokens = 1024;
      options.num_drafts = 4;
      options.adaptive_drafts = adaptive;
      auto session = Session::make(*loaded->model, options);
      ASSERT_TRUE(session.ok()) << session.status().message();
      SampleSpec spec;
      spec.temperature = 0.0f;
      const std::vector<TokenId> prompt = {0, 4, 100, 200, 300, 68, 80};
      TokenId last = (*session)->prefill(prompt, spec)->token;
      std::int64_t before = 0;
      for (int step = 0; step < 160; ++step) {
        if (step == 20) before = num_allocations.load();
        last = (*session)->decode_drafted(last, spec)->back().token;
      }
      EXPECT_EQ(num_allocations.load() - before, 0) << model << (adaptive ? ", adaptive" : "");
      EXPECT_GT((*session)->draft_counts().drafted, adaptive ? 0 : 400) << model;
    }
  }
}

TEST(Allocation, TheCounterCounts) {
  if (!FATHOM_COUNTS_ALLOCATIONS) GTEST_SKIP() << "a sanitizer owns operator new";
  const std::int64_t before = num_allocations.load();
  const auto made = std::make_unique<int>(1);
  EXPECT_GT(num_allocations.load() - before, 0) << *made;
}

}  // namespace
}  // namespace fathom::testing
