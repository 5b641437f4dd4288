// The DSpark drafter against goldens made by code that is not ours (spec 2.10): taps, drafts, logits, confidences of
// six decode steps behind prompts on both sides of the window's end.
#include "draft_rig.h"

namespace fathom::testing {
namespace {

constexpr double kReferenceTolerance = 2e-5;
constexpr double kCpuTolerance = 2e-3;

std::span<const float> part(const std::vector<float>& values, std::size_t index, std::size_t size) {
  return std::span(values).subspan(index * size, size);
}

// The trunk over the rows, then the drafter's context keys. Returns the last row's logits.
std::vector<float> feed(DraftRig& rig, std::span<const TokenId> tokens, std::int64_t start, CollectingTaps* taps) {
  const std::vector<float> logits = rig.forward(tokens, start);
  rig.context().taps = taps;
  rig.draft_context(tokens, start);
  rig.context().taps = nullptr;
  return logits;
}

void check_prompt(const Goldens& goldens, const std::string& prompt, DraftRig& rig, double tolerance,
                  std::size_t chunk) {
  SCOPED_TRACE(prompt);
  const std::vector<std::int32_t> ids = goldens.ints(prompt + ".ids");
  const std::vector<std::int32_t> fed = goldens.ints(prompt + ".fed");
  const std::vector<std::int32_t> draft_ids = goldens.ints(prompt + ".draft_ids");
  const std::vector<float> step_logits = goldens.floats(prompt + ".step_logits");
  const std::vector<float> tap = goldens.floats(prompt + ".tap");
  const std::vector<float> draft_logits = goldens.floats(prompt + ".draft_logits");
  const std::vector<float> confidence = goldens.floats(prompt + ".confidence");
  const auto vocab = static_cast<std::size_t>(rig.vocab_size());
  const std::size_t block = draft_ids.size() / fed.size() - 1;
  for (std::size_t start = 0; start < ids.size(); start += chunk) {
    const std::size_t count = std::min(chunk, ids.size() - start);
    const std::vector<float> logits =
        feed(rig, std::span(ids).subspan(start, count), static_cast<std::int64_t>(start), nullptr);
    if (start + count == ids.size()) {
      EXPECT_LE(relative_l2(logits, goldens.floats(prompt + ".last_logits")), tolerance);
    }
  }
  for (std::size_t step = 0; step < fed.size(); ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    const auto position = static_cast<std::int64_t>(ids.size() + step);
    CollectingTaps taps;
    const std::vector<float> logits = feed(rig, {&fed[step], 1}, position, &taps);
    EXPECT_LE(relative_l2(logits, part(step_logits, step, vocab)), tolerance);
    EXPECT_LE(relative_l2(taps["taps"].values, part(tap, step, tap.size() / fed.size())), tolerance);
    TokenId previous = argmax(logits);
    EXPECT_EQ(previous, draft_ids[step * (block + 1)]);
    rig.draft_block(previous, position + 1);
    std::vector<float> sure_of;
    for (std::size_t i = 0; i < block; ++i) {
      const auto [corrected, sure] = rig.draft_markov(previous, static_cast<std::int32_t>(i));
      EXPECT_LE(relative_l2(corrected, part(draft_logits, step * block + i, vocab)), tolerance) << "draft " << i;
      sure_of.push_back(sure);
      previous = argmax(corrected);
      EXPECT_EQ(previous, draft_ids[step * (block + 1) + 1 + i]) << "draft " << i;
    }
    EXPECT_LE(relative_l2(sure_of, part(confidence, step, block)), tolerance) << "confidence";
  }
}

TEST(GoldenDspark, Reference) {
  const Goldens goldens(source_path("tests/data/golden/tiny-dspark/goldens.safetensors"));
  DraftRig rig(source_path("tests/data/models/tiny-dspark"), Numerics::plain(), kReference);
  for (const std::string& prompt : goldens.prompts()) check_prompt(goldens, prompt, rig, kReferenceTolerance, 512);
}

TEST(GoldenDspark, CpuInChunks) {
  const Goldens goldens(source_path("tests/data/golden/tiny-dspark/goldens.safetensors"));
  DraftRig rig(source_path("tests/data/models/tiny-dspark"), Numerics::plain(), kCpu);
  for (const std::string& prompt : goldens.prompts()) check_prompt(goldens, prompt, rig, kCpuTolerance, 50);
}

// The check bites: a block with a causal mask inside drafts otherwise.
TEST(GoldenDspark, ACausalBlockIsSeen) {
  const Goldens goldens(source_path("tests/data/golden/tiny-dspark/goldens.safetensors"));
  DraftRig rig(source_path("tests/data/models/tiny-dspark"), Numerics::plain(), kCpu);
  const std::vector<std::int32_t> ids = goldens.ints("n40.ids");
  const TokenId fed = goldens.ints("n40.fed")[0];
  feed(rig, ids, 0, nullptr);
  const TokenId next = argmax(feed(rig, {&fed, 1}, 40, nullptr));
  rig.draft_block_causal(next, 41);
  const auto [logits, confidence] = rig.draft_markov(next, 0);
  EXPECT_GT(relative_l2(logits, part(goldens.floats("n40.draft_logits"), 0, logits.size())), 1e-3);
}

}  // namespace
}  // namespace fathom::testing
