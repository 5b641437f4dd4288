// A sequence and a key as the scheduler's own files see them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/scheduler.h"

namespace fathom {

struct Scheduler::Key {
  std::int32_t num_sequences = 0;
  std::int64_t service_rows = 0;  // rows planned for it, from the level of the least served key at its arrival
};

struct Scheduler::Sequence : SequenceState {
  Key* key = nullptr;
  std::int64_t arrival = 0;           // order of add()
  std::int64_t arrival_step = 0;      // the last step planned before add()
  std::int64_t granted_priority = 0;  // effective priority at admission; with `arrival` the rank while running
  std::int64_t last_served_step = -1;
  std::int64_t build_target = 0;        // known tokens at admission: what the prefill works towards
  std::int64_t blocked_available = -1;  // free context blocks when admission failed last
  std::int64_t admitted_step = 0;       // the last step planned before admission
  std::vector<std::int64_t> forks;      // boundaries where prompts part: to be resume points
  bool has_awaited = false;             // another's beginning:
  SequenceId leader;                    // whose; 0: none
  std::int64_t leader_boundary = 0;     // up to where

  StateSlot state_slot;
  std::vector<BlockId> context;
  std::vector<WindowBlockId> window;  // logical blocks first_window, first_window + 1, ...
  std::int64_t first_window = 0;
  std::vector<PrefixCache::EntryRef> entries;
  std::int64_t published_tokens = 0;

  // What the executor knows.
  bool known = false;
  std::int64_t start_length = 0;  // of the prefix hit
  ResumeSlot resume_slot;         // restored from in the plan that creates the sequence
  std::size_t sent_context = 0;
  std::int64_t sent_window_end = 0;
  std::int64_t sent_first_window = 0;

  std::int64_t pending_rows() const { return num_known - length; }
  std::int32_t num_drafts() const {
    return static_cast<std::int32_t>(static_cast<std::int64_t>(tokens.size()) - num_known);
  }
  std::int64_t window_end() const { return first_window + static_cast<std::int64_t>(window.size()); }
};

}  // namespace fathom
