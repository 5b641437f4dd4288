// The rows of one step: what every operation that looks at positions or caches is given.
//
// Rows of one sequence are consecutive and ascend by position. All arrays live on the device and keep
// their addresses across replays of a captured step; only their contents change.
#pragma once

#include "tensor/view.h"

namespace fathom {

struct StepRows {
  std::int32_t num_tokens = 0;
  std::int32_t num_sequences = 0;
  // No sequence has more than kMaxDraft + 1 rows, in this step and in all that replay it: nothing that an operation
  // reads of the compressors' states is overwritten by the step.
  bool short_sequences = false;
  View token_ids;       // [tokens] i32
  View positions;       // [tokens] i32, absolute, 0-based
  View sequence_of;     // [tokens] i32: index into the per-sequence arrays below
  View sequence_begin;  // [sequences + 1] i32: first row of each sequence, then num_tokens
  // Window keys of a row: positions [window_begin, window_end). Ordinary rows see max(0, p - 127) .. p;
  // a DSpark block's rows see its whole block (spec 2.10).
  View window_begin;  // [tokens] i32
  View window_end;    // [tokens] i32
  // Context blocks: logical block b of sequence s is context_table[context_offset[s] + b].
  View context_table;   // [entries] i32
  View context_offset;  // [sequences] i64
  // Window blocks: position p lies in window_table[window_offset[s] + p / 128 - window_first[s]].
  View window_table;   // [entries] i32
  View window_offset;  // [sequences] i64
  View window_first;   // [sequences] i32: logical block of the table's first entry
  View state_slot;     // [sequences] i32: compressor-state slab
};

}  // namespace fathom
