// Told of every operation call while it is set (architecture: Pinned 7): how a capture learns whose launches are whose.
#pragma once

#include "telemetry/step_trace.h"

namespace fathom {

class OpObserver {
 public:
  virtual ~OpObserver() = default;
  // Before the first launch of a call, and behind the last launch of its last repeat. `cost` is of one repeat.
  virtual void begin_operation(const OpScope& scope) = 0;
  virtual void end_operation(const OpScope& scope, std::int32_t num_repeats, const OpCost& cost) = 0;
};

}  // namespace fathom
