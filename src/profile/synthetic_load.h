// A fixed load on an engine of its own: `batch` requests of `context` random tokens that all decode, step after step.
#pragma once

#include <memory>
#include <vector>

#include "engine/engine.h"
#include "model/model.h"
#include "profile/timeline.h"

namespace fathom {

struct SyntheticLoadOptions {
  std::int32_t batch = 8;
  std::int64_t context_tokens = 512;
  std::int32_t num_steps = 40;   // measured, of each repeat
  std::int32_t num_warmup = 8;   // steps of the full batch before them
  std::int32_t num_repeats = 5;  // each begins with the prompts anew
  std::int32_t num_drafts = 0;
  std::int64_t chunk_tokens = 512;  // prefill rows of a step
  std::uint64_t seed = 1;
};

// The steps of each repeat, all sequences decoding. Scheduling, sampling (temperature 1) and detokenising run as in
// the server; HTTP does not. The model must have been loaded for chunk_tokens + batch rows and for logits of
// batch * (1 + drafts) rows.
Result<std::vector<std::vector<TimelineStep>>> run_synthetic_load(Model& model,
                                                                  std::shared_ptr<const Tokenizer> tokenizer,
                                                                  const SyntheticLoadOptions& options);

}  // namespace fathom
