// What both drafters' passes on a device have in common: when a pass can be replayed, and how.
#pragma once

#include <functional>
#include <span>

#include "engine/drafter.h"

namespace fathom {

// Steps of decodes alone have few shapes, and what is profiled is launched.
bool is_replayable(const DrafterLimits& limits, const ExecutionContext& context,
                   std::span<const DraftedSequence> sequences);
// Behind the step's wait the caller reads limits.segments.
Status launch_draft_pass(Model& model, const DrafterLimits& limits, const CaptureKey& key, ExecutionContext& context,
                         const std::function<void(ExecutionContext&)>& launches);

}  // namespace fathom
