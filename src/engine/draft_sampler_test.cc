// Drafts are drawn as the step that verifies them will draw: a drafter whose logits are the trunk's is always right.
#include "engine/draft_sampler.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

constexpr std::int32_t kVocab = 40;

// Flat, so that noise and penalties decide.
std::vector<float> logits_behind(std::size_t num_output) {
  std::vector<float> logits(kVocab);
  for (std::size_t id = 0; id < logits.size(); ++id)
    logits[id] = 0.2f * static_cast<float>((id * 7 + num_output * 11) % 5);
  return logits;
}

// A step that verified three drafts, of which it accepted `accepted`, and drew another token behind them. What is
// drawn for the six places behind is drafted, and drawn by steps that know all tokens before.
void expect_the_same_draws(SampleSpec spec, std::int32_t accepted) {
  const std::vector<TokenId> prompt = {3, 3, 4, 5, 9};
  std::vector<TokenId> known = {5, 6, 7};  // of the output before the step
  std::vector<TokenId> with_drafts = known;
  with_drafts.insert(with_drafts.end(), {11, 12, 13});
  spec.prompt_ids = prompt;
  spec.output_ids = with_drafts;
  SequenceStep step;
  step.start = static_cast<std::int64_t>(prompt.size() + known.size()) - 1;
  step.num_tokens = step.num_logits = 4;
  step.num_drafts = 3;
  SequenceResult result;
  result.accepted = accepted;
  result.tokens.resize(4);
  for (std::int32_t i = 0; i < accepted; ++i) {
    known.push_back(with_drafts[3 + static_cast<std::size_t>(i)]);
    result.tokens[static_cast<std::size_t>(i)].token = known.back();
  }
  known.push_back(20);
  result.tokens[static_cast<std::size_t>(accepted)].token = 20;
  DraftedSequence sequence;
  sequence.step = &step;
  sequence.spec = &spec;
  sequence.result = &result;

  DraftSampler sampler;
  SampleWorkspace workspace;
  for (int draft = 0; draft < 6; ++draft) {
    const std::vector<float> logits = logits_behind(known.size());
    result.proposals.push_back(sampler.draw(sequence, logits));
    SampleSpec verifying = spec;
    verifying.output_ids = known;
    const auto position = static_cast<std::int64_t>(prompt.size() + known.size());
    EXPECT_EQ(result.proposals.back(), sample_token(logits, position, verifying, workspace).token)
        << "draft " << draft << " behind " << accepted << " accepted, temperature " << spec.temperature;
    known.push_back(result.proposals.back());
  }
}

TEST(DraftSampler, DrawsWhatTheVerifyingStepWillDraw) {
  for (const float temperature : {0.0f, 1.0f}) {
    for (std::int32_t accepted = 0; accepted <= 3; ++accepted) {
      for (std::uint64_t seed = 0; seed < 20; ++seed) {
        SampleSpec spec;
        spec.temperature = temperature;
        spec.seed = seed;
        spec.choice = static_cast<std::uint32_t>(seed % 3);
        expect_the_same_draws(spec, accepted);
        spec.repetition_penalty = 1.5f;
        expect_the_same_draws(spec, accepted);
        spec.repetition_penalty = 1.0f;
        spec.frequency_penalty = 0.9f;
        expect_the_same_draws(spec, accepted);
        spec.frequency_penalty = 0.0f;
        spec.presence_penalty = 0.9f;
        expect_the_same_draws(spec, accepted);
      }
    }
  }
}

// The masks and the forced ids of the step that was verified are not those of the drafts.
TEST(DraftSampler, LeavesOutWhatTheNextStepKnowsAlone) {
  const std::vector<std::uint32_t> only_first(4 * 2, 1u);
  const std::vector<TokenId> forced(4, 2);
  SampleSpec spec;
  spec.temperature = 0.0f;
  spec.num_logprobs = 2;
  SequenceStep step;
  step.num_tokens = step.num_logits = 1;
  SequenceResult result;
  result.tokens.resize(1);
  result.tokens[0].token = 8;
  DraftedSequence sequence;
  sequence.step = &step;
  sequence.spec = &spec;
  sequence.result = &result;
  std::vector<float> logits(kVocab);
  logits[33] = 5.0f;
  DraftSampler sampler;
  spec.allowed = only_first;
  EXPECT_EQ(sampler.draw(sequence, logits), 33);
  spec.forced = forced;
  EXPECT_EQ(sampler.draw(sequence, logits), 33);
}

}  // namespace
}  // namespace fathom
