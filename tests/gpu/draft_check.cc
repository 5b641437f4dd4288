// stream_mean and markov_head: what a DSpark drafter needs besides the trunk's operations.
#include <cstring>

#include "device.h"
#include "ops/markov_head/markov_head.h"
#include "ops/stream_mean/stream_mean.h"
#include "ops/testing/run.h"

namespace fathom::gpu {
namespace {

using testing::make_i32;
using testing::poisoned;
using testing::Random;
using testing::random_bf16_valued;
using testing::random_f32;
using testing::random_weight;
using testing::run_with;
using testing::Tensor;
using testing::TestWeight;

TEST(Gpu, stream_mean) {
  FATHOM_NEEDS_GPU();
  Random random;
  for (const std::int64_t tokens : {1, 7, 129}) {
    Arena arena;
    const std::int64_t hidden = 256;
    const StreamMeanDesc desc{hidden, 4, 3, Numerics::serve()};
    const Tensor streams = random_bf16_valued(random, {tokens, 4, hidden});
    const Tensor want = poisoned(DType::kF32, {tokens, 3 * hidden});
    const View gpu_streams = arena.copy_bf16(streams.view());
    const DeviceInfo cpu;
    run_with(OpKind::kStreamMean, "reference", 1, 0, [&](ExecutionContext& c) {
      for (int slot = 0; slot < 3; ++slot)
        run_stream_mean(c, plan_stream_mean(desc, cpu), {streams.view(), slot, want.view()});
    });
    for (const std::string& variant : cuda_variants(OpKind::kStreamMean)) {
      const View got = arena.poisoned(DType::kBF16, {tokens, 3 * hidden});
      run_cuda(OpKind::kStreamMean, variant, 0, [&](ExecutionContext& c) {
        for (int slot = 0; slot < 3; ++slot) {
          run_stream_mean(c, plan_stream_mean(desc, device_info()), {gpu_streams, slot, got});
        }
      });
      expect_close(read_floats(got), want.floats(), true, 0.0,
                   "stream_mean/" + variant + " " + std::to_string(tokens) + " rows");
    }
  }
}

TEST(Gpu, markov_head) {
  FATHOM_NEEDS_GPU();
  Random random;
  struct Case {
    std::int64_t rows, hidden, rank, vocab;
  };
  for (const auto& [rows, hidden, rank, vocab] : {Case{1, 128, 32, 384}, {5, 256, 64, 1001}, {16, 1024, 256, 4096}}) {
    Arena arena;
    const TestWeight w1 = random_weight(random, WeightFormat::kBf16, vocab, rank),
                     w2 = random_weight(random, WeightFormat::kBf16, vocab, rank),
                     proj = random_weight(random, WeightFormat::kBf16, 1, hidden + rank);
    const Tensor logits = random_f32(random, {rows, vocab}), collapsed = random_bf16_valued(random, {rows, hidden});
    std::vector<std::int32_t> tokens, indices;
    for (std::int64_t i = 0; i < rows; ++i) {
      tokens.push_back(static_cast<std::int32_t>(random.integer(0, vocab)));
      indices.push_back(static_cast<std::int32_t>(rows - 1 - i));
    }
    const Tensor previous = make_i32({rows}, tokens), chosen = make_i32({rows}, indices);
    const MarkovHeadDesc desc{rows, hidden, rank, vocab};
    const Tensor want = poisoned(DType::kF32, {rows, vocab}), want_confidence = poisoned(DType::kF32, {rows});
    run_with(OpKind::kMarkovHead, "reference", 1, 0, [&](ExecutionContext& c) {
      run_markov_head(c, {desc, 0},
                      {previous.view(), chosen.view(), logits.view(), collapsed.view(), w1.weight.values, &w2.weight,
                       &proj.weight, want.view(), want_confidence.view()});
    });
    const LinearWeight gpu_w1 = arena.copy(w1.weight), gpu_w2 = arena.copy(w2.weight),
                       gpu_proj = arena.copy(proj.weight);
    const View gpu_previous = arena.copy(previous.view()), gpu_chosen = arena.copy(chosen.view()),
               gpu_logits = arena.copy(logits.view()), gpu_collapsed = arena.copy_bf16(collapsed.view());
    for (const std::string& variant : cuda_variants(OpKind::kMarkovHead)) {
      const MarkovHeadPlan plan = plan_markov_head(desc, device_info());
      const View got = arena.poisoned(DType::kF32, {rows, vocab}), confidence = arena.poisoned(DType::kF32, {rows});
      run_cuda(OpKind::kMarkovHead, variant, plan.workspace_bytes, [&](ExecutionContext& c) {
        run_markov_head(
            c, plan,
            {gpu_previous, gpu_chosen, gpu_logits, gpu_collapsed, gpu_w1.values, &gpu_w2, &gpu_proj, got, confidence});
      });
      const std::string what = "markov_head/" + variant + " " + std::to_string(rows) + " x " + std::to_string(vocab);
      expect_close(read_floats(got), want.floats(), false, 1e-5, what);
      expect_close(read_floats(confidence), want_confidence.floats(), false, 1e-5, what + " confidence");
      const View alone = arena.poisoned(DType::kF32, {1, vocab}), sure = arena.poisoned(DType::kF32, {1});
      run_cuda(OpKind::kMarkovHead, variant, plan.workspace_bytes, [&](ExecutionContext& c) {
        run_markov_head(c, plan,
                        {gpu_previous.rows(rows - 1, rows), gpu_chosen.rows(rows - 1, rows), gpu_logits, gpu_collapsed,
                         gpu_w1.values, &gpu_w2, &gpu_proj, alone, sure});
      });
      EXPECT_EQ(read_floats(alone), read_floats(got.rows(rows - 1, rows))) << what;
    }
  }
}

}  // namespace
}  // namespace fathom::gpu
