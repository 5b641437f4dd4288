// One layer of each kind at the width of V4-Flash, on a synthetic checkpoint: `cpu` against `reference`.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <random>

#include "checkpoint/synthesise.h"
#include "engine/load_model.h"
#include "layer_rig.h"

namespace fathom::testing {
namespace {

constexpr std::int64_t kMostTokens = 130;
constexpr std::int32_t kVocab = 1024;

// Flash's widths; four layers (two window-only, ratio 4, ratio 128), few experts and ids, so that it fits a test. A
// selection of 16 makes the indexer choose within 130 tokens.
ModelConfig flash_width_config() {
  ModelConfig config = shrink_config(flash_config(), 4, 8).value();
  config.vocab_size = kVocab;
  config.index_topk = 16;
  return config;
}

class FullWidth : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = ::testing::TempDir() + "fathom_full_width";
    std::filesystem::remove_all(directory_);
    SynthesiseOptions options;
    options.config = flash_width_config();
    options.directory = directory_;
    const Result<SynthesiseResult> made = synthesise_checkpoint(options);
    ASSERT_TRUE(made.ok()) << made.status().message();
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(directory_); }

  static LoadedModel load(const std::string& variant, const Numerics& numerics) {
    LoadOptions options;
    options.numerics = numerics;
    options.variants = {{"*", variant}};
    options.max_step_tokens = kMostTokens;
    options.max_logit_rows = 1;
    Result<LoadedModel> loaded = load_model(directory_, options);
    FATHOM_CHECK(loaded.ok(), loaded.status().message().c_str());
    return std::move(loaded).value();
  }

  // Largest relative L2 over kinds of layers, for rows of each count.
  static void compare(const Numerics& numerics, std::span<const std::int64_t> counts, double bound) {
    const LoadedModel reference = load("reference", numerics);
    const LoadedModel cpu = load("cpu", numerics);
    const ModelConfig& config = cpu.model->config();
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (const std::int64_t count : counts) {
      LayerRig reference_rig(*reference.model, count);
      LayerRig cpu_rig(*cpu.model, count);
      std::vector<TokenId> ids(static_cast<std::size_t>(count));
      for (TokenId& id : ids) id = static_cast<TokenId>(random() % kVocab);
      std::vector<float> streams(static_cast<std::size_t>(count * config.hc_mult * config.hidden_size));
      for (float& value : streams) value = round_to_bf16(normal(random));
      for (const std::int32_t layer : {1, 2, 3}) {
        const std::vector<float> expected = reference_rig.run(layer, ids, streams);
        const std::vector<float> found = cpu_rig.run(layer, ids, streams);
        double difference = 0.0;
        double norm = 0.0;
        double change = 0.0;
        for (std::size_t i = 0; i < found.size(); ++i) {
          const double e = double{expected[i]};
          difference += (double{found[i]} - e) * (double{found[i]} - e);
          norm += e * e;
          change += (e - double{streams[i]}) * (e - double{streams[i]});
        }
        const double relative = std::sqrt(difference / norm);
        RecordProperty("relative_l2_layer" + std::to_string(layer) + "_tokens" + std::to_string(count),
                       std::to_string(relative));
        EXPECT_LE(relative, bound) << "layer " << layer << ", " << count << " tokens";
        EXPECT_GT(change, 0.01 * norm) << "the layer does something";
      }
    }
  }

  static std::string directory_;
};
std::string FullWidth::directory_;

TEST_F(FullWidth, PlainLayersAgree) {
  const std::int64_t counts[] = {1, 7, kMostTokens};
  compare(Numerics::plain(), counts, 5e-6);
}

// Quantisers make the layer discontinuous: a sum that differs in its last bit may round to the next code.
TEST_F(FullWidth, ServeLayersAgree) {
  const std::int64_t counts[] = {1, 7};
  compare(Numerics::serve(), counts, 6e-2);
}

}  // namespace
}  // namespace fathom::testing
