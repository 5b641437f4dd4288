// Typed engine events (architecture: Pinned 10): the ring that metrics, the page, the request log, time
// lines and `fathom replay` read.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "engine/request.h"

namespace fathom {

enum class EventKind : std::uint8_t { kSubmit, kAdmit, kPlan, kCommit, kCancel, kPreempt, kEvict, kResume, kFinish };

struct EngineEvent {
  EventKind kind = EventKind::kAdmit;
  // On the engine's clock: submit: when the request came; admit, plan, preempt: as the step was launched; commit: as
  // its results were there; finish: as the answer ended.
  std::int64_t time_us = 0;
  std::int64_t step = 0;
  SequenceId sequence;
  std::int64_t length = 0;      // tokens in the cache: before the step (plan), after it (commit), lost (preempt)
  std::int32_t num_tokens = 0;  // submit: of the prompt; admit, resume: found in the prefix cache; plan: rows;
                                // commit: drawn; evict: blocks; finish: drawn in all
  bool prefill = false;         // plan: the rows are of a prompt, or build a preempted sequence again
  RequestId request{};          // whose sequence it is; the scheduler does not know it
};

}  // namespace fathom
