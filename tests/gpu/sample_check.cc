// Sampling on the device gives the host's tokens.
#include <cmath>
#include <cstdio>
#include <limits>

#include "device.h"
#include "ops/sample/device_sample.h"
#include "ops/sample/sample.h"

namespace fathom::gpu {
namespace {

TEST(Gpu, sample) {
  FATHOM_NEEDS_GPU();
  testing::Random random;
  for (const std::int64_t vocab : {384, 4096, 129280}) {
    Arena arena;
    const std::int64_t rows = 48;
    std::vector<float> logits(static_cast<std::size_t>(rows * vocab));
    for (float& value : logits) value = 4.0f * random.normal();
    logits[3] = std::numeric_limits<float>::quiet_NaN();
    logits[static_cast<std::size_t>(vocab) + 5] = std::numeric_limits<float>::infinity();
    logits[static_cast<std::size_t>(2 * vocab)] = logits[static_cast<std::size_t>(2 * vocab) + 100] = 50.0f;  // a tie
    std::vector<float> temperature;
    std::vector<std::uint64_t> seed;
    std::vector<std::uint32_t> choice;
    std::vector<std::int64_t> position;
    for (std::int64_t r = 0; r < rows; ++r) {
      temperature.push_back(r % 4 == 0 || r == 2 ? 0.0f : 0.3f * static_cast<float>(r % 7 + 1));
      seed.push_back(random.engine()());
      choice.push_back(static_cast<std::uint32_t>(r % 3));
      position.push_back(random.integer(1, 1'000'000));
    }
    const auto copy = [&](auto& v, DType dtype) {
      return arena.copy(make_view(v.data(), dtype, {static_cast<std::int64_t>(v.size())}));
    };
    DeviceSampleArgs args;
    args.logits = arena.copy(make_view(logits.data(), {rows, vocab}));
    args.temperature = copy(temperature, DType::kF32), args.seed = copy(seed, DType::kU64),
    args.choice = copy(choice, DType::kU32), args.position = copy(position, DType::kI64);
    args.tokens = arena.poisoned(DType::kI32, {rows}), args.logprobs = arena.poisoned(DType::kF32, {rows});
    run_cuda(OpKind::kEmbed, "simt", 0, [&](ExecutionContext& c) { sample_rows_cuda(c, args); });
    const std::vector<std::int32_t> tokens = read_ints(args.tokens);
    const std::vector<float> logprobs = read_floats(args.logprobs);
    SampleWorkspace workspace;
    int different = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      SampleSpec spec;
      const auto i = static_cast<std::size_t>(r);
      spec.temperature = temperature[i], spec.seed = seed[i], spec.choice = choice[i], spec.num_logprobs = 0;
      const SampledToken want =
          sample_token(std::span(logits).subspan(i * static_cast<std::size_t>(vocab), static_cast<std::size_t>(vocab)),
                       position[i], spec, workspace);
      different += want.token != tokens[i] ? 1 : 0;
      EXPECT_EQ(tokens[i], want.token) << "row " << r << " of " << vocab << ", T " << temperature[i];
      EXPECT_NEAR(logprobs[i], want.logprob, 1e-4f * (1.0f + std::fabs(want.logprob))) << "row " << r;
    }
    char text[120];
    std::snprintf(text, sizeof(text), "  sample/rows 48 x %-6lld %d tokens differ from the host's%s",
                  static_cast<long long>(vocab), different, different > 0 ? "  FAILED" : "");
    report(text);
  }
}

}  // namespace
}  // namespace fathom::gpu
