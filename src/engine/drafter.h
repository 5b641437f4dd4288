// Drafting with the checkpoint's own heads (spec 2.9 and 2.10): what runs behind the trunk in the same step.
//
// A drafter keeps its keys in the window blocks of its own layers, by position like all cached state. A row of the
// MTP block at position p is made of the token of p and the trunk's streams of p - 1, so it is a function of the
// tokens up to p: blocks are shared and rolled back like the trunk's. What lags is the stream row before the next
// position: it lies in the sequence's own slot, and with a resume point.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/segment_times.h"
#include "engine/step.h"
#include "model/model.h"

namespace fathom {

// One sequence of a step, after its tokens were drawn.
struct DraftedSequence {
  const SequenceStep* step = nullptr;
  const SampleSpec* spec = nullptr;  // null where the step drew nothing
  SequenceResult* result = nullptr;  // likewise; proposals go here
  std::span<const TokenId> tokens;   // of its rows
  std::int32_t first_row = 0;        // of the step
  StateSlot state_slot;
  std::span<const std::int32_t> window_table;
  std::int32_t window_first = 0;

  // Tokens in the cache once the step is committed.
  std::int64_t committed_length() const {
    return step->start + step->num_tokens - step->num_drafts + (result != nullptr ? result->accepted : 0);
  }
  // The token behind them, or -1.
  TokenId next_token() const {
    if (result == nullptr) return -1;
    return result->tokens[static_cast<std::size_t>(step->num_logits - step->num_drafts - 1 + result->accepted)].token;
  }
};

struct DrafterLimits {
  std::int32_t max_sequences = 0;  // of one step
  std::int32_t num_state_slots = 0;
  std::int32_t num_resume_slots = 0;
  // On a device: a window block that no sequence has, for rows that only fill up a captured step's shape.
  std::int32_t spare_window_block = 0;
  bool capture = false;              // replay draft passes where the device has graphs
  std::int32_t capture_owner = 0;    // this and the next one: CaptureKey::owner
  SegmentClock* segments = nullptr;  // of captured passes; needed where `capture`
};

class Drafter {
 public:
  virtual ~Drafter() = default;

  virtual std::int32_t max_proposals() const = 0;
  // Bytes that drafting holds besides the cache's blocks: of a sequence, of a resume point.
  virtual std::int64_t state_bytes() const = 0;
  // Whether steps may go by without run(): it sees the hole in its caches, and starts afresh behind it, or where it was
  // given keep(), up to the last positions that it has kept.
  virtual bool may_rest() const = 0;

  // A new sequence owns the slot; nothing of it is drafted yet.
  virtual void create(StateSlot slot) = 0;
  virtual Status save(const ResumeCopy& copy) = 0;
  virtual Status restore(const ResumeCopy& copy) = 0;

  // After the trunk's forward over `trunk`: keeps the draft layers' caches up to date and fills the proposals,
  // drawn with the same specs and noise as the tokens that will verify them. The trunk's logits are gone afterwards.
  virtual Status run(ExecutionContext& context, const StepInput& trunk, const CachePools& pools,
                     std::span<const DraftedSequence> sequences) = 0;

  // Instead of run() where nothing is drafted, of one that may rest: keeps what is needed to catch up on the step's
  // last positions.
  virtual Status keep(ExecutionContext&, std::span<const DraftedSequence>) { return {}; }

  std::int64_t num_forwards() const { return num_forwards_; }
  std::int64_t num_rows() const { return num_rows_; }

 protected:
  std::int64_t num_forwards_ = 0;  // of draft blocks
  std::int64_t num_rows_ = 0;      // of sequences, that those had
};

// Of the kind that the model's tensors are; null where it has none. The model must outlive it.
Result<std::unique_ptr<Drafter>> make_drafter(Model& model, const DrafterLimits& limits);
Result<std::unique_ptr<Drafter>> make_mtp_drafter(Model& model, const DrafterLimits& limits);
Result<std::unique_ptr<Drafter>> make_dspark_drafter(Model& model, const DrafterLimits& limits);

}  // namespace fathom
