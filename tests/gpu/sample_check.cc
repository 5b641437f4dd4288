// Sampling on the device gives the host's tokens, whatever the rows ask for.
#include <cmath>
#include <cstdio>

#include "backend/open_cuda.h"
#include "device.h"
#include "engine/device_sampler.h"
#include "engine/sampling_cases.h"

namespace fathom::gpu {
namespace {

TEST(Gpu, sample) {
  FATHOM_NEEDS_GPU();
  Result<std::unique_ptr<Backend>> opened = open_cuda_backend({});
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  Backend& backend = **opened;
  OpRegistry registry;
  register_cuda_variants_if_built(registry);
  const VariantTable variants = *VariantTable::choose(registry, BackendKind::kCuda);
  ExecutionContext context = backend.make_context();
  context.variants = &variants;
  for (const std::int32_t vocab : {97, 4096, 129280}) {
    const int num_steps = reduced() ? 1 : vocab > 100000 ? 12 : 40;
    DeviceSampler sampler = *DeviceSampler::make(backend, vocab, 64, 16);
    DeviceMemory logits = *backend.allocate(std::int64_t{64} * vocab * 4, "logits");
    int different = 0, num_rows = 0;
    double worst = 0;
    for (int seed = 1; seed <= num_steps; ++seed) {
      SamplingCases cases(static_cast<std::uint64_t>(seed), vocab, reduced() ? 4 : 14);
      const View view = make_view(logits.data, DType::kF32, {std::int64_t{cases.num_rows()}, std::int64_t{vocab}});
      ASSERT_TRUE(
          backend.upload(view.data, reinterpret_cast<const std::byte*>(cases.logits().data()), view.num_bytes()).ok());
      ASSERT_TRUE(*sampler.fill(cases.plan()));
      sampler.launch(context, view);
      const auto drawn = sampler.take();
      ASSERT_TRUE(drawn.ok()) << drawn.status().message();
      const std::vector<SampledToken> want = cases.expected();
      for (std::size_t i = 0; i < want.size(); ++i) {
        const SampledRow& got = (*drawn)[i];
        different += got.token != want[i].token ? 1 : 0;
        EXPECT_EQ(got.token, want[i].token) << "step " << seed << " row " << i << " of " << vocab;
        const auto check_logprob = [&](float value, float expected) {
          if (value == expected) return;
          const double error = std::fabs(double{value} - expected) / (1.0 + std::fabs(double{expected}));
          worst = std::max(worst, error);
          EXPECT_LE(error, 1e-6) << "step " << seed << " row " << i << " of " << vocab;
        };
        check_logprob(got.logprob, want[i].logprob);
        ASSERT_EQ(static_cast<std::size_t>(got.num_top), want[i].top.size());
        for (std::size_t k = 0; k < want[i].top.size(); ++k) {
          EXPECT_EQ(got.top_token[k], want[i].top[k].token) << "step " << seed << " row " << i << " top " << k;
          check_logprob(got.top_logprob[k], want[i].top[k].logprob);
        }
        ++num_rows;
      }
    }
    char text[160];
    std::snprintf(text, sizeof(text),
                  "  sample/rows vocabulary %-6d %d of %d tokens differ from the host's, logprobs within %.0e%s", vocab,
                  different, num_rows, worst, different > 0 ? "  FAILED" : "");
    report(text);
  }
}

}  // namespace
}  // namespace fathom::gpu
