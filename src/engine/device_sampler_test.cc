#include "engine/device_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "backend/device_backend.h"
#include "backend/emulated_device_api.h"
#include "engine/sampling_cases.h"

namespace fathom {
namespace {

struct Device {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<VariantTable> variants;
  ExecutionContext context;

  Device() {
    backend = *DeviceBackend::open(make_emulated_device_api(std::int64_t{1} << 30), {});
    OpRegistry registry;
    register_cpu_variants(registry);
    variants = std::make_unique<VariantTable>(*VariantTable::choose(registry, BackendKind::kCpu));
    context = backend->make_context();
    context.variants = variants.get();
  }
};

TEST(DeviceSampler, draws_what_the_host_draws) {
  Device device;
  const std::int32_t vocab = 1000;
  DeviceSampler sampler = *DeviceSampler::make(*device.backend, vocab, 64, 16);
  DeviceMemory logits = *device.backend->allocate(64 * vocab * 4, "logits");
  int num_changed = 0, num_top = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SamplingCases cases(seed, vocab, 12);
    const View view = make_view(logits.data, DType::kF32, {std::int64_t{cases.num_rows()}, std::int64_t{vocab}});
    ASSERT_TRUE(
        device.backend->upload(view.data, reinterpret_cast<const std::byte*>(cases.logits().data()), view.num_bytes())
            .ok());
    const Result<bool> fits = sampler.fill(cases.plan());
    ASSERT_TRUE(fits.ok() && *fits);
    sampler.launch(device.context, view);
    const auto drawn = sampler.take();
    ASSERT_TRUE(drawn.ok());
    const std::vector<SampledToken> want = cases.expected();
    ASSERT_EQ(drawn->size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      const SampledRow& got = (*drawn)[i];
      EXPECT_EQ(got.token, want[i].token) << "seed " << seed << " row " << i;
      EXPECT_EQ(got.logprob, want[i].logprob) << "seed " << seed << " row " << i;
      ASSERT_EQ(static_cast<std::size_t>(got.num_top), want[i].top.size());
      for (std::size_t k = 0; k < want[i].top.size(); ++k) {
        EXPECT_EQ(got.top_token[k], want[i].top[k].token);
        EXPECT_EQ(got.top_logprob[k], want[i].top[k].logprob);
        ++num_top;
      }
      num_changed +=
          want[i].token != static_cast<TokenId>(
                               std::max_element(cases.logits().begin() + static_cast<std::ptrdiff_t>(i) * vocab,
                                                cases.logits().begin() + static_cast<std::ptrdiff_t>(i + 1) * vocab) -
                               (cases.logits().begin() + static_cast<std::ptrdiff_t>(i) * vocab))
              ? 1
              : 0;
    }
  }
  // The cases are no plain argmax: a sampler that ignored the specs would differ in most rows.
  EXPECT_GT(num_changed, 500);
  EXPECT_GT(num_top, 1000);
}

TEST(DeviceSampler, says_when_a_step_asks_for_more_than_fits) {
  Device device;
  DeviceSampler sampler = *DeviceSampler::make(*device.backend, 100, 4, 1);
  StepPlan plan;
  SequenceStep step;
  step.num_tokens = step.num_logits = 1;
  plan.sequences.push_back(step);
  plan.samples.emplace_back();
  plan.samples[0].num_logprobs = kMaxSampleTop;
  EXPECT_TRUE(*sampler.fill(plan));
  plan.samples[0].num_logprobs = kMaxSampleTop + 1;
  EXPECT_FALSE(*sampler.fill(plan));
}

}  // namespace
}  // namespace fathom
