// What the scheduler asks of an executor, and what comes back (architecture: Pinned 4).
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "ops/sample/sample.h"

namespace fathom {

// Two step classes, by purpose and not by size (architecture: Pinned 2). On the CPU they are one.
enum class StepClass : std::uint8_t {
  kStep,   // decode and draft verification
  kChunk,  // prefill
};

// Rows [start, start + num_tokens) of one sequence. The last num_logits of them yield logits and tokens.
struct SequenceStep {
  SequenceId id;
  std::int64_t start = 0;       // position of the first row = committed length before the step
  std::int32_t num_tokens = 0;  // rows, drafts included
  std::int32_t num_drafts = 0;  // the last num_drafts rows hold drafted ids: verified by this step
  std::int32_t num_logits = 0;  // 0 (prefill chunk in the middle) or 1 + num_drafts; more for prompt logprobs
  StepClass step_class = StepClass::kStep;
  std::int32_t num_proposals = 0;  // most drafts the executor should propose for the step after this one
};

// A row's token: an id, or the token that row `previous_row` of the step before drew, so that a step can be
// launched before the last tokens reach the host.
struct TokenRef {
  TokenId id = -1;
  std::int32_t previous_row = -1;

  static TokenRef of_id(TokenId token) { return {token, -1}; }
  static TokenRef of_previous_row(std::int32_t row) { return {-1, row}; }
};

// A change of one sequence's block tables; never a whole table.
struct BlockTableDelta {
  SequenceId id;
  bool created = false;   // first appearance: tables start empty, state_slot is valid
  bool released = false;  // last appearance: the executor forgets the sequence at once; the other fields are void
  StateSlot state_slot;
  // created only: tokens that a prefix hit brings, a multiple of kBlockTokens (0: none). The appended blocks
  // then hold those tokens already, and a resume_restore brings the state rows.
  std::int64_t start_length = 0;
  std::vector<BlockId> appended_context;       // logical blocks after those it has
  std::vector<WindowBlockId> appended_window;  // logical window blocks after those it has
  // Window blocks below this logical index are gone. Where created, the first appended one has this index.
  std::int32_t first_window_block = 0;
};

// The state rows of a resume point at boundary b (a multiple of kBlockTokens): per ratio-4 layer, main and
// indexer, the halves of rows u, g that the next group reads, at positions [b - 4, b). Nothing of ratio 128.
struct ResumeCopy {
  StateSlot state_slot;
  ResumeSlot resume_slot;
  std::int64_t boundary_tokens = 0;
};

// What draft layers are given of a step's positions for which no drafts are asked.
enum class DrafterFeed : std::uint8_t {
  kNothing,  // nothing is drafted soon: there is a hole in their caches
  kStreams,  // may be drafted soon: what they need to catch up on the last positions
  kRows,     // prompts' rows, as drafting wants them
};

// Applied in this order: resume_saves, deltas (releases stand first), resume_restores, then the rows. A plan
// may hold no rows at all; it is launched, waited for and answered like any other.
struct StepPlan {
  std::int64_t step = 0;
  std::vector<SequenceStep> sequences;  // rows in this order
  std::vector<TokenRef> tokens;         // one per row
  std::vector<SampleSpec> samples;      // one per sequence with num_logits > 0, in order
  std::vector<BlockTableDelta> deltas;
  std::vector<ResumeCopy> resume_saves;     // state slot -> resume slot
  std::vector<ResumeCopy> resume_restores;  // resume slot -> state slot
  DrafterFeed drafter_feed = DrafterFeed::kRows;
};

// Per sequence with num_logits > 0, in plan order.
struct SequenceResult {
  SequenceId id;
  // With drafts: the last num_drafts + 1 logits rows verify; tokens of the first accepted + 1 of them are
  // final, accepted <= num_drafts. Without: one token.
  std::int32_t accepted = 0;
  std::vector<SampledToken> tokens;  // one per logits row
  std::vector<TokenId> proposals;    // at most num_proposals drafts of the tokens after tokens[accepted]
};

struct StepResult {
  std::int64_t step = 0;
  std::vector<SequenceResult> sequences;
  double device_us = 0;
  // Parts of device_us that the host saw, in this order (StepTrace); 0 where they are not told apart. Drafting:
  // proposals and the draft layers' caches.
  double prepare_us = 0, forward_us = 0, sample_us = 0, draft_us = 0;
  // Its forward, or its drafting, took the time of a shape's first uses, which are launched one by one or captured:
  // later ones take less.
  bool is_first_forward = false, is_first_draft = false;
};

}  // namespace fathom
