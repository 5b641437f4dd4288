#include "engine/draft_pass.h"

#include <algorithm>

namespace fathom {

bool is_replayable(const DrafterLimits& limits, const ExecutionContext& context,
                   std::span<const DraftedSequence> sequences) {
  return limits.capture && context.taps == nullptr && context.trace == nullptr &&
         std::all_of(sequences.begin(), sequences.end(),
                     [](const DraftedSequence& one) { return one.step->step_class == StepClass::kStep; });
}

Status launch_draft_pass(Model& model, const DrafterLimits& limits, const CaptureKey& key, ExecutionContext& context,
                         const std::function<void(ExecutionContext&)>& launches) {
  context.capture_max_position = model.config().max_position_embeddings - 1;
  context.segments = limits.segments->next(key);
  const Status status = model.backend().launch_captured(key, context, launches);
  context.segments = SegmentTiming::kNone;
  context.capture_max_position = 0;
  return status;
}

}  // namespace fathom
