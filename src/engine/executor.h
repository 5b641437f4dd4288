// The one way the engine reaches a model. Implementations: model (cpu, cuda) and scripted (tests).
#pragma once

#include "base/status.h"
#include "engine/step.h"

namespace fathom {

class Executor {
 public:
  virtual ~Executor() = default;

  // At most one step in flight beyond the one being waited for. Plans are valid by construction: a plan
  // that breaks its own rules is a bug (CHECK); a device fault is a Status, and final for this executor.
  virtual Status launch(const StepPlan& plan) = 0;
  // The result of the oldest launched step.
  virtual Result<StepResult> wait() = 0;
  // The sequence's length is now `length`: everything beyond is void. Commit and rollback are this one
  // assignment, nothing is copied.
  virtual void commit(SequenceId id, std::int64_t length) = 0;
};

}  // namespace fathom
