// Verifying steps on a device are filled up to few shapes; nothing of that is seen in answers.
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "backend/cpu/cpu_backend.h"
#include "backend/open_cuda.h"
#include "engine/engine.h"
#include "engine/filled_batch.h"
#include "engine/load_model.h"
#include "engine/model_executor.h"
#include "engine/scripted_answer.h"

namespace fathom {
namespace {

// Notes the shapes that are launched; the rest is the other's.
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
    return inner_.launch_captured(key, context, launches);
  }

  std::set<CaptureKey> keys;

 private:
  Backend& inner_;
};

constexpr std::int32_t kSequences = 8;

std::vector<std::vector<TokenId>> answers_of(Model& model, std::int32_t depth) {
  ModelExecutorOptions pools;
  pools.max_length_tokens = 512;
  pools.max_sequences = pools.num_state_slots = kSequences;
  pools.num_context_blocks = pools.num_window_blocks = 48;
  pools.max_proposals = depth;
  auto executor = ModelExecutor::make(model, pools);
  EXPECT_TRUE(executor.ok()) << executor.status().message();
  EngineOptions options;
  options.eos_id = 1;
  options.num_drafts = depth;
  options.prefix_cache = false;
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
  std::vector<std::vector<TokenId>> answers;
  for (const auto& stream : streams) answers.push_back(read_all(*stream, std::chrono::seconds(300)).at(0).tokens);
  EXPECT_TRUE((*engine)->drain(std::chrono::seconds(60)));
  return answers;
}

TEST(VerifyingShapes, AreFewAndChangeNoAnswer) {
  auto checkpoint = open_checkpoint(FATHOM_SOURCE_DIR "/models/mini-v4");
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
  const std::vector<std::vector<TokenId>> expected = answers_of(**model, 0);
  std::set<std::int32_t> undrafted;
  for (const CaptureKey& key : backend.keys) undrafted.insert(key.num_sequences);
  EXPECT_GE(undrafted.size(), 6u) << "many batches occur, each as it is";
  for (const std::int32_t depth : {1, 4}) {
    backend.keys.clear();
    EXPECT_EQ(answers_of(**model, depth), expected) << depth;
    std::int32_t num_filled = 0;
    for (const CaptureKey& key : backend.keys) {
      // The trunk's own, of sequences that all have drafts.
      if (key.owner % 3 != 0 || key.num_tokens != key.num_sequences * (1 + depth)) continue;
      EXPECT_EQ(filled_batch(key.num_sequences), key.num_sequences) << depth;
      EXPECT_EQ(key.num_logit_rows, key.num_tokens);
      ++num_filled;
    }
    EXPECT_GE(num_filled, 3) << depth;
    EXPECT_LE(num_filled, 6) << depth << ": 1, 2, 3, 4, 6 and 8";
  }
}

}  // namespace
}  // namespace fathom
