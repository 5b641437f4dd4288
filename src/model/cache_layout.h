// Where every layer's cached state lies inside context blocks, window blocks and state slots (architecture:
// Pinned 3; spec sections 3 and 10). Pure: from config and numerics alone, printable before anything is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "ops/cache_view.h"
#include "ops/numerics.h"

namespace fathom {

// One run of bytes of a resume point: in the state slot, and in the resume slot.
struct ResumePiece {
  std::int64_t state_offset_bytes = 0;
  std::int64_t resume_offset_bytes = 0;
  std::int64_t num_bytes = 0;
};

struct CacheLayout {
  // Trunk layers, then one window-only layer per draft stage.
  std::vector<LayerCache> layers;
  std::int32_t num_trunk_layers = 0;

  std::int64_t context_block_bytes = 0;  // 128 tokens of compressed entries and index keys
  std::int64_t window_block_bytes = 0;   // 128 rows of window keys of every layer
  std::int64_t state_slot_bytes = 0;     // compressor rows of one sequence
  // Of window_block_bytes, what belongs to the trunk.
  std::int64_t trunk_window_bytes = 0;
  // What is kept to resume at a block boundary besides the trunk's window block: the carry half of the last
  // four ratio-4 rows, u and g, main and indexer.
  std::int64_t resume_rows_bytes = 0;

  // Bytes of one sequence of `context_tokens`, all kinds of state, with steps of up to `max_step_tokens`.
  std::int64_t sequence_bytes(std::int64_t context_tokens, std::int64_t max_step_tokens) const;
  // The rows at positions [boundary - 4, boundary), boundary a multiple of 128: resume_rows_bytes in all.
  std::vector<ResumePiece> resume_pieces(std::int64_t boundary_tokens) const;
  std::string to_string() const;
};

CacheLayout plan_cache_layout(const ModelConfig& config, const Numerics& numerics, std::int32_t num_draft_layers);

// Blocks that hold `tokens`, and window blocks that one sequence needs in a step of `step_tokens`.
constexpr std::int64_t num_context_blocks(std::int64_t tokens) { return ceil_div(tokens, kBlockTokens); }
constexpr std::int64_t num_window_blocks(std::int64_t step_tokens) {
  // The step's rows and the 127 positions before them touch at most this many blocks.
  return ceil_div(step_tokens + kBlockTokens - 1, kBlockTokens) + 1;
}

}  // namespace fathom
