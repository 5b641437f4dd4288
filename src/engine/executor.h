// The one way the engine reaches a model. Implementations: model (cpu, cuda) and scripted (tests).
#pragma once

#include <cstdint>

#include "base/status.h"
#include "engine/segment_times.h"
#include "engine/step.h"
#include "ops/op_times.h"
#include "telemetry/traced_step.h"

namespace fathom {

// What an executor offers; fixed for its life.
struct ExecutorLimits {
  std::int32_t vocab_size = 0;
  std::int64_t max_length_tokens = 0;     // longest sequence the model takes
  std::int32_t max_rows = 0;              // rows of one step
  std::int32_t max_logits_rows = 0;       // of those, rows with logits
  std::int32_t max_sequences = 0;         // sequences of one step
  std::int32_t num_context_blocks = 0;    // BlockId 0 .. n-1
  std::int32_t num_window_blocks = 0;     // WindowBlockId 0 .. n-1
  std::int32_t num_state_slots = 0;       // StateSlot 0 .. n-1: sequences alive at once
  std::int32_t num_resume_slots = 0;      // ResumeSlot 0 .. n-1
  std::int32_t max_proposals = 0;         // drafts it can propose; at most kMaxDraft, 0 without a drafter
  bool classes_differ = false;            // kStep and kChunk rows differ in their bits
  std::uint64_t weights_fingerprint = 0;  // of the weights and the numerics: cached blocks of others never match
};

class Executor {
 public:
  virtual ~Executor() = default;

  virtual const ExecutorLimits& limits() const = 0;

  // At most one step in flight beyond the one being waited for. Plans are valid by construction: a plan
  // that breaks its own rules is a bug (CHECK); a device fault is a Status, and final for this executor.
  virtual Status launch(const StepPlan& plan) = 0;
  // The result of the oldest launched step.
  virtual Result<StepResult> wait() = 0;
  // The sequence's length is now `length`: everything beyond is void. Commit and rollback are this one
  // assignment, nothing is copied. Called for each sequence of a step after it was waited for and before the
  // next plan that names the sequence.
  virtual void commit(SequenceId id, std::int64_t length) = 0;

  // The samples of each step launched from now on are added to `trace`; null: none are taken. Results do not
  // depend on it.
  virtual void set_trace(StepTrace* /*trace*/) {}
  // Behind each traced step, once its answers are given: adds what a device did in it. Others leave it as it is.
  virtual void add_device_samples(TracedStep& /*step*/) {}
  // Sums over all operations that ran so far; null where the executor does not know them.
  virtual const OpTimes* op_times() const { return nullptr; }
  // Likewise of a card's captured steps; null where nothing is captured.
  virtual const SegmentTimes* segment_times() const { return nullptr; }
};

}  // namespace fathom
