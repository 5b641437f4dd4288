// Which rows of an MTP block a step computes (spec 2.9): kept by position alone, without a model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/draft_streams.h"
#include "engine/drafter.h"

namespace fathom {

// A sequence's rows [first, first + num_rows) of a pass.
struct MtpPass {
  const DraftedSequence* sequence = nullptr;
  std::int64_t first = 0;
  std::int32_t num_rows = 0;
  std::int32_t num_wanted = 0;  // proposals still to come; the last row has logits where > 0
  std::int32_t last_row = 0;    // in the pass
  // Of the first rows, those whose streams are kept ones; the others' are this step's.
  std::int32_t num_from_kept = 0;
};

class MtpPasses {
 public:
  // Steps of at most `max_rows` rows. `streams` must outlive it.
  MtpPasses(DraftStreams& streams, std::int32_t num_slots, std::int32_t num_resumes, std::int64_t max_rows)
      : streams_(streams),
        max_rows_(max_rows),
        slots_(static_cast<std::size_t>(num_slots)),
        resumes_(static_cast<std::size_t>(num_resumes)) {}

  void create(StateSlot slot);
  Status save(const ResumeCopy& copy);
  Status restore(const ResumeCopy& copy);

  // Rows of prompts and of sequences that want drafts, with those before them that can be caught up on. Others leave a
  // hole, behind which the block starts afresh.
  void plan(std::span<const DraftedSequence> sequences, std::vector<MtpPass>& passes);
  // No key of the sequence before this position is to be seen.
  std::int64_t floor_of(const DraftedSequence& sequence) const;

  static bool is_of_prompt(const DraftedSequence& sequence) {
    return sequence.step->num_logits == 0 || sequence.step->step_class == StepClass::kChunk;
  }
  // The last committed position before a block's end, whose streams a resume point wants; -1 where the step has none.
  static std::int64_t boundary_position(const DraftedSequence& sequence);

 private:
  // Rows of the draft layer hold what they should at positions [begin, end).
  struct Slot {
    std::int64_t begin = 1, end = 1;
    std::int64_t length = 0;  // of the sequence, when `end` was set
  };
  struct Resume {
    std::int64_t begin = 1;
    bool has_streams = false;
  };
  Slot& slot_of(StateSlot slot) { return slots_[static_cast<std::size_t>(slot.value)]; }
  Resume& resume_of(ResumeSlot slot) { return resumes_[static_cast<std::size_t>(slot.value)]; }

  DraftStreams& streams_;
  std::int64_t max_rows_;
  std::vector<Slot> slots_;
  std::vector<Resume> resumes_;
};

}  // namespace fathom
