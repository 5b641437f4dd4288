// Verifying steps and draft passes on a device are filled up to few shapes; nothing of that is seen in answers.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "backend/cpu/cpu_backend.h"
#include "backend/open_cuda.h"
#include "engine/engine.h"
#include "engine/filled_batch.h"
#include "engine/load_model.h"
#include "engine/model_executor.h"
#include "engine/scripted_answer.h"
#include "telemetry/op_observer.h"

namespace fathom {
namespace {

// The calls of one launch, with the work of those that know no lengths: what a graph would hold.
class NotedCalls final : public OpObserver {
 public:
  void begin_operation(const OpScope&) override {}
  void end_operation(const OpScope& scope, std::int32_t, const OpCost& cost) override {
    calls.push_back(std::to_string(scope.layer) + " " + std::string(scope.operation));
    if (scope.operation == "linear") calls.back() += " " + std::to_string(cost.flops);
  }

  std::vector<std::string> calls;
};

// Notes the shapes that are launched, of which each is the same whenever it comes; the rest is the other's.
class NotingBackend final : public Backend {
 public:
  explicit NotingBackend(Backend& inner) : inner_(inner) {}
  const DeviceInfo& device() const override { return inner_.device(); }
  DType activation_dtype() const override { return inner_.activation_dtype(); }
  bool is_host_memory() const override { return inner_.is_host_memory(); }
  Result<DeviceMemory> allocate(std::int64_t num_bytes, std::string_view purpose) override {
    return inner_.allocate(num_bytes, purpose);
  }
  Status upload(std::byte* device_data, const std::byte* host, std::int64_t num_bytes) override {
    return inner_.upload(device_data, host, num_bytes);
  }
  Status download(std::byte* host, const std::byte* device_data, std::int64_t num_bytes) override {
    return inner_.download(host, device_data, num_bytes);
  }
  Status copy(std::byte* to, const std::byte* from, std::int64_t num_bytes) override {
    return inner_.copy(to, from, num_bytes);
  }
  Status copy_rows(const RowCopies& copies) override { return inner_.copy_rows(copies); }
  Status finish() override { return inner_.finish(); }
  Result<View> place_weight(const View& host, bool aligned) override { return inner_.place_weight(host, aligned); }
  Result<const void*> place_experts(std::vector<ExpertWeights>& experts, std::int32_t layer) override {
    return inner_.place_experts(experts, layer);
  }
  ExecutionContext make_context() override { return inner_.make_context(); }
  Status launch_captured(const CaptureKey& key, ExecutionContext& context,
                         const std::function<void(ExecutionContext&)>& launches) override {
    keys.insert(key);
    NotedCalls noted;
    context.observer = &noted;
    const Status status = inner_.launch_captured(key, context, launches);
    context.observer = nullptr;
    const auto [first, is_new] = calls_.try_emplace(key, noted.calls);
    EXPECT_EQ(first->second, noted.calls) << "one shape of two launches";
    num_repeated += is_new ? 0 : 1;
    return status;
  }

  std::set<CaptureKey> keys;
  int num_repeated = 0;

 private:
  Backend& inner_;
  std::map<CaptureKey, std::vector<std::string>> calls_;  // owners are not used again
};

constexpr std::int32_t kSequences = 8;

struct Answers {
  std::vector<std::vector<TokenId>> tokens;
  std::map<std::string, std::string> drafts;  // all of a sequence, in order
};

Answers answers_of(Model& model, std::int32_t depth, bool capture = true) {
  ModelExecutorOptions pools;
  pools.max_length_tokens = 512;
  pools.max_sequences = pools.num_state_slots = kSequences;
  pools.num_context_blocks = pools.num_window_blocks = 48;
  pools.max_proposals = depth;
  pools.capture = capture;
  auto executor = ModelExecutor::make(model, pools);
  EXPECT_TRUE(executor.ok()) << executor.status().message();
  EngineOptions options;
  options.eos_id = 1;
  options.num_drafts = depth;
  options.prefix_cache = false;
  Answers answers;
  options.scheduler_log = [&answers](std::string_view line) {
    if (!line.starts_with("drafts ")) return;
    const std::size_t end = line.find(' ', 7);
    answers.drafts[std::string(line.substr(7, end - 7))] += line.substr(end);
  };
  // After its first step the engine waits until all have come: else the batches would follow from the threads' luck.
  std::atomic<bool> all_came{false};
  options.on_step = [&all_came](const StepTrace&) {
    while (!all_came) std::this_thread::yield();
  };
  auto engine = Engine::make(options, std::move(*executor), nullptr);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  std::vector<std::unique_ptr<Stream>> streams;
  for (std::int32_t i = 0; i < kSequences; ++i) {
    Request request;
    request.prompt = scripted_prompt(static_cast<std::uint64_t>(i), 9 + 17 * i, 0, model.config().vocab_size);
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    request.sampling.seed = static_cast<std::uint64_t>(i);
    request.ignore_eos = true;
    request.max_tokens = 6 + 4 * i;  // they end one after the other: every batch occurs
    auto stream = (*engine)->submit(request);
    EXPECT_TRUE(stream.ok()) << stream.status().message();
    streams.push_back(std::move(*stream));
  }
  all_came = true;
  for (const auto& stream : streams)
    answers.tokens.push_back(read_all(*stream, std::chrono::seconds(300)).at(0).tokens);
  EXPECT_TRUE((*engine)->drain(std::chrono::seconds(60)));
  return answers;
}

class VerifyingShapes : public ::testing::TestWithParam<const char*> {};

TEST_P(VerifyingShapes, AreFewAndChangeNoAnswer) {
  auto checkpoint = open_checkpoint(std::string(FATHOM_SOURCE_DIR) + "/" + GetParam());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const OpRegistry registry = registry_for(DeviceChoice::kEmulated);
  auto device = open_emulated_backend({.num_threads = 2});
  ASSERT_TRUE(device.ok()) << device.status().message();
  NotingBackend backend(**device);
  const VariantTable variants = *VariantTable::choose(registry, backend.device().backend);
  ModelOptions options;
  options.max_tokens = 256;
  options.max_logit_rows = 96;
  auto model = Model::make(*checkpoint, backend, variants, options);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::vector<std::vector<TokenId>> expected = answers_of(**model, 0).tokens;
  std::set<std::int32_t> undrafted;
  for (const CaptureKey& key : backend.keys) undrafted.insert(key.num_sequences);
  EXPECT_GE(undrafted.size(), 6u) << "many batches occur, each as it is";
  for (const std::int32_t depth : {1, 4}) {
    backend.keys.clear();
    const Answers filled = answers_of(**model, depth), bare = answers_of(**model, depth, false);
    EXPECT_EQ(filled.tokens, expected) << depth;
    EXPECT_EQ(filled.drafts, bare.drafts) << depth;
    EXPECT_EQ(filled.drafts.size(), static_cast<std::size_t>(kSequences));
    std::int32_t num_filled = 0;
    std::set<std::int32_t> drafting;  // batches of draft passes
    for (const CaptureKey& key : backend.keys) {
      if (key.owner % 3 != 0 && key.num_logit_rows > 0) drafting.insert(key.num_logit_rows / depth);
      // The trunk's own, of sequences that all have drafts.
      if (key.owner % 3 != 0 || key.num_tokens != key.num_sequences * (1 + depth)) continue;
      EXPECT_EQ(filled_batch(key.num_sequences), key.num_sequences) << depth;
      EXPECT_EQ(key.num_logit_rows, key.num_tokens);
      ++num_filled;
    }
    EXPECT_GE(num_filled, 3) << depth;
    EXPECT_LE(num_filled, 6) << depth << ": 1, 2, 3, 4, 6 and 8";
    EXPECT_GE(drafting.size(), 3u) << depth;
    EXPECT_GT(backend.num_repeated, 10);
    for (const std::int32_t batch : drafting) EXPECT_EQ(filled_batch(batch), batch) << depth;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, VerifyingShapes, ::testing::Values("models/mini-v4", "tests/data/models/tiny-dspark"),
                         [](const auto& one) { return std::string(one.param).ends_with("v4") ? "mtp" : "dspark"; });

}  // namespace
}  // namespace fathom
