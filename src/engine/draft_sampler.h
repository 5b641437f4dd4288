// Draws draft tokens as the verifying step will: same specs, same noise, same history.
#pragma once

#include <span>
#include <vector>

#include "engine/drafter.h"
#include "ops/sample/sample.h"

namespace fathom {

class DraftSampler {
 public:
  // The next proposal of a sequence from its draft logits [vocab], appended to its result. Masks and log
  // probabilities stay out: the verifying step knows them.
  TokenId draw(const DraftedSequence& sequence, std::span<const float> logits) {
    SampleSpec spec = *sequence.spec;
    spec.allowed = {};
    spec.forced = {};
    spec.num_logprobs = -1;
    const auto num_proposed = static_cast<std::int64_t>(sequence.result->proposals.size());
    const bool penalises =
        spec.repetition_penalty != 1.0f || spec.frequency_penalty != 0.0f || spec.presence_penalty != 0.0f;
    if (penalises) {
      const auto known = spec.output_ids.first(
          spec.output_ids.size() - static_cast<std::size_t>(sequence.step->num_drafts - sequence.result->accepted));
      history_.assign(known.begin(), known.end());
      history_.push_back(sequence.next_token());
      history_.insert(history_.end(), sequence.result->proposals.begin(), sequence.result->proposals.end());
      spec.output_ids = history_;
    }
    sample_token(logits, sequence.committed_length() + 1 + num_proposed, spec, workspace_, drawn_);
    return drawn_.token;
  }

 private:
  SampleWorkspace workspace_;
  SampledToken drawn_;
  std::vector<TokenId> history_;
};

}  // namespace fathom
