// The mini model on the GPU beside the CPU's `serve` numerics: layer by layer on the CPU's streams, then free
// running, then the same answers whatever the batch and with graphs on.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "device.h"
#include "engine/load_model.h"
#include "engine/session.h"
#include "ops/cuda/variants.h"
#include "telemetry/taps.h"
#include "tensor/scalar_formats.h"

namespace fathom::gpu {
namespace {

std::string model_path() {
  const char* path = std::getenv("FATHOM_MINI_MODEL");
  return path != nullptr ? path : std::string(FATHOM_SOURCE_DIR) + "/models/mini-v4";
}

std::map<std::string, std::vector<TokenId>> prompts() {
  const char* path = std::getenv("FATHOM_GPU_PROMPTS");
  std::ifstream file(path != nullptr ? path : std::string(FATHOM_SOURCE_DIR) + "/tests/data/gpu_prompts.txt");
  std::map<std::string, std::vector<TokenId>> all;
  std::string text;
  while (std::getline(file, text)) {
    std::istringstream words(text);
    std::string name;
    words >> name;
    for (TokenId id; words >> id;) all[name].push_back(id);
  }
  return all;
}

LoadedModel load(DeviceChoice device, std::int64_t max_tokens,
                 const std::vector<std::pair<std::string, std::string>>& variants = {}) {
  LoadOptions options;
  options.device = device;
  options.num_threads = 0;
  options.max_step_tokens = max_tokens;
  options.max_logit_rows = 64;
  options.variants = variants;
  // operation=name, to compare variants on the whole model.
  if (const char* choice = std::getenv("FATHOM_GPU_VARIANT"); choice != nullptr && device == DeviceChoice::kCuda) {
    const std::string text(choice);
    options.variants.emplace_back(text.substr(0, text.find('=')), text.substr(text.find('=') + 1));
  }
  Result<LoadedModel> loaded = load_model(model_path(), options);
  if (!loaded.ok()) {
    std::fprintf(stderr, "%s\n", std::string(loaded.status().message()).c_str());
    std::exit(3);
  }
  return std::move(loaded).value();
}

class Collected final : public TapSink {
 public:
  bool wants(std::string_view) override { return true; }
  void write(std::string_view name, View value) override {
    std::vector<float>& to = taps[std::string(name)];
    to.clear();
    for (std::int64_t i = 0; i < value.shape.num_elements(); ++i) {
      to.push_back(value.dtype == DType::kF32    ? value.as<float>()[i]
                   : value.dtype == DType::kBF16 ? bf16_to_float(value.as<std::uint16_t>()[i])
                                                 : static_cast<float>(value.as<std::int32_t>()[i]));
    }
  }
  std::map<std::string, std::vector<float>> taps;
};

// Pools and one step of a whole prompt at position 0.
struct Alone {
  DeviceMemory context, window, state;
  CachePools pools;
  StepInput step;
  ExecutionContext execution;

  Alone(Model& model, std::span<const TokenId> ids) : execution(model.make_context()) {
    Backend& backend = model.backend();
    const CacheLayout& layout = model.cache_layout();
    const auto n = static_cast<std::int64_t>(ids.size());
    const auto blocks = static_cast<std::int32_t>(num_context_blocks(n) + 1);
    context = *backend.allocate(blocks * layout.context_block_bytes, "test");
    window = *backend.allocate(blocks * layout.window_block_bytes, "test");
    state = *backend.allocate(layout.state_slot_bytes, "test");
    pools = {context.data, layout.context_block_bytes, window.data, layout.window_block_bytes,
             state.data,   layout.state_slot_bytes};
    step = *StepInput::make(backend, {n, 1, 64, blocks, blocks});
    std::vector<std::int32_t> table(static_cast<std::size_t>(blocks));
    for (std::int32_t i = 0; i < blocks; ++i) table[static_cast<std::size_t>(i)] = blocks - 1 - i;
    SequenceRows rows;
    rows.tokens = ids;
    rows.context_table = table;
    rows.window_table = table;
    step.clear();
    step.add(rows);
    step.add_logit_row(static_cast<std::int32_t>(n) - 1);
    EXPECT_TRUE(step.upload().ok());
  }
};

double row_error(const float* a, const float* b, std::int64_t n) {
  double error = 0, norm = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    error += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(error / std::max(norm, 1e-30));
}

int rows_that_differ(const std::vector<float>& a, const std::vector<float>& b, std::int64_t rows) {
  const auto width = static_cast<std::ptrdiff_t>(a.size() / static_cast<std::size_t>(rows));
  int different = 0;
  for (std::ptrdiff_t t = 0; t < rows; ++t) {
    different += std::equal(a.begin() + t * width, a.begin() + (t + 1) * width, b.begin() + t * width) ? 0 : 1;
  }
  return different;
}

TEST(Model, layer_forced) {
  FATHOM_NEEDS_GPU();
  LoadedModel cpu = load(DeviceChoice::kCpu, 1024), cuda = load(DeviceChoice::kCuda, 1024);
  const ModelConfig& config = cpu.model->config();
  const auto all = prompts();
  for (const char* name : {"len511", "len1000"}) {
    const std::vector<TokenId>& ids = all.at(name);
    const auto n = static_cast<std::int64_t>(ids.size());
    const std::int64_t width = std::int64_t{config.hc_mult} * config.hidden_size;
    Collected want;
    Alone cpu_run(*cpu.model, ids), gpu_run(*cuda.model, ids);
    cpu_run.execution.taps = &want;
    static_cast<void>(cpu.model->forward(cpu_run.execution, cpu_run.step, cpu_run.pools));
    // Streams before layer 0: copies of the embedding.
    std::vector<float> in(static_cast<std::size_t>(n * width));
    const TensorInfo* embed = cpu.checkpoint->catalog.find("embed.weight");
    const std::span<const std::byte> table = cpu.checkpoint->catalog.bytes(*embed);
    for (std::int64_t t = 0; t < n; ++t) {
      for (std::int64_t i = 0; i < width; ++i) {
        std::uint16_t bits;
        std::memcpy(&bits,
                    table.data() + 2 * (std::int64_t{ids[static_cast<std::size_t>(t)]} * config.hidden_size +
                                        i % config.hidden_size),
                    2);
        in[static_cast<std::size_t>(t * width + i)] = bf16_to_float(bits);
      }
    }
    for (std::int32_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      Collected got;
      std::vector<float> out(in.size());
      gpu_run.execution.taps = &got;
      const Status status = cuda.model->run_layer_alone(gpu_run.execution, layer, gpu_run.step, in, out, gpu_run.pools);
      ASSERT_TRUE(status.ok()) << status.message();
      const std::vector<float>& expected = want.taps.at("layer" + std::to_string(layer));
      std::vector<double> errors;
      for (std::int64_t t = 0; t < n; ++t)
        errors.push_back(row_error(out.data() + t * width, expected.data() + t * width, width));
      std::sort(errors.begin(), errors.end());
      const double median = errors[errors.size() / 2], p99 = errors[errors.size() * 99 / 100];
      const std::string route = "route" + std::to_string(layer);
      const int routed = rows_that_differ(want.taps.at(route), got.taps.at(route), n);
      char routing[80];
      std::snprintf(routing, sizeof(routing), ", routing differs in %d rows (%.1f %%)", routed,
                    100.0 * routed / static_cast<double>(n));
      EXPECT_LE(routed, 0.01 * static_cast<double>(n)) << name << " layer " << layer;
      std::string selection = routing;
      const std::string topk = "topk" + std::to_string(layer);
      if (want.taps.count(topk) > 0) {
        const int different = rows_that_differ(want.taps.at(topk), got.taps.at(topk), n);
        char part[80];
        std::snprintf(part, sizeof(part), ", selection differs in %d rows (%.1f %%)", different,
                      100.0 * different / static_cast<double>(n));
        selection += part;
        EXPECT_LE(different, 0.03 * static_cast<double>(n)) << name << " layer " << layer;
      }
      char text[320];
      std::snprintf(text, sizeof(text), "  %s layer %d (ratio %3d): median %.2e, p99 %.2e, worst %.2e%s", name, layer,
                    config.compress_ratio(layer), median, p99, errors.back(), selection.c_str());
      report(text);
      EXPECT_LE(median, 5e-3) << name << " layer " << layer;
      EXPECT_LE(p99, 5e-2) << name << " layer " << layer;
      in = expected;
    }
  }
}

// Microseconds of a replayed step, with the defaults and with the variants that have more launches, by turns.
std::string step_times(Model& model, const StepInput& step, const CachePools& pools, std::int32_t batch) {
  OpRegistry registry;
  register_cuda_variants(registry);
  const std::vector<std::pair<std::string, std::string>> more = {{"attention_rows", "separate"},
                                                                 {"sparse_attention", "mma_splitk"}};
  const VariantTable separate = *VariantTable::choose(registry, BackendKind::kCuda, more);
  ExecutionContext contexts[2] = {model.make_context(), model.make_context()};
  contexts[1].variants = &separate;
  double best[2] = {1e30, 1e30};
  for (int round = 0; round < 6; ++round) {
    for (int which = 0; which < 2; ++which) {
      ExecutionContext& context = contexts[which];
      context.capture_max_position = 4095;
      constexpr int kReplays = 20;
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < kReplays; ++i) {
        EXPECT_TRUE(model.backend()
                        .launch_captured({-1, step.num_tokens(), batch, 1, false, true}, context,
                                         [&](ExecutionContext& c) { static_cast<void>(model.forward(c, step, pools)); })
                        .ok());
      }
      EXPECT_TRUE(model.backend().finish().ok());
      const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
      if (round > 0) best[which] = std::min(best[which], took.count() / kReplays);
    }
  }
  char text[120];
  std::snprintf(text, sizeof(text), "step %.1f us; with more launches %.1f us", best[0], best[1]);
  return text;
}

// A decode step of `batch` rows as a captured graph: the kernels of each layer, by its operations.
TEST(Model, launches_of_a_layer) {
  FATHOM_NEEDS_GPU();
  LoadedModel cuda = load(DeviceChoice::kCuda, 1024);
  Model& model = *cuda.model;
  const std::vector<TokenId> ids = prompts().at("len511");
  Alone prompt(model, ids);
  static_cast<void>(model.forward(prompt.execution, prompt.step, prompt.pools));
  const std::int64_t start = static_cast<std::int64_t>(ids.size());
  const auto blocks = static_cast<std::int32_t>(num_context_blocks(start + 1) + 1);
  std::vector<std::int32_t> table(static_cast<std::size_t>(blocks));
  // As Alone laid the prompt out.
  for (std::int32_t i = 0; i < blocks; ++i) table[static_cast<std::size_t>(i)] = blocks - 1 - i;
  ASSERT_EQ(blocks, num_context_blocks(start) + 1) << "the row lies in the prompt's blocks";
  std::vector<float> first_logits;
  // Sequences and rows of each: decode, then verification of drafts.
  for (const auto& [batch, num] : {std::pair<std::int32_t, std::int32_t>{1, 1},
                                   {8, 1},
                                   {9, 1},
                                   {16, 1},
                                   {17, 1},
                                   {32, 1},
                                   {63, 1},
                                   {64, 1},
                                   {128, 1},
                                   {1, 5},
                                   {2, 5},
                                   {8, 5},
                                   {16, 5}}) {
    const std::int32_t total = batch * num;
    StepInput step = *StepInput::make(model.backend(), {total, batch, 1, batch * blocks, batch * blocks});
    ExecutionContext context = model.make_context();
    context.capture_max_position = 4095;
    step.clear();
    for (std::int32_t i = 0; i < batch; ++i) {
      SequenceRows rows;
      rows.tokens = {ids.data() + 7, static_cast<std::size_t>(num)};
      rows.start = start;
      rows.context_table = rows.window_table = table;
      step.add(rows);
    }
    step.add_logit_row(total - num);
    step.set_short_sequences(true);
    ASSERT_TRUE(step.upload().ok());
    View logits;
    for (int i = 0; i < 4; ++i) {
      const Status status =
          model.backend().launch_captured({-1, step.num_tokens(), batch, 1, false, true}, context,
                                          [&](ExecutionContext& c) { logits = model.forward(c, step, prompt.pools); });
      ASSERT_TRUE(status.ok()) << status.message();
    }
    std::vector<float> host(static_cast<std::size_t>(logits.shape.num_elements()));
    ASSERT_TRUE(
        model.backend().download(reinterpret_cast<std::byte*>(host.data()), logits.data, logits.num_bytes()).ok());
    ASSERT_TRUE(model.backend().finish().ok());
    if (first_logits.empty()) first_logits = host;
    EXPECT_EQ(host, first_logits) << "one row's logits in a batch of " << batch << " x " << num;
    const auto captured = model.backend().last_captured();
    ASSERT_NE(captured, nullptr);
    std::map<std::int32_t, int> launches;
    for (const CapturedNode& node : captured->nodes) {
      if (node.kind == NodeKind::kKernel && node.call >= 0)
        ++launches[captured->calls[static_cast<std::size_t>(node.call)].scope.layer];
    }
    std::string text = "  launches of a layer, " + std::to_string(batch) + " x " + std::to_string(num) + " rows:";
    for (std::int32_t layer = 0; layer < model.config().num_hidden_layers; ++layer) {
      text += " " + std::to_string(launches[layer]) + " (ratio " +
              std::to_string(model.config().compress_ratio(layer)) + ")";
      EXPECT_LE(launches[layer], 20) << "layer " << layer << ", " << batch << " x " << num << " rows";
    }
    report(text);
    report("    " + step_times(model, step, prompt.pools, batch));
    model.backend().drop_captured();
  }
}

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> gaps;  // top-1 minus top-2 of the logits a token was chosen from
};

Answer greedy(Session* session, std::span<const TokenId> prompt, int num_tokens, bool stop) {
  SampleSpec spec;
  spec.temperature = 0.0f;
  Answer answer;
  Result<SampledToken> token = session->prefill(prompt, spec);
  while (true) {
    if (!token.ok()) {
      ADD_FAILURE() << token.status().message();
      break;
    }
    const std::span<const float> logits = session->executor().logits(0);
    float best = -INFINITY, second = -INFINITY;
    for (const float value : logits) {
      if (value > best)
        second = best, best = value;
      else if (value > second)
        second = value;
    }
    answer.tokens.push_back(token->token);
    answer.gaps.push_back(best - second);
    if (static_cast<int>(answer.tokens.size()) == num_tokens || (stop && token->token == 1)) break;
    token = session->decode(token->token, spec);
  }
  return answer;
}

TEST(Model, greedy_like_the_cpu) {
  FATHOM_NEEDS_GPU();
  LoadedModel cpu = load(DeviceChoice::kCpu, 512), cuda = load(DeviceChoice::kCuda, 512);
  const std::unique_ptr<Session> cpu_session = *Session::make(*cpu.model, {4096, 512}),
                                 cuda_session = *Session::make(*cuda.model, {4096, 512});
  for (const auto& [name, ids] : prompts()) {
    const Answer want = greedy(cpu_session.get(), ids, 64, true), got = greedy(cuda_session.get(), ids, 64, true);
    std::size_t same = 0;
    while (same < want.tokens.size() && same < got.tokens.size() && want.tokens[same] == got.tokens[same]) ++same;
    const bool whole = same == want.tokens.size() && same == got.tokens.size();
    const float gap = whole ? 0.0f : want.gaps[std::min(same, want.gaps.size() - 1)];
    char text[160];
    std::snprintf(text, sizeof(text), "  greedy %-16s %zu of %zu tokens as the CPU's%s", name.c_str(), same,
                  want.tokens.size(), whole ? "" : (", then a gap of " + std::to_string(gap)).c_str());
    report(text);
    EXPECT_TRUE(whole || gap < 0.25f) << name;
  }
}

// The same prompt twice on one model: the second run replays graphs captured by the first, at other lengths.
TEST(Model, replay_gives_the_same_bits) {
  FATHOM_NEEDS_GPU();
  LoadedModel cuda = load(DeviceChoice::kCuda, 512);
  const auto all = prompts();
  const std::unique_ptr<Session> session = *Session::make(*cuda.model, {4096, 512});
  const Answer first = greedy(session.get(), all.at("chat_story"), 200, false);
  const Answer longer = greedy(session.get(), all.at("len511"), 150, false);
  session->reset();
  const Answer again = greedy(session.get(), all.at("chat_story"), 200, false);
  EXPECT_EQ(first.tokens, again.tokens);
  EXPECT_EQ(first.gaps, again.gaps);
  report("  replay: 200 tokens and their logit gaps equal bit by bit, with a longer sequence between");
}

}  // namespace
}  // namespace fathom::gpu
