// Typed engine events (architecture: Pinned 10): the ring that metrics, the page, the request log, time
// lines and `fathom replay` read.
#pragma once

#include <cstdint>

#include "base/ids.h"

namespace fathom {

enum class EventKind : std::uint8_t { kAdmit, kPlan, kCommit, kCancel, kPreempt, kEvict, kResume, kFinish };

struct EngineEvent {
  EventKind kind = EventKind::kAdmit;
  std::int64_t time_us = 0;  // since engine start
  std::int64_t step = 0;
  SequenceId sequence;
  std::int64_t length = 0;      // tokens committed, or the prompt's at admission
  std::int32_t num_tokens = 0;  // rows planned, tokens committed, blocks evicted
};

}  // namespace fathom
