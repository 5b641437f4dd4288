// Sampling on the device gives the host's tokens, whatever the rows ask for; and what it costs.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "backend/open_cuda.h"
#include "device.h"
#include "engine/device_sampler.h"
#include "engine/sampling_cases.h"

namespace fathom::gpu {
namespace {

// What came back for one step of `cases`, held against the host's rule.
struct Compared {
  int num_rows = 0, different = 0;
  double worst = 0;  // logprobs, relative
};

void compare(const SamplingCases& cases, std::span<const SampledRow> drawn, const std::string& what, Compared& all) {
  const std::vector<SampledToken> want = cases.expected();
  ASSERT_EQ(drawn.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    const SampledRow& got = drawn[i];
    all.different += got.token != want[i].token ? 1 : 0;
    EXPECT_EQ(got.token, want[i].token) << what << " row " << i;
    const auto check_logprob = [&](float value, float expected) {
      if (value == expected) return;
      const double error = std::fabs(double{value} - expected) / (1.0 + std::fabs(double{expected}));
      all.worst = std::max(all.worst, error);
      EXPECT_LE(error, 1e-6) << what << " row " << i;
    };
    check_logprob(got.logprob, want[i].logprob);
    ASSERT_EQ(static_cast<std::size_t>(got.num_top), want[i].top.size()) << what << " row " << i;
    for (std::size_t k = 0; k < want[i].top.size(); ++k) {
      EXPECT_EQ(got.top_token[k], want[i].top[k].token) << what << " row " << i << " top " << k;
      check_logprob(got.top_logprob[k], want[i].top[k].logprob);
    }
    ++all.num_rows;
  }
}

TEST(Gpu, sample) {
  FATHOM_NEEDS_GPU();
  Result<std::unique_ptr<Backend>> opened = open_cuda_backend({});
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  Backend& backend = **opened;
  OpRegistry registry;
  register_cuda_variants_if_built(registry);
  const std::vector<std::string> names = cuda_variants(OpKind::kSample);
  for (const std::int32_t vocab : {97, 4096, 129280}) {
    if (reduced() && vocab > 4096) continue;  // takes racecheck longer than all the rest
    const int num_steps = reduced() ? 2 : vocab > 100000 ? 24 : 60;
    DeviceSampler sampler = *DeviceSampler::make(backend, vocab, 64, 16);
    DeviceMemory logits = *backend.allocate(std::int64_t{64} * vocab * 4, "logits");
    std::vector<Compared> all(names.size());
    for (int seed = 1; seed <= num_steps; ++seed) {
      // Few rows are shared by more blocks.
      const int num_sequences = reduced() ? 2 : seed % 4 == 0 ? 1 : seed % 4 == 1 ? 3 : 14;
      SamplingCases cases(static_cast<std::uint64_t>(seed), vocab, num_sequences);
      const View view = make_view(logits.data, DType::kF32, {std::int64_t{cases.num_rows()}, std::int64_t{vocab}});
      ASSERT_TRUE(
          backend.upload(view.data, reinterpret_cast<const std::byte*>(cases.logits().data()), view.num_bytes()).ok());
      ASSERT_TRUE(*sampler.fill(cases.plan()));
      for (std::size_t v = 0; v < names.size(); ++v) {
        const std::pair<std::string, std::string> choice{"sample", names[v]};
        const VariantTable variants = *VariantTable::choose(registry, BackendKind::kCuda, {&choice, 1});
        ExecutionContext context = backend.make_context();
        context.variants = &variants;
        sampler.launch(context, view);
        const auto drawn = sampler.take();
        ASSERT_TRUE(drawn.ok()) << drawn.status().message();
        compare(cases, *drawn, names[v] + " step " + std::to_string(seed) + " of " + std::to_string(vocab), all[v]);
      }
    }
    for (std::size_t v = 0; v < names.size(); ++v) {
      char text[160];
      std::snprintf(text, sizeof(text),
                    "  sample/%-11s vocabulary %-6d %d of %d tokens differ from the host's, logprobs within %.0e%s",
                    names[v].c_str(), vocab, all[v].different, all[v].num_rows, all[v].worst,
                    all[v].different > 0 ? "  FAILED" : "");
      report(text);
    }
  }
}

// Rows as a head gives them, normally distributed, in buffers that leave the L2 between calls.
TEST(Bench, sample) {
  FATHOM_NEEDS_GPU();
  constexpr std::int64_t kVocab = 129280;
  constexpr std::int64_t kMostRows = 128, kWords = kVocab / 32;
  Arena arena;
  const int num_buffers = 3;
  std::vector<std::byte*> buffers;
  {
    std::mt19937_64 random(7);
    std::normal_distribution<float> normal(0.0f, 3.0f);
    std::vector<float> host(static_cast<std::size_t>(8 * kVocab));
    for (float& value : host) value = normal(random);
    for (int i = 0; i < num_buffers; ++i) {
      buffers.push_back(arena.allocate(kMostRows * kVocab * 4));
      for (std::int64_t row = 0; row < kMostRows; row += 8) {
        cudaMemcpy(buffers.back() + row * kVocab * 4, host.data(), host.size() * 4, cudaMemcpyHostToDevice);
      }
    }
  }
  std::vector<std::uint32_t> mask(static_cast<std::size_t>(kWords), 0x7fffffffu);
  std::vector<SampleBias> biases;
  std::vector<SampleHistory> histories;
  for (int i = 0; i < 64; ++i) biases.push_back({i * 1999, 0.5f});
  for (int i = 0; i < 2000; ++i) histories.push_back({i * 61, i % 3});
  const auto to_device = [&](const auto& host) {
    const auto bytes = static_cast<std::int64_t>(host.size() * sizeof(host[0]));
    std::byte* data = arena.allocate(bytes);
    cudaMemcpy(data, host.data(), static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice);
    return data;
  };
  const SampleRowsPlan plan = plan_sample_rows(kVocab);
  SampleRowsArgs args;
  args.masks = reinterpret_cast<const std::uint32_t*>(to_device(mask));
  args.biases = reinterpret_cast<const SampleBias*>(to_device(biases));
  args.histories = reinterpret_cast<const SampleHistory*>(to_device(histories));
  args.values = make_view(arena.allocate(kMostRows * kVocab * 4), DType::kF32, {kMostRows, kVocab});
  args.exchange = make_view(arena.allocate(plan.exchange_bytes), DType::kU8, {plan.exchange_bytes});
  cudaMemset(args.exchange.data, 0, static_cast<std::size_t>(plan.exchange_bytes));
  args.sampled =
      reinterpret_cast<SampledRow*>(arena.allocate(kMostRows * static_cast<std::int64_t>(sizeof(SampledRow))));
  struct Mode {
    const char* name;
    SampleRow row;
  };
  std::vector<Mode> modes(1, {"greedy", {}});
  modes[0].row.temperature = 0.0f;
  const auto add = [&](const char* name, auto change) {
    SampleRow row;
    change(row);
    modes.push_back({name, row});
  };
  add("temperature 1", [](SampleRow&) {});
  add("temperature 0.6", [](SampleRow& r) { r.temperature = 0.6f; });
  add("top-k 50", [](SampleRow& r) { r.top_k = 50; });
  add("top-p 0.95", [](SampleRow& r) { r.top_p = 0.95f; });
  add("min-p 0.05", [](SampleRow& r) { r.min_p = 0.05f; });
  add("top-k 50 top-p 0.95 t 0.6", [](SampleRow& r) { r.top_k = 50, r.top_p = 0.95f, r.temperature = 0.6f; });
  add("penalties, bias, mask", [](SampleRow& r) {
    r.repetition_penalty = 1.1f, r.frequency_penalty = 0.2f, r.history_count = 2000, r.bias_count = 64,
    r.mask_begin = 0;
  });
  add("temperature 1, logprob", [](SampleRow& r) { r.num_logprobs = 0; });
  add("greedy, 20 logprobs", [](SampleRow& r) { r.num_logprobs = 20, r.temperature = 0.0f; });
  for (const Mode& mode : modes) {
    std::vector<SampleRow> rows;
    for (std::int64_t r = 0; r < kMostRows; ++r) {
      rows.push_back(mode.row);
      rows.back().seed = static_cast<std::uint64_t>(r) * 77 + 5, rows.back().position = r;
      if (mode.row.changes_logits() || mode.row.cuts()) rows.back().value_row = static_cast<std::int32_t>(r);
    }
    args.rows = reinterpret_cast<const SampleRow*>(to_device(rows));
    for (const std::string& variant : cuda_variants(OpKind::kSample)) {
      std::string text = "  sample/" + variant + std::string(12 - std::min<std::size_t>(variant.size(), 12), ' ') +
                         mode.name + std::string(28 - std::string(mode.name).size(), ' ');
      for (const std::int64_t batch : {1, 8, 32, 64, 128}) {
        const double us = time_cuda(OpKind::kSample, variant, 0, num_buffers, 6, [&](ExecutionContext& c, int copy) {
          args.logits = make_view(buffers[static_cast<std::size_t>(copy)], DType::kF32, {batch, kVocab});
          run_sample_rows(c, plan, args);
        });
        char number[40];
        std::snprintf(number, sizeof(number), " b=%d %.1f us", static_cast<int>(batch), us);
        text += number;
      }
      report(text);
    }
  }
}

}  // namespace
}  // namespace fathom::gpu
