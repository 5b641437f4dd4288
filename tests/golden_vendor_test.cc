// `vendor` and `serve` numerics against goldens with the vendor's quantisers simulated in float32.
//
// Quantisation makes the network discontinuous: one flipped rounding moves free-running logits by up to 2e-2,
// so quantisers are judged layer by layer, each layer fed the golden streams of the one before.
#include <algorithm>
#include <cmath>
#include <random>

#include "golden_plain_checks.h"
#include "layer_rig.h"
#include "tensor/scalar_formats.h"

namespace fathom::testing {
namespace {

constexpr double kStable = 1e-4;
constexpr double kLoose = 6e-2;
// chat_story, which its makers call stable, is missing here: at position 6 channel 184 of layer 2's attention input
// is 100.00001 quantisation units, 1e-7 from the tie between 96 and 104, and a later layer has another such place.
// Every variant ends 1.2e-3 from its golden; ChatStoryIsATieAway shows that nothing but the tie is between them.
const std::vector<std::string> kStablePrompts = {"len5", "chat_hi", "chat_mul", "chat_cap"};

Goldens vendor_goldens() { return Goldens(source_path("tests/data/golden/mini-vendor/goldens.safetensors")); }

void check_free_running(const Overrides& variants, const std::vector<std::string>& prompts) {
  const Goldens goldens = vendor_goldens();
  Runner runner(source_path("models/mini-v4"), Numerics::vendor(), variants);
  for (const std::string& prompt : prompts) {
    const bool stable = std::find(kStablePrompts.begin(), kStablePrompts.end(), prompt) != kStablePrompts.end();
    const std::vector<float> logits = runner.last_logits(goldens.ints(prompt + ".ids"));
    EXPECT_LE(relative_l2(logits, goldens.floats(prompt + ".last_logits")), stable ? kStable : kLoose) << prompt;
  }
}

TEST(GoldenVendor, FreeRunningCpu) { check_free_running(kCpu, vendor_goldens().prompts()); }
TEST(GoldenVendor, FreeRunningReference) { check_free_running(kReference, {"len5", "chat_hi", "chat_mul"}); }

// The rows of chat_mul, all layers, that land within kStable of the golden when fed the golden streams.
int num_forced_rows_right(const Numerics& numerics, const Overrides& variants) {
  const Goldens goldens = vendor_goldens();
  Runner runner(source_path("models/mini-v4"), numerics, variants);
  const ModelConfig& config = runner.model().config();
  const std::vector<std::int32_t> ids = goldens.ints("chat_mul.ids");
  LayerRig rig(runner.model(), static_cast<std::int64_t>(ids.size()));
  const Goldens weights(source_path("models/mini-v4"));
  const std::size_t width = static_cast<std::size_t>(config.hc_hidden_size());
  std::vector<float> streams = embedded_streams(weights, config, ids);
  int right = 0;
  for (std::int32_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::vector<float> golden = goldens.floats("chat_mul.layer" + std::to_string(layer));
    const std::vector<float> out = rig.run(layer, ids, streams);
    for (std::size_t t = 0; t < ids.size(); ++t) {
      const auto row = std::span(out).subspan(t * width, width);
      right += relative_l2(row, std::span(golden).subspan(t * width, width)) <= kStable ? 1 : 0;
    }
    streams = golden;
  }
  return right;
}

constexpr int kEnoughRows = 40;  // of 48

TEST(GoldenVendor, LayersForced) {
  EXPECT_GE(num_forced_rows_right(Numerics::vendor(), kCpu), kEnoughRows);
  EXPECT_GE(num_forced_rows_right(Numerics::vendor(), kReference), kEnoughRows);
}

TEST(GoldenVendor, LayersForcedSeeTheLinearInputQuantiser) {
  Numerics without = Numerics::vendor();
  without.quantise_linear_input = false;
  EXPECT_LT(num_forced_rows_right(without, kCpu), kEnoughRows);
}

TEST(GoldenVendor, LayersForcedSeeTheKvQuantiser) {
  Numerics without = Numerics::vendor();
  without.quantise_kv = false;
  EXPECT_LT(num_forced_rows_right(without, kCpu), kEnoughRows);
}

// Logits of one token's last streams (spec 2.8), in double.
std::vector<float> head_of(const Goldens& weights, const ModelConfig& config, std::span<const float> streams) {
  const auto hidden = static_cast<std::size_t>(config.hidden_size);
  const auto hc = static_cast<std::size_t>(config.hc_mult);
  const std::vector<float> fn = weights.floats("hc_head_fn"), base = weights.floats("hc_head_base");
  const std::vector<float> scale = weights.floats("hc_head_scale");
  const std::vector<std::uint16_t> norm = weights.bf16("norm.weight"), head = weights.bf16("head.weight");
  const auto inverse_rms = [](std::span<const double> v, double eps) {
    double squares = 0;
    for (const double x : v) squares += x * x;
    return 1.0 / std::sqrt(squares / static_cast<double>(v.size()) + eps);
  };
  const std::vector<double> v(streams.begin(), streams.end());
  const double r = inverse_rms(v, config.rms_norm_eps);
  std::vector<double> x(hidden);
  for (std::size_t j = 0; j < hc; ++j) {
    double dot = 0;
    for (std::size_t i = 0; i < v.size(); ++i) dot += double{fn[j * v.size() + i]} * v[i];
    const double pre = 1.0 / (1.0 + std::exp(-(dot * r * scale[0] + base[j]))) + config.hc_eps;
    for (std::size_t i = 0; i < hidden; ++i) x[i] += pre * v[j * hidden + i];
  }
  const double rms = inverse_rms(x, config.rms_norm_eps);
  for (std::size_t i = 0; i < hidden; ++i) x[i] *= rms * double{bf16_to_float(norm[i])};
  std::vector<float> logits;
  for (std::size_t row = 0; row < head.size() / hidden; ++row) {
    double dot = 0;
    for (std::size_t i = 0; i < hidden; ++i) dot += x[i] * double{bf16_to_float(head[row * hidden + i])};
    logits.push_back(static_cast<float>(dot));
  }
  return logits;
}

// chat_story layer by layer with relative noise of `size` on the streams before each layer.
double noisy_story_error(Model& model, const Goldens& weights, float size, std::mt19937& random) {
  const Goldens goldens = vendor_goldens();
  const ModelConfig& config = model.config();
  const std::vector<std::int32_t> ids = goldens.ints("chat_story.ids");
  LayerRig rig(model, static_cast<std::int64_t>(ids.size()));
  std::uniform_real_distribution<float> noise(-size, size);
  std::vector<float> streams = embedded_streams(weights, config, ids);
  for (std::int32_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    for (float& value : streams) value *= 1.0f + noise(random);
    streams = rig.run(layer, ids, streams);
  }
  const auto width = static_cast<std::size_t>(config.hc_hidden_size());
  const std::vector<float> logits = head_of(weights, config, std::span(streams).last(width));
  return relative_l2(logits, goldens.floats("chat_story.last_logits"));
}

// That chat_story ends beside its golden is the tie and nothing else: noise of a few units in the last place, far too
// small to move logits by 1e-4 where nothing flips, carries it across, and then every logit is the golden's.
TEST(GoldenVendor, ChatStoryIsATieAway) {
  Runner runner(source_path("models/mini-v4"), Numerics::vendor(), kCpu);
  const Goldens weights(source_path("models/mini-v4"));
  std::mt19937 random(20261129);
  EXPECT_GT(noisy_story_error(runner.model(), weights, 0.0f, random), kStable);
  double nearest = 1;
  for (int trial = 0; trial < 60; ++trial) {
    nearest = std::min(nearest, noisy_story_error(runner.model(), weights, 1e-6f, random));
  }
  EXPECT_LE(nearest, 1e-5);
}

// Rows of `layer` whose golden margin is at least `smallest_margin`: how many, and in how many of them the
// quantised indexer selects other entries.
struct SelectionCount {
  int judged = 0;
  int wrong = 0;
};
SelectionCount count_selections(const CollectingTaps& taps, std::int32_t layer, float smallest_margin) {
  const Goldens goldens(source_path("tests/data/golden/mini-vendor/index.safetensors"));
  const std::string suffix = std::to_string(layer);
  const std::vector<std::int32_t> positions = goldens.ints("index400.tpos");
  const std::vector<std::int32_t> golden = goldens.ints("index400.topk" + suffix);
  const std::vector<float> margins = goldens.floats("index400.margin" + suffix);
  SelectionCount count;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (margins[i] < smallest_margin) continue;
    ++count.judged;
    count.wrong +=
        selection_of(taps["topk" + suffix], positions[i]) == selection_of(golden, i, positions.size()) ? 0 : 1;
  }
  return count;
}

CollectingTaps run_index_prompt(const Numerics& numerics, const Overrides& variants) {
  const Goldens goldens(source_path("tests/data/golden/mini-vendor/index.safetensors"));
  Runner runner(source_path("models/mini-v4"), numerics, variants);
  CollectingTaps taps;
  runner.last_logits(goldens.ints("index400.ids"), &taps);
  return taps;
}

// Layer 2 sees streams without a flipped rounding: every row counts. Before layer 4 some have flipped (streams
// differ by 1e-3 and more), which moves scores by about a tenth.
constexpr float kMarginLayer2 = 0.0f;
constexpr float kMarginLayer4 = 0.15f;

TEST(GoldenVendor, IndexSelections) {
  const CollectingTaps taps = run_index_prompt(Numerics::vendor(), kCpu);
  const SelectionCount layer2 = count_selections(taps, 2, kMarginLayer2);
  EXPECT_EQ(layer2.wrong, 0);
  EXPECT_EQ(layer2.judged, 16);
  const SelectionCount layer4 = count_selections(taps, 4, kMarginLayer4);
  EXPECT_EQ(layer4.wrong, 0);
  EXPECT_GE(layer4.judged, 8);
}

TEST(GoldenVendor, IndexSelectionsSeeTheIndexQuantiser) {
  Numerics without = Numerics::vendor();
  without.quantise_index = false;
  const CollectingTaps taps = run_index_prompt(without, kCpu);
  EXPECT_GT(count_selections(taps, 2, kMarginLayer2).wrong, 0);
  EXPECT_GT(count_selections(taps, 4, kMarginLayer4).wrong, 0);
}

// bf16 at the spec's points: close to the vendor's float32, and the same answer where it is not close to a tie.
TEST(GoldenServe, LogitsAndArgmax) {
  const Goldens goldens = vendor_goldens();
  Runner runner(source_path("models/mini-v4"), Numerics::serve(), kCpu);
  int judged = 0;
  for (const std::string& prompt : goldens.prompts()) {
    const std::vector<float> logits = runner.last_logits(goldens.ints(prompt + ".ids"));
    std::vector<float> golden = goldens.floats(prompt + ".last_logits");
    EXPECT_LE(relative_l2(logits, golden), kLoose) << prompt;
    const std::int32_t best = argmax(golden);
    std::nth_element(golden.begin(), golden.begin() + 1, golden.end(), std::greater<>());
    const float top2_gap = golden[0] - golden[1];
    if (top2_gap > 0.5f) {
      EXPECT_EQ(argmax(logits), best) << prompt;
      ++judged;
    }
  }
  EXPECT_GE(judged, 5);
}

}  // namespace
}  // namespace fathom::testing
