// The mini model through the engine: 200 prompts.
#include "engine/model_determinism.h"

namespace fathom {
namespace {

TEST(ModelDeterminismLong, TwoHundredPrompts) {
  ModelBench bench;
  const std::vector<ModelCase> cases = bench.make_cases(200, 60);
  ModelBench::Run alone;
  alone.together = false;
  alone.chunk_tokens = 512;
  alone.times = 2;
  bench.expect_answers(cases, alone);
  for (std::int32_t chunk : {16, 32, 61, 96, 128, 256, 512}) {
    ModelBench::Run together;
    together.chunk_tokens = chunk;
    bench.expect_answers(cases, together);
    together.prefix_cache = false;
    bench.expect_answers(cases, together);
  }
  for (std::int32_t depth : {1, 2, 3, 4, 5, 6, 7, -1}) {
    ModelBench::Run drafted;
    drafted.num_drafts = depth < 0 ? 5 : depth;
    drafted.adaptive = depth < 0;
    drafted.num_sequences = 64;
    bench.expect_answers(cases, drafted);
    drafted.together = false;
    if (depth == 1 || depth == 7 || depth < 0) bench.expect_answers(cases, drafted);
  }
  ModelBench::Run pressed;
  pressed.cancels = true;
  pressed.num_context_blocks = 20;
  pressed.num_resume_slots = 4;
  pressed.times = 2;
  const EngineStats stats = bench.expect_answers(cases, pressed);
  EXPECT_GT(stats.evicted_blocks, 0);
}

}  // namespace
}  // namespace fathom
