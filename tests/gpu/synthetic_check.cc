// Decode steps of a few layers at Flash's full width: random weights in the official formats, one captured graph a
// step, every row at the end of its own context.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "checkpoint/synthesise.h"
#include "device.h"
#include "engine/filled_step.h"
#include "engine/load_model.h"

namespace fathom::gpu {
namespace {

constexpr std::int64_t kMillion = 1 << 20;

// Flash's width in a folder of its own, loaded; FATHOM_FLASH_LAYERS: of how many layers.
class Flash {
 public:
  Flash() {
    const char* layers = std::getenv("FATHOM_FLASH_LAYERS");
    directory_ = (std::filesystem::temp_directory_path() / "fathom-flash").string();
    std::filesystem::remove_all(directory_);
    SynthesiseOptions synth;
    synth.config = *shrink_config(flash_config(), layers != nullptr ? std::atoi(layers) : 4, 0);
    synth.tensors.draft = DraftKind::kNone;
    synth.directory = directory_;
    const Result<SynthesiseResult> written = synthesise_checkpoint(synth);
    if (!written.ok()) {
      ADD_FAILURE() << written.status().message();
      return;
    }
    LoadOptions options;
    options.device = DeviceChoice::kCuda;
    options.max_step_tokens = 128;
    options.max_logit_rows = 128;
    options.draft = false;
    Result<LoadedModel> loaded = load_model(directory_, options);
    if (loaded.ok())
      loaded_ = std::move(loaded).value();
    else
      ADD_FAILURE() << loaded.status().message();
  }
  ~Flash() {
    loaded_ = {};
    std::filesystem::remove_all(directory_);
  }
  Model* model() { return loaded_.model.get(); }

 private:
  std::string directory_;
  LoadedModel loaded_;
};

// Microseconds of a replayed step, the best of some runs of eight.
double replay_us(FilledStep& step, std::int64_t max_context) {
  constexpr int kReplays = 8;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(step.run(max_context, kReplays).ok());
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / kReplays;
}

void check_contexts(Model& model) {
  const std::int32_t num_layers = model.config().num_hidden_layers;
  for (const std::int64_t length : {1024, 8192, 131072}) {
    for (const std::int32_t batch : {1, 8, 9, 16, 32, 33, 64, 65, 128}) {
      const auto made = FilledStep::make(model, batch, length);
      ASSERT_TRUE(made.ok()) << made.status().message();
      FilledStep& step = **made;
      ASSERT_TRUE(step.run(length, 3).ok());
      double best = 1e30;
      for (int i = 0; i < 3; ++i) best = std::min(best, replay_us(step, length));
      const auto captured = step.captured();
      ASSERT_NE(captured, nullptr);
      std::string text(128, ' ');
      text.resize(static_cast<std::size_t>(
          std::snprintf(text.data(), text.size(),
                        "  flash, %d layers + head: context %6lld b=%-3d %9.1f us a step, %3zu "
                        "nodes, launches of a layer:",
                        num_layers, static_cast<long long>(length), batch, best, captured->nodes.size())));
      const std::vector<int> launches = launches_of_layers(*captured, num_layers);
      for (std::int32_t layer = 0; layer < num_layers; ++layer) {
        const int count = launches[static_cast<std::size_t>(layer)];
        const std::int32_t ratio = model.config().compress_ratio(layer);
        text += " " + std::to_string(count) + " (ratio " + std::to_string(ratio) + ")";
        EXPECT_GT(count, 0) << "layer " << layer;
        EXPECT_LE(count, 20) << "layer " << layer << ", context " << length << ", " << batch << " rows";
      }
      report(text);
      model.backend().drop_captured();
    }
  }
}

// What a configured maximum costs a step that is far from it; by turns, so that the card's clocks meet both.
void check_configured_maximum(Model& model) {
  for (const std::int32_t batch : {1, 8, 32, 64, 128}) {
    const auto made = FilledStep::make(model, batch, 2048);
    ASSERT_TRUE(made.ok()) << made.status().message();
    double best[2] = {1e30, 1e30};
    for (int round = 0; round < 9; ++round) {
      for (const int which : {0, 1}) {
        const double us = replay_us(**made, which == 0 ? 8192 : kMillion);
        if (round > 0) best[which] = std::min(best[which], us);
      }
    }
    char text[160];
    std::snprintf(text, sizeof(text),
                  "  context 2048 b=%-3d configured for 8K %9.1f us a step, for 1M %9.1f us: %+.2f %%", batch, best[0],
                  best[1], 100 * (best[1] / best[0] - 1));
    report(text);
    EXPECT_LE(best[1], 1.02 * best[0]) << batch << " rows";
    model.backend().drop_captured();
  }
}

// A step whose rows all close a group of every compressor, beside one that closes none.
void report_closing_steps(Model& model) {
  for (const std::int32_t batch : {1, 32}) {
    double best[2] = {1e30, 1e30};
    for (const bool closes : {false, true}) {
      const auto made = FilledStep::make(model, batch, 8192, closes);
      ASSERT_TRUE(made.ok()) << made.status().message();
      ASSERT_TRUE((*made)->run(8192, 3).ok());
      for (int i = 0; i < 4; ++i) best[closes ? 1 : 0] = std::min(best[closes ? 1 : 0], replay_us(**made, 8192));
      model.backend().drop_captured();
    }
    char text[160];
    std::snprintf(text, sizeof(text), "  context 8192 b=%-3d closing no group %9.1f us a step, closing all %9.1f us",
                  batch, best[0], best[1]);
    report(text);
  }
}

TEST(Synthetic, flash_decode) {
  FATHOM_NEEDS_GPU();
  Flash flash;
  ASSERT_NE(flash.model(), nullptr);
  check_contexts(*flash.model());
  check_configured_maximum(*flash.model());
  report_closing_steps(*flash.model());
}

}  // namespace
}  // namespace fathom::gpu
